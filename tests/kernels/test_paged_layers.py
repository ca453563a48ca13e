"""Layers of one batch of requests: one cache grows, the others follow; and launches planned for later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import cpu
from questprof_kernels.paged_cache import PagedCache, PagePool

HEADS, DIM, SIZE = 2, 64, 4


def make(num_layers: int, batch_size: int, layout: str, num_pages: int = 40) -> list[PagedCache]:
    pools = [
        PagePool(num_pages, HEADS, SIZE, DIM, torch.float32, summary_layout=layout) for _ in range(num_layers)
    ]
    for pool in pools:
        pool.summary.data.fill_(float("nan"))  # what an earlier owner may have left
    lead = PagedCache(pools[0], batch_size, num_pages)
    return [lead, *(lead.add_layer(pool) for pool in pools[1:])]


def boxes_hold(cache: PagedCache, tokens: list[torch.Tensor]) -> None:
    """The boxes of each request are those of its tokens [length, HEADS, DIM]."""
    for request, keys in enumerate(tokens):
        lower, upper = cache.bounds(request)
        assert len(lower) == -(-len(keys) // SIZE)
        for page in range(len(lower)):
            own = keys[page * SIZE : (page + 1) * SIZE]
            assert torch.equal(lower[page], own.amin(dim=0))
            assert torch.equal(upper[page], own.amax(dim=0))


@pytest.mark.parametrize("layout", ["paired", "transposed"])
@settings(max_examples=15, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 1), st.integers(-6, 9)), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_every_layer_follows_growth_and_roll_back(
    layout: str, moves: list[tuple[int, int]], seed: int
) -> None:
    caches = make(3, 2, layout)
    lead = caches[0]
    generator = torch.Generator().manual_seed(seed)
    tokens = [[torch.zeros(0, HEADS, DIM)] * 2 for _ in caches]
    for request, count in moves:
        if count < 0:
            dropped = min(-count, lead.seq_lens[request])
            lead.roll_back(request, dropped)
            for layer in tokens:
                layer[request] = layer[request][: len(layer[request]) - dropped]
            continue
        new_indptr = lead.extend([count if r == request else 0 for r in range(2)])
        for cache, layer in zip(caches, tokens, strict=True):
            keys = torch.randn(count, HEADS, DIM, generator=generator)
            cpu.append(cache, keys, -keys, new_indptr)
            layer[request] = torch.cat([layer[request], keys])
    for cache, layer in zip(caches, tokens, strict=True):
        assert cache.seq_lens == tuple(len(keys) for keys in layer)
        assert cache.kv_indptr is lead.kv_indptr
        assert cache.physical_pages(0) == lead.physical_pages(0)
        boxes_hold(cache, layer)
        for request, keys in enumerate(layer):
            pages = torch.tensor(cache.physical_pages(request), dtype=torch.long)
            held = cache.pool.v[pages].transpose(1, 2).reshape(-1, HEADS, DIM)[: len(keys)]
            assert torch.equal(held, -keys)


def test_only_the_first_layer_grows_and_pages_are_not_shared() -> None:
    lead, layer = make(2, 2, "paired")
    for change in (
        lambda: layer.extend([1, 0]),
        lambda: layer.roll_back(0, 0),
        lambda: layer.fork(0, 1),
        lambda: layer.free(0),
    ):
        with pytest.raises(ValueError, match="a layer of another"):
            change()
    with pytest.raises(ValueError, match="copies no pages"):
        lead.fork(0, 1)
    with pytest.raises(ValueError, match="cache that grows"):
        layer.add_layer(lead.pool)
    other = PagePool(41, HEADS, SIZE, DIM, torch.float32)
    with pytest.raises(ValueError, match="must be alike"):
        lead.add_layer(other)


def test_planned_pages_are_the_least_that_launches_are_planned_for() -> None:
    pool = PagePool(8, HEADS, SIZE, DIM, torch.float32)
    cache = PagedCache(pool, 2, 8, planned_pages=3)
    assert (cache.max_pages, cache.total_pages, cache.num_pages) == (3, 0, (0, 0))
    cache.extend([SIZE * 4, 1])
    assert (cache.max_pages, cache.total_pages, cache.num_pages) == (4, 5, (4, 1))
    assert PagedCache(pool, 1, 2).max_pages == 0

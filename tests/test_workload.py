"""Caches and queries: what the keys make the pages score, where pages lie, how large it all is."""

import msgspec
import pytest
import torch
from questprof_kernels import reference

from questprof.backends import load
from questprof.model import Data, Point, Shape
from questprof.workload import cache_bytes, make_cache, make_pool, make_query, scatter_bytes

SHAPE = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
POINT = Point(shape=SHAPE, seq_len=10 * 16, token_budget=64, device="cpu", batch_size=2)
GIB = 1 << 30


def _scores(data: Data) -> torch.Tensor:
    """Float64 scores [query heads, requests, pages] of full pages under keys of `data`."""
    point = msgspec.structs.replace(POINT, data=data)
    pool = make_pool(point, 1, 2)
    cache = make_cache(point, pool, load("questprof", "cpu"), 0)
    assert torch.isfinite(pool.k).all()
    assert torch.isfinite(pool.v).all()
    scores = reference.score(make_query(point, pool, data, 0), cache)
    return scores.reshape(4, 2, 10)


def test_constant_keys_score_the_same_on_every_page() -> None:
    scores = _scores("constant")
    assert torch.equal(scores, scores[:, :, :1].expand_as(scores))
    assert (scores > 0).all()


def test_ramp_keys_score_more_page_by_page() -> None:
    """Page p weighs (p + 1) / 10."""
    scores = _scores("ramp")
    assert (scores.diff(dim=-1) > 0).all()
    torch.testing.assert_close(
        scores, scores[:, :, -1:] * torch.arange(1, 11) / 10, rtol=1e-6, atol=0, check_dtype=False
    )


def test_needle_keys_score_on_the_middle_page_alone() -> None:
    scores = _scores("needle")
    assert (scores[:, :, 5] > 0).all()
    assert (scores[:, :, [p for p in range(10) if p != 5]] == 0).all()


def test_keys_do_not_depend_on_how_a_cache_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 tokens at a time, 1.5 pages, give the pages that one append gives."""
    point = msgspec.structs.replace(POINT, data="ramp", page_order="sequential", batch_size=1)
    boxes = []
    for tokens in (16384, 24):
        monkeypatch.setattr("questprof.workload.FILL_TOKENS", tokens)
        pool = make_pool(point, 1, 2)
        cache = make_cache(point, pool, load("questprof", "cpu"), 0)
        boxes.append(reference.boxes(cache, 0, 1)[1])
    torch.testing.assert_close(boxes[0], boxes[1])


def test_scattered_pages_spread_over_the_whole_pool() -> None:
    """20 pages in a pool of 4 MiB; 2 x 16 x 2 x 64 x 4 bytes of K and V and 1 KiB of summary a page."""
    point = msgspec.structs.replace(POINT, page_order="scattered", pool_bytes=4 << 20)
    pool = make_pool(point, 1, 2, scatter_bytes(point, GIB, 0))
    assert pool.num_pages == (4 << 20) // (17 << 10) == 240
    cache = make_cache(point, pool, load("questprof", "cpu"), 0)
    pages = sorted(page for request in range(2) for page in cache.physical_pages(request))
    assert pages[0] < 60
    assert pages[-1] >= 180
    shuffled = make_pool(msgspec.structs.replace(point, page_order="shuffled", pool_bytes=0), 1, 2)
    assert shuffled.num_pages == 20


def test_shuffled_pages_of_a_cache_lie_in_its_own_part_however_many_take_turns() -> None:
    """So its time does not depend on how many caches a stage needs to be cold."""
    share = sum(POINT.num_pages)
    pools = [make_pool(POINT, count, 2) for count in (1, 5)]
    for pool, count in zip(pools, (1, 5), strict=True):
        for index in range(count):
            cache = make_cache(POINT, pool, load("questprof", "cpu"), index)
            pages = [page for request in range(cache.batch_size) for page in cache.physical_pages(request)]
            assert sorted(pages) == list(range(index * share, (index + 1) * share))
            assert pages != sorted(pages)


@pytest.mark.parametrize(
    ("device", "order", "available", "elsewhere", "wanted"),
    [
        ("cuda", "scattered", 1000 * GIB, 0, 100 * GIB),
        ("cuda", "scattered", 100 * GIB, 0, 80 * GIB),
        ("cuda", "scattered", 100 * GIB, 30 * GIB, 50 * GIB),
        ("cpu", "scattered", 100 * GIB, 0, 25 * GIB),
        ("cpu", "scattered", 100 * GIB, 30 * GIB, 0),
        ("cuda", "shuffled", 100 * GIB, 0, 0),
    ],
)
def test_the_pool_is_what_was_asked_or_what_memory_allows(
    device: str, order: str, available: int, elsewhere: int, wanted: int
) -> None:
    changes = {"device": device, "page_order": order, "pool_bytes": 100 * GIB}
    assert scatter_bytes(msgspec.structs.replace(POINT, **changes), available, elsewhere) == wanted


@pytest.mark.parametrize("layout", ["paired", "transposed"])
@pytest.mark.parametrize("length", [16, 100 * 16 + 1])
def test_cache_bytes_are_what_is_allocated_in_either_layout(layout: str, length: int) -> None:
    """101 pages a request are two blocks of 64."""
    point = msgspec.structs.replace(POINT, seq_len=length, summary_layout=layout)
    pool = make_pool(point, 3, 2)
    assert pool.summary.layout == layout
    tensors = (pool.k, pool.v, pool.summary.data)
    assert 3 * cache_bytes(point) == sum(tensor.nbytes for tensor in tensors)

"""Seeded data for one block of points: paged caches filled through the real append, and queries.

V and q are standard normal in kv_dtype, and so are K unless the point's data say otherwise: `constant`,
`ramp` and `needle` give every page the same S normal keys times a weight of the page, so that all pages
score the same, each page more than the one before, or one page alone above zero (selection at its hardest).
With GQA, independent queries give a near-worst union of the group's pages; `shared` gives every query head
of a group the same query, the best case.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, summary_blocks

from questprof.backends import Backend
from questprof.model import Data, Point
from questprof.units import dtype_bytes

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache, PagePool

FILL_TOKENS = 16384
"""Tokens appended at a time, so that filling needs little memory beside the cache."""

USABLE_SHARE = 0.8
"""Share of the available memory a block may plan for; the rest is for scratch, checks and others."""

SCATTER_SHARE = {"cuda": USABLE_SHARE, "cpu": 0.25}
"""Share of the available memory that a pool of scattered pages may take."""

WARM_UP_PAGES = 4
"""Pages of a request of a cache that only warms code: few, so that they take nothing from the timed ones."""

PAGE_WEIGHTS: dict[Data, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "constant": lambda page, num_pages: (page >= 0).float(),
    "ramp": lambda page, num_pages: (page + 1) / num_pages,
    "needle": lambda page, num_pages: (page == num_pages // 2).float(),
}
"""Weights of logical pages `page` (int64 [n], of `num_pages`) by data set; the others have normal keys."""


def cache_bytes(point: Point) -> int:
    """Bytes of K, V and summary of one layer's cache for `point`."""
    shape = point.shape
    pages = sum(point.num_pages)
    kv = 2 * pages * point.page_size * dtype_bytes(shape.kv_dtype)
    if point.summary_layout == "transposed":
        pages = summary_blocks(point.num_pages) * SUMMARY_BLOCK_PAGES
    boxes = 2 * pages * dtype_bytes(shape.effective_summary_dtype)
    return (kv + boxes) * shape.num_kv_heads * shape.head_dim


def scatter_bytes(point: Point, available: int, held_elsewhere: int) -> int:
    """Bytes of the pool that `point` scatters its pages over: those asked for, or what memory allows; else 0.

    `available` bytes are free now, `held_elsewhere` of them are for copies that a baseline makes.
    """
    if point.page_order != "scattered":
        return 0
    return max(0, min(point.pool_bytes, int(available * SCATTER_SHARE[point.device]) - held_elsewhere))


def few_pages(point: Point) -> Point:
    """`point` with every request cut to its first WARM_UP_PAGES pages, and K with it."""
    lengths = tuple(min(length, WARM_UP_PAGES * point.page_size) for length in point.lengths)
    return replace(point, seq_len=max(lengths), seq_lens=lengths)


def make_pool(point: Point, num_caches: int, num_workers: int, pool_bytes: int = 0) -> PagePool:
    """Storage for `num_caches` caches of `point`, its pages handed out in the point's page order.

    It holds as many pages as the caches need, or as `pool_bytes` hold when those are more. Shuffled pages of
    a cache lie in its own part, so that its time does not depend on how many caches it takes turns with.
    """
    from questprof_kernels.paged_cache import DTYPES, PagePool

    shape = point.shape
    needed = num_caches * sum(point.num_pages)
    page_bytes = cache_bytes(point) // max(1, sum(point.num_pages))
    pool = PagePool(
        max(needed, pool_bytes // max(1, page_bytes)),
        shape.num_kv_heads,
        point.page_size,
        shape.head_dim,
        DTYPES[shape.kv_dtype],
        summary_dtype=DTYPES[shape.effective_summary_dtype],
        device=point.device,
        num_workers=num_workers,
        summary_layout=point.summary_layout,
        num_summary_blocks=num_caches * summary_blocks(point.num_pages),
    )
    pool.reorder_free(_free_order(point, pool.num_pages))
    return pool


def _free_order(point: Point, num_pages: int) -> list[int]:
    """The order in which a pool of `num_pages` hands them out, to caches of `point` one after the other."""
    order, shuffle = list(range(num_pages)), random.Random(point.seed).shuffle
    if point.page_order == "scattered":
        shuffle(order)
    elif point.page_order == "shuffled":
        share = max(1, sum(point.num_pages))
        for first in range(0, num_pages, share):
            part = order[first : first + share]
            shuffle(part)
            order[first : first + share] = part
    return order


def make_cache(point: Point, pool: PagePool, backend: Backend, index: int) -> PagedCache:
    """Cache number `index` of the rotation, filled request by request through the backend's append."""
    import torch
    from questprof_kernels.paged_cache import PagedCache

    cache = PagedCache(pool, len(point.lengths), sum(point.num_pages))
    generator = torch.Generator(device=pool.device).manual_seed((point.seed << 20) + index)
    every_page = _every_page(point, pool, generator)
    for request, length in enumerate(point.lengths):
        for start in range(0, length, FILL_TOKENS):
            count = min(FILL_TOKENS, length - start)
            counts = [count if r == request else 0 for r in range(cache.batch_size)]
            new_indptr = cache.extend(counts)
            keys, values = new_tokens(pool, count, generator)
            if every_page is not None:
                positions = torch.arange(start, start + count, device=pool.device)
                weigh = PAGE_WEIGHTS[point.data]
                weights = weigh(positions // point.page_size, point.num_pages[request])
                keys = (every_page[positions % point.page_size] * weights[:, None, None]).to(keys.dtype)
            backend.stages["append"](cache, keys, values, new_indptr)
    return cache


def _every_page(point: Point, pool: PagePool, generator: torch.Generator) -> torch.Tensor | None:
    """The keys [page_size, num_kv_heads, head_dim] that every page holds times its weight; None without."""
    if point.data not in PAGE_WEIGHTS:
        return None
    return _normal((pool.page_size, pool.num_kv_heads, pool.head_dim), pool.k.dtype, generator)


def new_tokens(pool: PagePool, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal K and V [count, num_kv_heads, head_dim]."""
    shape = (count, pool.num_kv_heads, pool.head_dim)
    return _normal(shape, pool.k.dtype, generator), _normal(shape, pool.k.dtype, generator)


def make_query(point: Point, pool: PagePool, data: Data, index: int) -> torch.Tensor:
    """Queries [batch_size, num_qo_heads, head_dim] for cache number `index`."""
    import torch

    shape = point.shape
    generator = torch.Generator(device=pool.device).manual_seed((point.seed << 20) + (1 << 19) + index)
    batch = len(point.lengths)
    if data != "shared":
        return _normal((batch, shape.num_qo_heads, shape.head_dim), pool.k.dtype, generator)
    one_a_group = _normal((batch, shape.num_kv_heads, shape.head_dim), pool.k.dtype, generator)
    return one_a_group.repeat_interleave(shape.group_size, dim=1)


def _normal(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(tuple(shape), generator=generator, device=generator.device).to(dtype)

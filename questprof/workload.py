"""Seeded data for one block of points: paged caches filled through the real append, and queries.

K, V and q are standard normal in kv_dtype. With GQA, independent queries give a near-worst union of the
group's pages; `shared` gives every query head of a group the same query, the best case.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from questprof.backends import Backend
from questprof.model import Data, Point
from questprof.units import dtype_bytes

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache, PagePool

FILL_TOKENS = 16384
"""Tokens appended at a time, so that filling needs little memory beside the cache."""


def cache_bytes(point: Point) -> int:
    """Bytes of K, V and summary of one layer's cache for `point`."""
    shape = point.shape
    pages = sum(point.num_pages) * shape.num_kv_heads
    kv = 2 * pages * point.page_size * shape.head_dim * dtype_bytes(shape.kv_dtype)
    return kv + 2 * pages * shape.head_dim * dtype_bytes(shape.effective_summary_dtype)


def make_pool(point: Point, num_caches: int, num_workers: int) -> PagePool:
    """Storage for `num_caches` caches of `point`, its pages handed out in the point's page order."""
    from questprof_kernels.paged_cache import DTYPES, PagePool

    shape = point.shape
    pool = PagePool(
        num_caches * sum(point.num_pages),
        shape.num_kv_heads,
        point.page_size,
        shape.head_dim,
        DTYPES[shape.kv_dtype],
        summary_dtype=DTYPES[shape.effective_summary_dtype],
        device=point.device,
        num_workers=num_workers,
    )
    if point.page_order == "shuffled":
        order = list(range(pool.num_pages))
        random.Random(point.seed).shuffle(order)
        pool.reorder_free(order)
    return pool


def make_cache(point: Point, pool: PagePool, backend: Backend, index: int) -> PagedCache:
    """Cache number `index` of the rotation, filled request by request through the backend's append."""
    import torch
    from questprof_kernels.paged_cache import PagedCache

    cache = PagedCache(pool, len(point.lengths), sum(point.num_pages))
    generator = torch.Generator(device=pool.device).manual_seed((point.seed << 20) + index)
    for request, length in enumerate(point.lengths):
        for start in range(0, length, FILL_TOKENS):
            count = min(FILL_TOKENS, length - start)
            counts = [count if r == request else 0 for r in range(cache.batch_size)]
            new_indptr = cache.extend(counts)
            shape = (count, pool.num_kv_heads, pool.head_dim)
            keys = _normal(shape, pool.k.dtype, generator)
            values = _normal(shape, pool.k.dtype, generator)
            backend.stages["append"](cache, keys, values, new_indptr)
    return cache


def make_query(point: Point, pool: PagePool, data: Data, index: int) -> torch.Tensor:
    """Queries [batch_size, num_qo_heads, head_dim] for cache number `index`."""
    import torch

    shape = point.shape
    generator = torch.Generator(device=pool.device).manual_seed((point.seed << 20) + (1 << 19) + index)
    batch = len(point.lengths)
    if data == "independent":
        return _normal((batch, shape.num_qo_heads, shape.head_dim), pool.k.dtype, generator)
    one_a_group = _normal((batch, shape.num_kv_heads, shape.head_dim), pool.k.dtype, generator)
    return one_a_group.repeat_interleave(shape.group_size, dim=1)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)

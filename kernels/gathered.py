"""Where selected pages go when they are copied out: a contiguous temporary in an attention stage's scratch.

Every (request, query head) becomes a request of its own over pages of one KV head, so that `dense` attends
over the copy as over any other cache. Imports no triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import ceil_div


@dataclass(frozen=True)
class GatheredPool:
    """What `dense` asks of a page pool; k, v [num_qo_heads * select_indptr[-1], 1, page_size, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor
    summary: Any  # of the cache gathered from, for its dtype
    device: torch.device
    num_workers: int
    num_kv_heads: int = 1

    @property
    def page_size(self) -> int:
        """Token slots of a page (S)."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements of one key or value vector."""
        return self.k.shape[3]


@dataclass(frozen=True)
class Gathered:
    """What `dense` asks of a cache; request number request * num_qo_heads + head holds that head's pages."""

    pool: GatheredPool
    batch_size: int
    block_table: torch.Tensor  # int32 [pages]: every page at its own place
    kv_indptr: torch.Tensor  # int32 [batch_size + 1]
    last_page_len: torch.Tensor  # int32 [batch_size]

    @property
    def dense_table(self) -> torch.Tensor:
        """The same: pages lie in the order of the table."""
        return self.block_table

    @property
    def total_pages(self) -> int:
        """Pages of all requests."""
        return len(self.block_table)


def floats(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
    """fp32 numbers of scratch that the temporary and its tables take."""
    return sum(_sizes(q, cache, page_ids).values())


def planned(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> Gathered:
    """The temporary before it has memory: its tensors have shapes and no storage."""
    scratch = torch.empty(floats(q, cache, page_ids), dtype=torch.float32, device="meta")
    return carved(q, cache, page_ids, scratch)


def carved(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, scratch: torch.Tensor) -> Gathered:
    """The temporary in the first `floats` numbers of `scratch`, which is 16-byte aligned."""
    pool, (batch_size, heads, dim) = cache.pool, q.shape
    rows, pages = batch_size * heads, heads * page_ids.shape[1]
    sizes = _sizes(q, cache, page_ids)
    pieces = scratch[: sum(sizes.values())].split(list(sizes.values()))
    parts = dict(zip(sizes, pieces, strict=True))
    shape = (pages, 1, pool.page_size, dim)
    k, v = (parts[name].view(pool.k.dtype)[: pages * pool.page_size * dim].view(shape) for name in "kv")
    table, indptr, lengths = (
        parts[name].view(torch.int32)[:count]
        for name, count in (("block_table", pages), ("kv_indptr", rows + 1), ("last_page_len", rows))
    )
    gathered = GatheredPool(k, v, pool.summary, scratch.device, pool.num_workers)
    return Gathered(gathered, rows, table, indptr, lengths)


def _sizes(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> dict[str, int]:
    """fp32 numbers of each tensor, whole multiples of 16 bytes."""
    (batch_size, heads, dim), pages = q.shape, q.shape[1] * page_ids.shape[1]
    words = pages * cache.pool.page_size * dim * cache.pool.k.element_size() // 4
    counts = {"k": words, "v": words, "block_table": pages}
    counts |= {"kv_indptr": batch_size * heads + 1, "last_page_len": batch_size * heads}
    return {name: 4 * ceil_div(count, 4) for name, count in counts.items()}

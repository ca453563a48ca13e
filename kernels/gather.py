"""Ablation: copy the selected pages of every query head into a contiguous temporary.

What a sparse attention pays that does not read the pages in place: every selected K and V is written once
more and read again by the attention that follows. Compare stage `attend`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_cache, check_rows, check_tensor
from questprof_kernels.gathered import Gathered
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import ceil_div, next_power_of_2
from questprof_kernels.words import as_words

PAGES_PER_PROGRAM = 4


@triton.jit
def gather_kernel(
    k,  # int32 words
    v,
    block_table,
    kv_indptr,
    last_page_len,
    page_ids,
    select_indptr,
    new_k,
    new_v,
    new_block_table,
    new_kv_indptr,
    new_last_page_len,
    page_ids_stride,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_SLOTS: tl.constexpr,  # PAGE_SIZE as a power of two
    WORDS: tl.constexpr,  # of a vector
):
    """One program: every grid[0]-th selected page of one query head of one request."""
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    first_id = tl.load(select_indptr + request)
    num_selected = tl.load(select_indptr + request + 1) - first_id
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    ids = page_ids + head * page_ids_stride + first_id
    first = tl.num_programs(1) * first_id + head * num_selected  # this head's first page of the temporary
    if tl.program_id(0) == 0:
        row = request * tl.num_programs(1) + head
        last = tl.load(ids + num_selected - 1, mask=num_selected > 0, other=-1)
        length = tl.where(last == num_pages - 1, tail_len, PAGE_SIZE)
        tl.store(new_kv_indptr + row, first.to(tl.int32))
        tl.store(new_kv_indptr + row + 1, (first + num_selected).to(tl.int32))
        tl.store(new_last_page_len + row, tl.where(num_selected > 0, length, 0))
    slot = tl.arange(0, TILE_SLOTS)[:, None]
    place = slot * WORDS + tl.arange(0, WORDS)[None, :]
    for entry in range(tl.program_id(0), num_selected, tl.num_programs(0)):
        logical = tl.load(ids + entry)
        physical = tl.load(block_table + start + logical).to(tl.int64)
        there = slot < tl.where(logical == num_pages - 1, tail_len, PAGE_SIZE)
        source = (physical * NUM_KV_HEADS + head // GROUP) * (PAGE_SIZE * WORDS) + place
        target = (first + entry) * (PAGE_SIZE * WORDS) + place
        keys = tl.load(k + source, mask=there, other=0)
        values = tl.load(v + source, mask=there, other=0)
        tl.store(new_k + target, keys, mask=there)
        tl.store(new_v + target, values, mask=there)
        tl.store(new_block_table + first + entry, (first + entry).to(tl.int32))


def constants(
    *, group_size: int, num_kv_heads: int, page_size: int, head_dim: int, element_bytes: int
) -> dict[str, Any]:
    """Compile-time parameters and launch options of `gather_kernel`."""
    return {
        "GROUP": group_size,
        "NUM_KV_HEADS": num_kv_heads,
        "PAGE_SIZE": page_size,
        "TILE_SLOTS": next_power_of_2(page_size),
        "WORDS": head_dim * element_bytes // 4,
        "num_warps": 4,
    }


def gather(
    cache: PagedCache, page_ids: torch.Tensor, select_indptr: torch.Tensor, gathered: Gathered
) -> None:
    """Copy the valid tokens of the selected pages into `gathered`, and write its tables.

    `page_ids` int32 [num_qo_heads, select_indptr[-1]], logical, ascending in each request (as `select` writes
    them: only the last one may be the partial tail page), `select_indptr` int32 [batch_size + 1]. Raises
    TypeError on a wrong dtype, ValueError on a wrong shape or device.
    """
    check_cache(cache)
    pool, heads = cache.pool, page_ids.shape[0]
    check_rows("page_ids", page_ids, heads, 0, torch.int32, pool.k.device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, pool.k.device)
    pages = ceil_div(page_ids.shape[1], cache.batch_size)
    grid = (max(1, ceil_div(pages, PAGES_PER_PROGRAM)), heads, cache.batch_size)
    gather_kernel[grid](
        as_words(pool.k),
        as_words(pool.v),
        cache.block_table,
        cache.kv_indptr,
        cache.last_page_len,
        page_ids,
        select_indptr,
        as_words(gathered.pool.k),
        as_words(gathered.pool.v),
        gathered.block_table,
        gathered.kv_indptr,
        gathered.last_page_len,
        page_ids.stride(0),
        **constants(
            group_size=heads // pool.num_kv_heads,
            num_kv_heads=pool.num_kv_heads,
            page_size=pool.page_size,
            head_dim=pool.head_dim,
            element_bytes=pool.k.element_size(),
        ),
    )

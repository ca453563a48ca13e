"""Plain Triton kernels of `attend`, `score` and `select`, right or wrong in one named way.

Every fault of this folder is one of them under a name of its own, as a stage set that the commands take:
`faults.NAME:stages`. They run in the interpreter and on a GPU, and no fault leaves the pool's storage.
`select` is always the project's; a fault of it spoils the ids afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels import select as project
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import next_power_of_2


@triton.jit
def unselected_page(
    page_ids, stride, first, end, num_pages, kv_head, GROUP: tl.constexpr, MOST: tl.constexpr
):
    """The lowest logical page that no query head of the group selected; num_pages when there is none."""
    entries = first + tl.arange(0, MOST)
    page = num_pages - num_pages
    taken = tl.full([], 1, tl.int32)
    while (page < num_pages) & (taken > 0):
        taken = tl.full([], 0, tl.int32)
        for member in tl.static_range(GROUP):
            row = page_ids + (kv_head * GROUP + member) * stride
            ids = tl.load(row + entries, mask=entries < end, other=-1)
            taken += tl.sum((ids == page).to(tl.int32), axis=0)
        page += (taken > 0).to(tl.int32)
    return page


@triton.jit
def attend_kernel(
    q,
    k,
    v,
    block_table,
    kv_indptr,
    last_page_len,
    page_ids,
    select_indptr,
    out,
    lse,
    scale,
    page_ids_stride,
    q_batch_stride,
    q_head_stride,
    num_rows,  # of K and of V
    FAULT: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # PAGE_SIZE padded to a power of two
    MOST: tl.constexpr,  # selected pages of a request, padded
    HEAD_DIM: tl.constexpr,
):
    """One program: one query head of one request, page by page."""
    head = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    kv_head = head // GROUP
    first = tl.load(select_indptr + request)
    end = tl.load(select_indptr + request + 1)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    dim = tl.arange(0, HEAD_DIM)
    slot = tl.arange(0, TILE)
    query = tl.load(q + request * q_batch_stride + head * q_head_stride + dim).to(tl.float32) * scale
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for entry in range(first, end):
        logical = tl.load(page_ids + head * page_ids_stride + entry)
        physical = tl.load(block_table + start + logical).to(tl.int64)
        valid = slot < tl.where(logical == num_pages - 1, tail_len, PAGE_SIZE)
        if FAULT == "gather":  # the copy has a page an entry of every query head
            row = (head * page_ids_stride + entry) * PAGE_SIZE + slot
        else:
            row = (physical * NUM_KV_HEADS + kv_head) * PAGE_SIZE + slot
        read = valid
        if FAULT == "wide_tile":
            read = row < num_rows
        where = row[:, None] * HEAD_DIM + dim[None, :]
        keys = tl.load(k + where, mask=read[:, None], other=0.0).to(tl.float32)
        if FAULT == "keys_only":
            values = keys
        else:
            values = tl.load(v + where, mask=read[:, None], other=0.0).to(tl.float32)
        logits = tl.where(valid, tl.sum(keys * query[None, :], axis=1), float("-inf"))
        highest = tl.maximum(top, tl.max(logits, axis=0))
        weights = tl.exp(logits - highest)
        rescale = tl.exp(top - highest)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(tl.where(valid[:, None], values, 0.0) * weights[:, None], axis=0)
        top = highest
    if FAULT == "touches_one":
        page = unselected_page(page_ids, page_ids_stride, first, end, num_pages, kv_head, GROUP, MOST)
        there = (head == 0) & (page < num_pages)
        physical = tl.load(block_table + start + page, mask=there, other=0).to(tl.int64)
        length = tl.where(page == num_pages - 1, tail_len, PAGE_SIZE)
        valid = slot < tl.where(there, length, 0)
        where = ((physical * NUM_KV_HEADS + kv_head) * PAGE_SIZE + slot)[:, None] * HEAD_DIM + dim[None, :]
        keys = tl.load(k + where, mask=valid[:, None], other=0.0).to(tl.float32)
        # No sum is above this, which a compiler cannot know: the load stays and changes nothing.
        acc += tl.where(tl.sum(tl.sum(keys, axis=1), axis=0) > 1e30, 1.0, 0.0)
    divisor = tl.where(total == 0.0, 1.0, total)
    row = request * tl.num_programs(0) + head
    tl.store(out + row * HEAD_DIM + dim, (acc / divisor).to(out.dtype.element_ty))
    tl.store(lse + row, tl.where(total == 0.0, float("-inf"), top + tl.log(divisor)))


@triton.jit
def gather_kernel(
    k,
    v,
    block_table,
    kv_indptr,
    last_page_len,
    page_ids,
    select_indptr,
    k_copy,
    v_copy,
    page_ids_stride,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One program: the selected pages of one query head of one request, copied side by side."""
    head = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    dim = tl.arange(0, HEAD_DIM)[None, :]
    slot = tl.arange(0, TILE)[:, None]
    for entry in range(tl.load(select_indptr + request), tl.load(select_indptr + request + 1)):
        logical = tl.load(page_ids + head * page_ids_stride + entry)
        physical = tl.load(block_table + start + logical).to(tl.int64)
        source = ((physical * NUM_KV_HEADS + head // GROUP) * PAGE_SIZE + slot) * HEAD_DIM + dim
        target = ((head * page_ids_stride + entry) * PAGE_SIZE + slot) * HEAD_DIM + dim
        valid = slot < tl.where(logical == num_pages - 1, tail_len, PAGE_SIZE)
        tl.store(k_copy + target, tl.load(k + source, mask=valid), mask=valid)
        tl.store(v_copy + target, tl.load(v + source, mask=valid), mask=valid)


@triton.jit
def score_kernel(
    q,
    summary,
    table,  # of pages or of blocks, with its indptr
    indptr,
    kv_indptr,
    scores,
    q_batch_stride,
    q_head_stride,
    scores_stride,
    piece_stride,
    head_stride,
    dim_stride,
    bound_stride,
    FAULT: tl.constexpr,
    GROUP: tl.constexpr,
    BOTH: tl.constexpr,  # bounds read; otherwise the one that the sign of q asks for
    PIECE_PAGES: tl.constexpr,  # logical pages that an entry of the table stands for
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One program: one query head of one request, TILE pages at a time."""
    head = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    dim = tl.arange(0, HEAD_DIM)[None, :]
    query = tl.load(q + request * q_batch_stride + head * q_head_stride + dim).to(tl.float32)
    pieces = table + tl.load(indptr + request)
    for first in range(0, num_pages, TILE):
        page = first + tl.arange(0, TILE)[:, None]
        there = page < num_pages
        boxed = page - page if FAULT == "no_summary" else page
        piece = tl.load(pieces + boxed // PIECE_PAGES, mask=there, other=0).to(tl.int64)
        box = piece * piece_stride + boxed % PIECE_PAGES + head // GROUP * head_stride + dim * dim_stride
        asks = query < 0
        lower = tl.load(summary + box, mask=there & (asks | BOTH), other=0.0).to(tl.float32)
        upper = tl.load(summary + box + bound_stride, mask=there & (~asks | BOTH), other=0.0).to(tl.float32)
        score = tl.sum(query * tl.where(asks, lower, upper), axis=1, keep_dims=True)
        tl.store(scores + head * scores_stride + start + page, score, mask=there)


@triton.jit
def repeat_kernel(page_ids, select_indptr, stride):
    """One program: the second id of one query head of one request becomes its first."""
    row = page_ids + tl.program_id(0).to(tl.int64) * stride
    first = tl.load(select_indptr + tl.program_id(1))
    several = tl.load(select_indptr + tl.program_id(1) + 1) - first > 1
    tl.store(row + first + 1, tl.load(row + first, mask=several, other=0), mask=several)


Launcher = Callable[..., None]


def attend(fault: str) -> Launcher:
    """Stage `attend` of `attend_kernel`, wrong as `fault` says; right for an empty one."""

    def launch(
        q: torch.Tensor,
        cache: PagedCache,
        page_ids: torch.Tensor,
        select_indptr: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scratch: torch.Tensor,
    ) -> None:
        pool, grid = cache.pool, (q.shape[1], cache.batch_size)
        k, v, sizes = pool.k, pool.v, _sizes(q, cache)
        common = (cache.block_table, cache.kv_indptr, cache.last_page_len)
        if fault == "gather":
            shape = (*page_ids.shape, pool.page_size, pool.head_dim)
            k, v = (torch.empty(shape, dtype=t.dtype, device=t.device) for t in (k, v))
            picks = (page_ids, select_indptr)
            gather_kernel[grid](pool.k, pool.v, *common, *picks, k, v, page_ids.stride(0), **sizes)
        attend_kernel[grid](
            q,
            k,
            v,
            *common,
            page_ids,
            select_indptr,
            out,
            lse,
            pool.head_dim**-0.5,
            page_ids.stride(0),
            *q.stride()[:2],
            pool.num_pages * pool.num_kv_heads * pool.page_size,
            FAULT=fault,
            MOST=next_power_of_2(max(1, page_ids.shape[1])),
            **sizes,
        )

    return launch


def score(fault: str) -> Launcher:
    """Stage `score` of `score_kernel` over either summary layout, wrong as `fault` says."""

    def launch(q: torch.Tensor, cache: PagedCache, scores: torch.Tensor) -> None:
        data = cache.pool.summary.data
        if cache.pool.summary.layout == "paired":
            table, indptr, pages = cache.block_table, cache.kv_indptr, 1
            piece, head, bound, dim = data.stride()
        else:
            table, indptr, pages = cache.summary_table, cache.summary_indptr, data.shape[-1]
            piece, head, dim, bound, _ = data.stride()
        score_kernel[q.shape[1], cache.batch_size](
            q,
            data,
            table,
            indptr,
            cache.kv_indptr,
            scores,
            *q.stride()[:2],
            scores.stride(0),
            *(piece, head, dim, bound),
            FAULT=fault,
            GROUP=q.shape[1] // cache.pool.num_kv_heads,
            BOTH=pages == 1,
            PIECE_PAGES=pages,
            TILE=32,
            HEAD_DIM=cache.pool.head_dim,
        )

    return launch


def repeating_select(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool = True,
) -> None:
    """The project's `select`, then one id of every head and request written twice."""
    project.select(scores, cache, select_indptr, page_ids, take_tail)
    repeat_kernel[page_ids.shape[0], cache.batch_size](page_ids, select_indptr, page_ids.stride(0))


def _sizes(q: torch.Tensor, cache: PagedCache) -> dict[str, Any]:
    pool = cache.pool
    return {
        "GROUP": q.shape[1] // pool.num_kv_heads,
        "NUM_KV_HEADS": pool.num_kv_heads,
        "PAGE_SIZE": pool.page_size,
        "TILE": next_power_of_2(pool.page_size),
        "HEAD_DIM": pool.head_dim,
    }

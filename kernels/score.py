"""Stage `score`: the upper bound U_p of every page for every query head, equations (2)-(4).

Over a paired summary both bounds are read: u_j = max(q_j m_j, q_j M_j). Over a transposed one u_j is q_j m_j
where q_j < 0 and q_j M_j elsewhere, the same number for a finite box with m_j <= M_j; a row of bounds that no
query head of the group asks for is not read. With infinite keys or queries the two may differ: 0 x inf is NaN
from either bound of a pair, and from the row that is read alone.

A NaN key has no bounds (stage append): its page's score is infinite, or NaN where q_j is 0, and select takes
either before any number. A NaN in one row of a transposed summary alone shows for the query heads that ask
for this row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_grid, check_queries, check_rows
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import (
    SUMMARY_BLOCK_PAGES,
    ScorePlan,
    next_power_of_2,
    plan_score,
    plan_score_transposed,
)
from questprof_kernels.words import TRITON_DTYPES, as_words, high, low


@triton.jit
def score_kernel(
    q,
    summary,  # int32 words
    block_table,
    kv_indptr,
    scores,
    q_batch_stride,
    q_head_stride,
    q_dim_stride,
    scores_stride,
    num_kv_heads,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,  # GROUP padded to a power of two
    DTYPE: tl.constexpr,  # of the summary
    PACKED: tl.constexpr,  # numbers a word
    WORDS: tl.constexpr,  # of one bound
    TILE_PAGES: tl.constexpr,
):
    """One program: every grid[0]-th tile of TILE_PAGES pages of one request and KV head.

    A box is read once for all query heads of the group, and one tile ahead; its physical page two tiles
    ahead. Axes of a tile are [page, member of the group, word].
    """
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    members = tl.arange(0, MEMBERS)[None, :, None]
    word = tl.arange(0, WORDS)[None, None, :]
    q_rows = q + request * q_batch_stride + (kv_head * GROUP + members) * q_head_stride
    q_low = tl.load(q_rows + word * PACKED * q_dim_stride, mask=members < GROUP, other=0.0).to(tl.float32)
    q_odd = q_rows + (word * PACKED + PACKED - 1) * q_dim_stride
    q_high = tl.load(q_odd, mask=members < GROUP, other=0.0).to(tl.float32)
    boxes = summary + kv_head * (2 * WORDS) + word
    page_words = tl.cast(num_kv_heads, tl.int64) * (2 * WORDS)
    table = block_table + start
    out = scores + (kv_head * GROUP + members) * scores_stride + start
    step = tl.num_programs(0) * TILE_PAGES
    page = tl.program_id(0) * TILE_PAGES + tl.arange(0, TILE_PAGES)[:, None, None]
    physical = tl.load(table + page, mask=page < num_pages, other=0)
    lower, upper = _load_boxes(boxes, physical * page_words, page < num_pages, WORDS)
    following = page + step
    physical = tl.load(table + following, mask=following < num_pages, other=0)
    for _ in range(tl.program_id(0) * TILE_PAGES, num_pages, step):
        bound = _corner(q_low, low(lower, DTYPE), low(upper, DTYPE))
        if PACKED == 2:
            bound += _corner(q_high, high(lower, DTYPE), high(upper, DTYPE))
        lower, upper = _load_boxes(boxes, physical * page_words, following < num_pages, WORDS)
        score = tl.sum(bound, axis=2, keep_dims=True)
        tl.store(out + page, score, mask=(page < num_pages) & (members < GROUP))
        page = following
        following += step
        physical = tl.load(table + following, mask=following < num_pages, other=0)


@triton.jit
def _load_boxes(boxes, place, there, WORDS: tl.constexpr):
    """(min, max) of the boxes at `place`, [TILE_PAGES, 1, WORDS] each."""
    box = boxes + place
    return tl.load(box, mask=there, other=0), tl.load(box + WORDS, mask=there, other=0)


@triton.jit
def _corner(q, lower, upper):
    """Equation (2): the larger of q * lower and q * upper; a NaN stays."""
    return tl.maximum(q * lower, q * upper, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def score_transposed_kernel(
    q,
    summary,  # int32 words
    summary_table,
    summary_indptr,
    kv_indptr,
    scores,
    q_batch_stride,
    q_head_stride,
    q_dim_stride,
    scores_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,  # GROUP padded to a power of two
    DTYPE: tl.constexpr,  # of the summary
    PACKED: tl.constexpr,  # numbers a word
    HEAD_DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    TILE_PAGES: tl.constexpr,
):
    """One program: every grid[0]-th tile of TILE_PAGES pages of one request and KV head.

    A tile lies in one block. Its rows are read one tile ahead, its block number two. Axes are [dim, word].
    """
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    table = summary_table + tl.load(summary_indptr + request)
    dim = tl.arange(0, HEAD_DIM)[:, None]
    q_rows = q + request * q_batch_stride + kv_head * GROUP * q_head_stride + dim * q_dim_stride
    member = tl.arange(0, MEMBERS)[None, :]
    group = tl.load(q_rows + member * q_head_stride, mask=member < GROUP, other=0.0).to(tl.float32)
    asks_lower = (member < GROUP) & (group < 0)
    asks_upper = (member < GROUP) & ((group >= 0) | (group != group))
    ask_lower = tl.max(asks_lower.to(tl.int32), axis=1, keep_dims=True) > 0
    ask_upper = tl.max(asks_upper.to(tl.int32), axis=1, keep_dims=True) > 0
    BLOCK: tl.constexpr = NUM_KV_HEADS * HEAD_DIM * 2 * (BLOCK_PAGES // PACKED)  # words
    ROW: tl.constexpr = BLOCK_PAGES // PACKED
    rows = summary + (kv_head * HEAD_DIM + dim) * (2 * ROW) + tl.arange(0, TILE_PAGES // PACKED)[None, :]
    out = scores + kv_head * GROUP * scores_stride + start
    step = tl.num_programs(0) * TILE_PAGES
    page = tl.program_id(0) * TILE_PAGES
    block = tl.load(table + page // BLOCK_PAGES, mask=page < num_pages, other=0)
    tile = rows + block.to(tl.int64) * BLOCK + page % BLOCK_PAGES // PACKED
    there = _quads(page, TILE_PAGES, PACKED) < num_pages
    lower, upper = _load_rows(tile, ROW, there, ask_lower, ask_upper, GROUP)
    block = tl.load(table + (page + step) // BLOCK_PAGES, mask=page + step < num_pages, other=0)
    for page in range(tl.program_id(0) * TILE_PAGES, num_pages, step):
        following = page + step
        tile = rows + block.to(tl.int64) * BLOCK + following % BLOCK_PAGES // PACKED
        there = _quads(following, TILE_PAGES, PACKED) < num_pages
        next_lower, next_upper = _load_rows(tile, ROW, there, ask_lower, ask_upper, GROUP)
        block = tl.load(table + (following + step) // BLOCK_PAGES, mask=following + step < num_pages, other=0)
        pages = page + tl.arange(0, TILE_PAGES)
        for i in tl.static_range(GROUP):
            one = tl.load(q_rows + i * q_head_stride).to(tl.float32)
            words = upper if GROUP == 1 else tl.where(one < 0, lower, upper)
            score = tl.sum(one * low(words, DTYPE), axis=0)
            if PACKED == 2:
                score = tl.interleave(score, tl.sum(one * high(words, DTYPE), axis=0))
            tl.store(out + i * scores_stride + pages, score, mask=pages < num_pages)
        lower, upper = next_lower, next_upper


@triton.jit
def _quads(page, TILE_PAGES: tl.constexpr, PACKED: tl.constexpr):
    """First page of the 16 bytes that each word of a tile at `page` lies in, [1, words]."""
    word = tl.arange(0, TILE_PAGES // PACKED)[None, :]
    return page + word // 4 * (4 * PACKED)


@triton.jit
def _load_rows(tile, ROW: tl.constexpr, there, ask_lower, ask_upper, GROUP: tl.constexpr):
    """(min, max) rows of a tile, [HEAD_DIM, words] each; what nobody asks for is 0 and not read.

    For a single query head both are the row that it asks for.
    """
    if GROUP == 1:
        picked = tl.load(tile + ask_upper.to(tl.int32) * ROW, mask=there, other=0)
        return picked, picked
    else:
        lower = tl.load(tile, mask=there & ask_lower, other=0)
        return lower, tl.load(tile + ROW, mask=there & ask_upper, other=0)


def constants(
    plan: ScorePlan, *, group_size: int, head_dim: int, summary_dtype: torch.dtype
) -> dict[str, Any]:
    """Compile-time parameters and launch options of `score_kernel`."""
    packed = 4 // summary_dtype.itemsize
    return {
        "GROUP": group_size,
        "MEMBERS": next_power_of_2(group_size),
        "DTYPE": TRITON_DTYPES[summary_dtype],
        "PACKED": packed,
        "WORDS": head_dim // packed,
        "TILE_PAGES": plan.tile_pages,
        "num_warps": plan.num_warps,
    }


def transposed_constants(
    plan: ScorePlan, *, num_kv_heads: int, group_size: int, head_dim: int, summary_dtype: torch.dtype
) -> dict[str, Any]:
    """Compile-time parameters and launch options of `score_transposed_kernel`."""
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group_size,
        "MEMBERS": next_power_of_2(group_size),
        "DTYPE": TRITON_DTYPES[summary_dtype],
        "PACKED": 4 // summary_dtype.itemsize,
        "HEAD_DIM": head_dim,
        "BLOCK_PAGES": SUMMARY_BLOCK_PAGES,
        "TILE_PAGES": plan.tile_pages,
        "num_warps": plan.num_warps,
    }


def score_plan(cache: PagedCache, **overrides: int) -> ScorePlan:
    """The plan `score` makes for `cache`.

    `overrides` as `plan_score` takes them, over a transposed summary as `plan_score_transposed` does.
    """
    sizes = {
        "num_kv_heads": cache.pool.num_kv_heads,
        "batch_size": cache.batch_size,
        "max_pages": cache.max_pages,
        "num_workers": cache.pool.num_workers,
        **overrides,
    }
    if cache.pool.summary.layout == "paired":
        return plan_score(head_dim=cache.pool.head_dim, **sizes)
    return plan_score_transposed(element_bytes=cache.pool.summary.dtype.itemsize, **sizes)


def score(q: torch.Tensor, cache: PagedCache, scores: torch.Tensor, *, plan: ScorePlan | None = None) -> None:
    """Write U_p of equation (3), unscaled, of each (query head, logical page), in either summary layout.

    `q` [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; `scores` fp32 [num_qo_heads,
    >= total_pages], flat logical pages, ragged by kv_indptr. A NaN key makes a score infinite or NaN.
    Raises TypeError on a wrong dtype, ValueError on a wrong shape, device or stride.
    """
    check_queries(q, cache)
    check_rows("scores", scores, q.shape[1], cache.total_pages, torch.float32, q.device)
    pool = cache.pool
    group_size = q.shape[1] // pool.num_kv_heads
    plan = plan or score_plan(cache)
    check_grid(plan.grid, pool.num_kv_heads, cache.batch_size)
    shape = {"group_size": group_size, "head_dim": pool.head_dim, "summary_dtype": pool.summary.dtype}
    words, strides = as_words(pool.summary.data), (*q.stride(), scores.stride(0))
    if pool.summary.layout == "paired":
        tables = cache.block_table, cache.kv_indptr
        score_kernel[plan.grid](
            q, words, *tables, scores, *strides, pool.num_kv_heads, **constants(plan, **shape)
        )
    else:
        tables = cache.summary_table, cache.summary_indptr, cache.kv_indptr
        options = transposed_constants(plan, num_kv_heads=pool.num_kv_heads, **shape)
        score_transposed_kernel[plan.grid](q, words, *tables, scores, *strides, **options)

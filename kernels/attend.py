"""Stage `attend`: exact attention over the selected pages, equation (6), read in place.

Split-KV: a request's pages are cut into splits, one program each, and the last program to finish merges.
A thread row keeps its own online softmax over every ROWS-th token, so that the loop exchanges nothing
between warps: 16-byte loads go straight to registers and warps drift apart as memory serves them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_grid, check_outputs, check_queries, check_rows, check_tensor
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import AttentionPlan, ceil_div, plan_attention
from questprof_kernels.softmax import LOG2_E, finish_split, running_max, split_bounds
from questprof_kernels.words import as_words, high, low


@triton.jit
def locate(
    line,  # slots on the request's line of pages to attend, any shape
    end,
    page_ids,
    table,
    num_pages,
    last_page_len,
    kv_head,
    SELECTED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
):
    """(row of K and V at each slot of the line, int64; valid tokens from there to the end of its page)."""
    entry = line // TILE_SLOTS
    slot = line % TILE_SLOTS
    there = entry < end
    if SELECTED:
        logical = tl.load(page_ids + entry, mask=there, other=0)
    else:
        logical = entry
    physical = tl.load(table + logical, mask=there, other=0).to(tl.int64)
    page_len = tl.where(logical == num_pages - 1, last_page_len, PAGE_SIZE)
    return (physical * NUM_KV_HEADS + kv_head) * PAGE_SIZE + slot, tl.where(there, page_len - slot, 0)


@triton.jit
def attend_rows(
    q,  # this head's row
    q_dim_stride,
    scale_log2,
    k,  # int32 words
    v,
    page_ids,
    table,
    first,
    end,
    num_pages,
    last_page_len,
    kv_head,
    SELECTED: tl.constexpr,
    DTYPE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """State (acc [1, HEAD_DIM], top [1], total [1]) of one query head over entries first..end of its pages.

    Each of ROWS thread rows takes DEPTH tokens in a line, of one page where pages are long enough, and looks
    that page up once. K and V are requested one tile ahead, as soon as their registers are free, and looked
    up two tiles ahead.
    """
    PACKED: tl.constexpr = 32 // DTYPE.primitive_bitwidth  # numbers a word
    WORDS: tl.constexpr = HEAD_DIM // PACKED
    DEPTH: tl.constexpr = TILE_TOKENS // ROWS
    word = tl.arange(0, WORDS)[None, :]
    q_low = tl.load(q + word * PACKED * q_dim_stride).to(tl.float32) * scale_log2
    q_high = tl.load(q + (word * PACKED + PACKED - 1) * q_dim_stride).to(tl.float32) * scale_log2
    line = first * TILE_SLOTS + tl.arange(0, ROWS)[None, :] * DEPTH
    if DEPTH <= TILE_SLOTS:
        inner = tl.arange(0, DEPTH)[:, None]
    else:
        line += tl.arange(0, DEPTH)[:, None]
        inner = tl.zeros([DEPTH, 1], tl.int32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc_low = tl.zeros([ROWS, WORDS], tl.float32)
    acc_high = tl.zeros([ROWS, WORDS], tl.float32)
    row, count = locate(
        line, end, page_ids, table, num_pages, last_page_len, kv_head,
        SELECTED, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS,
    )  # fmt: skip
    where = tl.reshape(row + inner, [TILE_TOKENS, 1]) * WORDS + word
    there = tl.reshape(inner < count, [TILE_TOKENS, 1])
    keys = tl.load(k + where, mask=there, other=0)
    values = tl.load(v + where, mask=there, other=0)
    line += TILE_TOKENS
    row, next_count = locate(
        line, end, page_ids, table, num_pages, last_page_len, kv_head,
        SELECTED, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS,
    )  # fmt: skip
    for _ in range(first * TILE_SLOTS, end * TILE_SLOTS, TILE_TOKENS):
        products = q_low * low(keys, DTYPE)
        if PACKED == 2:
            products += q_high * high(keys, DTYPE)
        logits = tl.sum(products, axis=1, keep_dims=True)
        logits = tl.where(tl.reshape(inner < count, [TILE_TOKENS, 1]), logits, float("-inf"))
        logits = tl.reshape(logits, [DEPTH, ROWS])
        where = tl.reshape(row + inner, [TILE_TOKENS, 1]) * WORDS + word
        there = tl.reshape(inner < next_count, [TILE_TOKENS, 1])
        keys = tl.load(k + where, mask=there, other=0)
        top, base, rescale = running_max(top, tl.max(logits, axis=0))
        weights = tl.exp2(logits - base[None, :])
        total = total * rescale + tl.sum(weights, axis=0)
        numbers = tl.reshape(low(values, DTYPE), [DEPTH, ROWS, WORDS])
        acc_low = acc_low * rescale[:, None] + tl.sum(weights[:, :, None] * numbers, axis=0)
        if PACKED == 2:
            numbers = tl.reshape(high(values, DTYPE), [DEPTH, ROWS, WORDS])
            acc_high = acc_high * rescale[:, None] + tl.sum(weights[:, :, None] * numbers, axis=0)
        values = tl.load(v + where, mask=there, other=0)
        count = next_count
        line += TILE_TOKENS
        row, next_count = locate(
            line, end, page_ids, table, num_pages, last_page_len, kv_head,
            SELECTED, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS,
        )  # fmt: skip
    highest, base, _ = running_max(tl.max(top, axis=0), float("-inf"))
    weights = tl.exp2(top - base)
    one = tl.zeros([1], tl.float32)
    acc = tl.sum(acc_low * weights[:, None], axis=0)
    if PACKED == 2:
        acc = tl.interleave(acc, tl.sum(acc_high * weights[:, None], axis=0))
    return acc[None, :], one + highest, one + tl.sum(total * weights, axis=0)


@triton.jit
def attend_kernel(
    q,
    k,  # int32 words
    v,
    block_table,
    kv_indptr,
    last_page_len,
    page_ids,
    select_indptr,
    out,
    lse,
    scratch,
    counters,
    scale_log2,
    page_ids_stride,
    q_batch_stride,
    q_head_stride,
    q_dim_stride,
    out_batch_stride,
    out_head_stride,
    out_dim_stride,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MERGE_STEP: tl.constexpr,
):
    """One program: one split of the selected pages of one query head of one request."""
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    first_id = tl.load(select_indptr + request)
    num_selected = tl.load(select_indptr + request + 1) - first_id
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    first, end, active = split_bounds(num_selected, NUM_SPLITS)
    if tl.program_id(0) >= active:
        return
    acc, top, total = attend_rows(
        q + request * q_batch_stride + head * q_head_stride, q_dim_stride, scale_log2, k, v,
        page_ids + head * page_ids_stride + first_id, block_table + start, first, end, num_pages, tail_len,
        head // GROUP, True, q.dtype.element_ty, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS, HEAD_DIM, TILE_TOKENS,
        ROWS,
    )  # fmt: skip
    finish_split(
        acc, top, total, out + request * out_batch_stride + head * out_head_stride,
        lse + request * tl.num_programs(1) + head, out_head_stride, out_dim_stride, scratch, counters,
        active, 1, 1, HEAD_DIM, NUM_SPLITS, 1, MERGE_STEP,
    )  # fmt: skip


def constants(plan: AttentionPlan, *, group_size: int, num_kv_heads: int, page_size: int) -> dict[str, Any]:
    """Compile-time parameters and launch options of `attend_kernel`."""
    return {
        "GROUP": group_size,
        "NUM_KV_HEADS": num_kv_heads,
        "PAGE_SIZE": page_size,
        "HEAD_DIM": plan.head_dim,
        "TILE_SLOTS": plan.tile_slots,
        "TILE_TOKENS": plan.tile_tokens,
        "ROWS": plan.tile_rows,
        "NUM_SPLITS": plan.num_splits,
        "MERGE_STEP": plan.merge_step,
        "num_warps": plan.num_warps,
        "num_stages": plan.num_stages,
    }


def attend_plan(
    q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, **overrides: int
) -> AttentionPlan:
    """The plan `attend` makes for these tensors; its `scratch_floats` sizes the scratch.

    `overrides` as `plan_attention` takes them.
    """
    return plan_attention(
        num_qo_heads=q.shape[1],
        num_kv_heads=cache.pool.num_kv_heads,
        per_query_head=True,
        head_dim=cache.pool.head_dim,
        page_size=cache.pool.page_size,
        batch_size=cache.batch_size,
        pages_per_request=ceil_div(page_ids.shape[1], cache.batch_size),
        num_workers=cache.pool.num_workers,
        element_bytes=cache.pool.k.element_size(),
        **overrides,
    )


def attend(
    q: torch.Tensor,
    cache: PagedCache,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
    *,
    plan: AttentionPlan | None = None,
) -> None:
    """Attention of equation (6) over the selected pages of each query head.

    `q`, `out` [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; `page_ids` int32
    [num_qo_heads, >= select_indptr[-1]], logical, in any order, no repeats; `select_indptr` int32
    [batch_size + 1]; `lse` fp32 [batch_size, num_qo_heads], natural log; `scratch` fp32, zero before the
    first launch, >= plan.scratch_floats. softmax_scale None is head_dim ** -0.5. A request without pages
    gives 0 and -inf. Raises TypeError on a wrong dtype, ValueError on a wrong shape, device or stride.
    """
    check_queries(q, cache)
    check_rows("page_ids", page_ids, q.shape[1], 0, torch.int32, q.device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, q.device)
    plan = plan or attend_plan(q, cache, page_ids)
    check_grid(plan.grid, q.shape[1], cache.batch_size)
    check_outputs(q, out, lse, scratch, plan.scratch_floats)
    pool = cache.pool
    scale = pool.head_dim**-0.5 if softmax_scale is None else softmax_scale
    attend_kernel[plan.grid](
        q,
        as_words(pool.k),
        as_words(pool.v),
        cache.block_table,
        cache.kv_indptr,
        cache.last_page_len,
        page_ids,
        select_indptr,
        out,
        lse,
        scratch,
        scratch.view(torch.int32),
        scale * LOG2_E,
        page_ids.stride(0),
        *q.stride(),
        *out.stride(),
        **constants(
            plan,
            group_size=q.shape[1] // pool.num_kv_heads,
            num_kv_heads=pool.num_kv_heads,
            page_size=pool.page_size,
        ),
    )

"""Stage `dense`: attention over all pages, read in place; the reads of equation (9).

With one query head per KV head it walks as `attend` does. A group of query heads shares one pass over K and V
as matrix products, the group padded to the 16 rows of a tensor-core tile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_grid, check_outputs, check_queries
from questprof_kernels.attend import attend_rows, locate
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import AttentionPlan, ceil_div, next_power_of_2, plan_attention
from questprof_kernels.softmax import LOG2_E, finish_split, running_max, split_bounds
from questprof_kernels.words import as_words

DOT_ROWS = 16  # the least rows of tl.dot


@triton.jit
def dense_kernel(
    q,
    k,  # int32 words
    v,
    block_table,
    kv_indptr,
    last_page_len,
    out,
    lse,
    scratch,
    counters,
    scale_log2,
    q_batch_stride,
    q_head_stride,
    q_dim_stride,
    out_batch_stride,
    out_head_stride,
    out_dim_stride,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MERGE_STEP: tl.constexpr,
):
    """One program: one split of the pages of one request for one query head, which owns its KV head."""
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    first, end, active = split_bounds(num_pages, NUM_SPLITS)
    if tl.program_id(0) >= active:
        return
    acc, top, total = attend_rows(
        q + request * q_batch_stride + head * q_head_stride, q_dim_stride, scale_log2, k, v, block_table,
        block_table + start, first, end, num_pages, tail_len, head, False, q.dtype.element_ty, NUM_KV_HEADS,
        PAGE_SIZE, TILE_SLOTS, HEAD_DIM, TILE_TOKENS, ROWS,
    )  # fmt: skip
    finish_split(
        acc, top, total, out + request * out_batch_stride + head * out_head_stride,
        lse + request * tl.num_programs(1) + head, out_head_stride, out_dim_stride, scratch, counters,
        active, 1, 1, HEAD_DIM, NUM_SPLITS, 1, MERGE_STEP,
    )  # fmt: skip


@triton.jit
def _product(a, b, acc, WIDEN: tl.constexpr):
    """Matrix product a b + acc in fp32; WIDEN, for an interpreter without bf16 products, changes no value."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def dense_group_kernel(
    q,
    k,
    v,
    block_table,
    kv_indptr,
    last_page_len,
    out,
    lse,
    scratch,
    counters,
    scale_log2,
    q_batch_stride,
    q_head_stride,
    q_dim_stride,
    out_batch_stride,
    out_head_stride,
    out_dim_stride,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,  # GROUP padded to a power of two of at least 16
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MERGE_HEADS: tl.constexpr,
    MERGE_STEP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One program: one split of the pages of one request for one KV head and its group of query heads."""
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    tail_len = tl.load(last_page_len + request)
    first, end, active = split_bounds(num_pages, NUM_SPLITS)
    if tl.program_id(0) >= active:
        return
    members = tl.arange(0, MEMBERS)
    dims = tl.arange(0, HEAD_DIM)
    heads = kv_head * GROUP + members
    q_rows = q + request * q_batch_stride + heads[:, None] * q_head_stride + dims[None, :] * q_dim_stride
    q_tile = tl.load(q_rows, mask=(members < GROUP)[:, None], other=0.0)
    top = tl.full([MEMBERS], float("-inf"), tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    acc = tl.zeros([MEMBERS, HEAD_DIM], tl.float32)
    line = first * TILE_SLOTS + tl.arange(0, TILE_TOKENS)
    row, count = locate(
        line, end, block_table, block_table + start, num_pages, tail_len, kv_head,
        False, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS,
    )  # fmt: skip
    for _ in range(first * TILE_SLOTS, end * TILE_SLOTS, TILE_TOKENS):
        valid = count > 0
        where = row[:, None] * HEAD_DIM + dims[None, :]
        keys = tl.load(k + where, mask=valid[:, None], other=0.0)
        values = tl.load(v + where, mask=valid[:, None], other=0.0)
        line += TILE_TOKENS
        row, count = locate(
            line, end, block_table, block_table + start, num_pages, tail_len, kv_head,
            False, NUM_KV_HEADS, PAGE_SIZE, TILE_SLOTS,
        )  # fmt: skip
        logits = tl.zeros([MEMBERS, TILE_TOKENS], tl.float32)
        logits = _product(q_tile, tl.trans(keys), logits, WIDEN) * scale_log2
        logits = tl.where(valid[None, :], logits, float("-inf"))
        top, base, rescale = running_max(top, tl.max(logits, axis=1))
        weights = tl.exp2(logits - base[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        acc = _product(weights.to(values.dtype), values, acc * rescale[:, None], WIDEN)
    finish_split(
        acc, top, total, out + request * out_batch_stride + kv_head * GROUP * out_head_stride,
        lse + (request * tl.num_programs(1) + kv_head) * GROUP, out_head_stride, out_dim_stride, scratch,
        counters, active, MEMBERS, GROUP, HEAD_DIM, NUM_SPLITS, MERGE_HEADS, MERGE_STEP,
    )  # fmt: skip


def constants(
    plan: AttentionPlan, *, num_kv_heads: int, page_size: int, widen: bool = False
) -> dict[str, Any]:
    """Compile-time parameters and launch options of the kernel that `kernel_of` names."""
    common = {
        "NUM_KV_HEADS": num_kv_heads,
        "PAGE_SIZE": page_size,
        "HEAD_DIM": plan.head_dim,
        "TILE_SLOTS": plan.tile_slots,
        "TILE_TOKENS": plan.tile_tokens,
        "NUM_SPLITS": plan.num_splits,
        "MERGE_STEP": plan.merge_step,
        "num_warps": plan.num_warps,
        "num_stages": plan.num_stages,
    }
    group = plan.heads_per_program
    if group == 1:
        return {**common, "ROWS": plan.tile_rows}
    padded = next_power_of_2(group)
    members = max(DOT_ROWS, padded)
    return {**common, "GROUP": group, "MEMBERS": members, "MERGE_HEADS": padded, "WIDEN": widen}


def kernel_of(plan: AttentionPlan) -> Any:
    """The kernel `dense` launches for `plan`."""
    return dense_kernel if plan.heads_per_program == 1 else dense_group_kernel


def dense_plan(q: torch.Tensor, cache: PagedCache, **overrides: int) -> AttentionPlan:
    """The plan `dense` makes for these tensors; its `scratch_floats` sizes the scratch.

    `overrides` as `plan_attention` takes them.
    """
    return plan_attention(
        num_qo_heads=q.shape[1],
        num_kv_heads=cache.pool.num_kv_heads,
        per_query_head=False,
        head_dim=cache.pool.head_dim,
        page_size=cache.pool.page_size,
        batch_size=cache.batch_size,
        pages_per_request=ceil_div(cache.total_pages, cache.batch_size),
        num_workers=cache.pool.num_workers,
        element_bytes=cache.pool.k.element_size(),
        **overrides,
    )


def dense(
    q: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
    *,
    plan: AttentionPlan | None = None,
) -> None:
    """Attention over all valid tokens of each request.

    `q`, `out` [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; `lse` fp32 [batch_size,
    num_qo_heads], natural log; `scratch` fp32, zero before the first launch, >= plan.scratch_floats.
    softmax_scale None is head_dim ** -0.5. An empty request gives 0 and -inf. Raises TypeError on a wrong
    dtype, ValueError on a wrong shape, device or stride.
    """
    check_queries(q, cache)
    plan = plan or dense_plan(q, cache)
    check_grid(plan.grid, cache.pool.num_kv_heads, cache.batch_size)
    check_outputs(q, out, lse, scratch, plan.scratch_floats)
    pool = cache.pool
    scale = pool.head_dim**-0.5 if softmax_scale is None else softmax_scale
    kernel = kernel_of(plan)
    widen = q.dtype == torch.bfloat16 and not isinstance(kernel, triton.JITFunction)
    k, v = (pool.k, pool.v) if kernel is dense_group_kernel else (as_words(pool.k), as_words(pool.v))
    kernel[plan.grid](
        q,
        k,
        v,
        cache.block_table,
        cache.kv_indptr,
        cache.last_page_len,
        out,
        lse,
        scratch,
        scratch.view(torch.int32),
        scale * LOG2_E,
        *q.stride(),
        *out.stride(),
        **constants(plan, num_kv_heads=pool.num_kv_heads, page_size=pool.page_size, widen=widen),
    )

"""Device functions that `attend` and `dense` share: the online softmax and the merge of the splits.

Logits are in units of log2 (softmax_scale * log2(e) is folded into them), so that exp2 serves. A state
(acc, top, total) is the weighted sum of V, the running maximum and the sum of exp2(logit - top).

Scratch of a launch, fp32: the arrival counters (int32, zero between launches), one per (request, head
program), rounded up to four; then acc [counter, head, split, head_dim]; then (top, total) [counter, head,
split, 2].
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def running_max(top, row_max):
    """(new maximum, what to subtract from logits, factor on what was summed before); -inf means no token."""
    new_top = tl.maximum(top, row_max)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    return new_top, base, tl.exp2(top - base)


@triton.jit
def write_output(
    acc, top, total, out, lse, out_head_stride, out_dim_stride, HEADS: tl.constexpr, NUM_HEADS: tl.constexpr
):
    """Write acc / total and the natural lse of the first NUM_HEADS rows; without a token 0 and -inf."""
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, acc.shape[1])
    mask = heads < NUM_HEADS
    divisor = tl.where(total == 0.0, 1.0, total)
    rows = out + heads[:, None] * out_head_stride + dims[None, :] * out_dim_stride
    tl.store(rows, (acc / divisor[:, None]).to(out.dtype.element_ty), mask=mask[:, None])
    tl.store(lse + heads, tl.where(total == 0.0, float("-inf"), (top + tl.log2(divisor)) * LN_2), mask=mask)


@triton.jit
def split_bounds(num_pages, NUM_SPLITS: tl.constexpr):
    """(first page, end, active splits) of this program's split of `num_pages` pages to attend."""
    pages_per_split = tl.maximum(tl.cdiv(num_pages, NUM_SPLITS), 1)
    first = tl.program_id(0) * pages_per_split
    end = tl.minimum(first + pages_per_split, num_pages)
    return first, end, tl.maximum(tl.cdiv(num_pages, pages_per_split), 1)


@triton.jit
def finish_split(
    acc,  # [HEADS, HEAD_DIM]
    top,  # [HEADS]
    total,
    out,  # this head program's first row of the output and of lse
    lse,
    out_head_stride,
    out_dim_stride,
    scratch,
    counters,
    active,
    HEADS: tl.constexpr,  # rows of the state
    NUM_HEADS: tl.constexpr,  # rows that are heads
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MERGE_HEADS: tl.constexpr,  # NUM_HEADS rounded up to a power of two
    MERGE_STEP: tl.constexpr,  # splits one step of the merge reads
):
    """Write the output of the only active split, or this split's partial; the last to arrive merges all.

    Splits merge in their order, whoever merges, so that a result does not depend on timing.
    """
    if active == 1:
        write_output(acc, top, total, out, lse, out_head_stride, out_dim_stride, HEADS, NUM_HEADS)
    else:
        program = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        num_programs = tl.num_programs(1) * tl.num_programs(2)
        accs = scratch + tl.cdiv(num_programs, 4) * 4
        sums = accs + num_programs * (NUM_HEADS * NUM_SPLITS * HEAD_DIM)
        _store_partial(acc, top, total, accs, sums, program, HEADS, NUM_HEADS, HEAD_DIM, NUM_SPLITS)
        tl.debug_barrier()  # every thread's partial is written before one thread releases it
        arrived = tl.atomic_add(counters + program, 1, sem="acq_rel")
        if arrived == active - 1:
            all_acc, all_top, all_total = _merge(
                accs, sums, program, active, NUM_HEADS, HEAD_DIM, NUM_SPLITS, MERGE_HEADS, MERGE_STEP
            )
            write_output(
                all_acc, all_top, all_total, out, lse, out_head_stride, out_dim_stride, MERGE_HEADS, NUM_HEADS
            )
            tl.store(counters + program, 0)


@triton.jit
def _store_partial(
    acc,
    top,
    total,
    accs,
    sums,
    program,
    HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, HEAD_DIM)
    mask = heads < NUM_HEADS
    entry = (program * NUM_HEADS + heads) * NUM_SPLITS + tl.program_id(0)
    tl.store(accs + entry[:, None] * HEAD_DIM + dims[None, :], acc, mask=mask[:, None])
    tl.store(sums + entry * 2, top, mask=mask)
    tl.store(sums + entry * 2 + 1, total, mask=mask)


@triton.jit
def _merge(
    accs,
    sums,
    program,
    active,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MERGE_HEADS: tl.constexpr,
    MERGE_STEP: tl.constexpr,
):
    """State (acc, top, total) over all active splits, read past the L1 cache."""
    heads = tl.arange(0, MERGE_HEADS)
    dims = tl.arange(0, HEAD_DIM)
    top = tl.full([MERGE_HEADS], float("-inf"), tl.float32)
    total = tl.zeros([MERGE_HEADS], tl.float32)
    acc = tl.zeros([MERGE_HEADS, HEAD_DIM], tl.float32)
    for first in range(0, active, MERGE_STEP):
        splits = first + tl.arange(0, MERGE_STEP)
        there = (splits < active)[:, None] & (heads < NUM_HEADS)[None, :]
        entry = (program * NUM_HEADS + heads)[None, :] * NUM_SPLITS + splits[:, None]
        split_acc = tl.load(
            accs + entry[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        split_top = tl.load(sums + entry * 2, mask=there, other=float("-inf"), cache_modifier=".cg")
        split_total = tl.load(sums + entry * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        top, base, rescale = running_max(top, tl.max(split_top, axis=0))
        weight = tl.exp2(split_top - base[None, :])
        total = total * rescale + tl.sum(split_total * weight, axis=0)
        acc = acc * rescale[:, None] + tl.sum(split_acc * weight[:, :, None], axis=0)
    return acc, top, total

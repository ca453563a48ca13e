"""Stage `select`: the K best pages per query head, ascending, by bisection over ordered integer keys.

A score becomes a uint32 key of the same order (NaN on top, -0.0 like 0.0). The K-th largest key is found two
bits a round by counting keys above three thresholds, from the highest bit in which the keys differ, until
the bin in question is wanted whole; a last pass writes what lies above and the lowest pages of that bin.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_cache, check_grid, check_rows, check_tensor
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import SelectPlan, plan_select

COUNT_BITS = tl.constexpr(21)  # three counts share an int64
COUNT_MASK = tl.constexpr((1 << 21) - 1)


@triton.jit
def _keys(scores, first, num_pages, BLOCK: tl.constexpr):
    """Keys uint32 [BLOCK] of pages first.., ordered as their scores; past the end 0, which no score has."""
    page = first + tl.arange(0, BLOCK)
    score = tl.load(scores + page, mask=page < num_pages, other=0.0)
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.uint32, bitcast=True)
    key = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    key = tl.where(score != score, 0xFFFFFFFF, key)
    return tl.where(page < num_pages, key, 0)


@triton.jit
def _extremes(keys):
    """(least key of a page, largest key); slots without a page hold 0 and do not count."""
    return tl.min(tl.where(keys == 0, 0xFFFFFFFF, keys), axis=0), tl.max(keys, axis=0)


@triton.jit
def _count(keys, low, quarter):
    """How many keys reach low + 1, 2 and 3 quarters, packed into one int64."""
    one = (keys >= low + quarter).to(tl.int64)
    two = (keys >= low + 2 * quarter).to(tl.int64)
    three = (keys >= low + 3 * quarter).to(tl.int64)
    return tl.sum(one + (two << COUNT_BITS) + (three << (2 * COUNT_BITS)), axis=0)


@triton.jit
def _find_bin(keys, scores, num_pages, wanted, BLOCK: tl.constexpr):
    """(low, last, wanted of it): the bin of keys whose wanted-of-it lowest pages complete those above it.

    `low` and `mask` span the bin that holds the wanted-th largest key; `count` keys reach low, `above` of
    them lie above the bin. `keys` are those of the first block.
    """
    least, largest = _extremes(keys)
    for first in range(BLOCK, num_pages, BLOCK):
        block_least, block_largest = _extremes(_keys(scores, first, num_pages, BLOCK))
        least = tl.minimum(least, block_least)
        largest = tl.maximum(largest, block_largest)
    mask = least ^ largest
    mask |= mask >> 1
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    mask |= (mask & 0x55555555) << 1  # an even number of bits: whole rounds
    low = largest & (mask ^ 0xFFFFFFFF)
    count = num_pages
    above = num_pages - num_pages
    while (mask != 0) & (count > wanted):
        quarter = (mask >> 2) + 1
        packed = _count(keys, low, quarter)
        for first in range(BLOCK, num_pages, BLOCK):
            packed += _count(_keys(scores, first, num_pages, BLOCK), low, quarter)
        one = (packed & COUNT_MASK).to(tl.int32)
        two = ((packed >> COUNT_BITS) & COUNT_MASK).to(tl.int32)
        three = (packed >> (2 * COUNT_BITS)).to(tl.int32)
        in_two, in_three, in_four = one >= wanted, two >= wanted, three >= wanted
        above = tl.where(in_four, above, tl.where(in_three, three, tl.where(in_two, two, one)))
        count = tl.where(in_four, three, tl.where(in_three, two, tl.where(in_two, one, count)))
        low += quarter * (in_two.to(tl.uint32) + in_three.to(tl.uint32) + in_four.to(tl.uint32))
        mask >>= 2
    return low, low | mask, wanted - above


@triton.jit
def _write(keys, page_ids, first, low, last, wanted, num_above, num_inside, BLOCK: tl.constexpr):
    """Write the taken pages of the block that starts at page `first`; returns the two running counts.

    Taken are all keys above `last` and the first `wanted` ones of low..last; `num_above` and `num_inside`
    count those of the blocks before.
    """
    above = (keys > last).to(tl.int32)
    inside = ((keys >= low) & (keys <= last) & (keys != 0)).to(tl.int32)
    before = tl.cumsum(above + (inside << 16), axis=0) - (above + (inside << 16))
    above_rank = num_above + (before & 0xFFFF)
    inside_rank = num_inside + (before >> 16)
    taken = (above != 0) | ((inside != 0) & (inside_rank < wanted))
    position = above_rank + tl.minimum(inside_rank, wanted)
    tl.store(page_ids + position, first + tl.arange(0, BLOCK), mask=taken)
    return num_above + tl.sum(above, axis=0), num_inside + tl.sum(inside, axis=0)


@triton.jit
def select_kernel(
    scores,
    kv_indptr,
    select_indptr,
    page_ids,
    scores_stride,
    page_ids_stride,
    TAKE_TAIL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: one query head of one request."""
    head = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    first_id = tl.load(select_indptr + request)
    wanted = tl.load(select_indptr + request + 1) - first_id
    if wanted <= 0:
        return
    scores += head * scores_stride + start
    page_ids += head * page_ids_stride + first_id
    if TAKE_TAIL:  # the tail page does not compete
        num_pages -= 1
        wanted -= 1
        tl.store(page_ids + wanted, num_pages)
    keys = _keys(scores, 0, num_pages, BLOCK)
    low, last, wanted = _find_bin(keys, scores, num_pages, wanted, BLOCK)
    num_above, num_inside = _write(keys, page_ids, 0, low, last, wanted, 0, 0, BLOCK)
    for first in range(BLOCK, num_pages, BLOCK):
        keys = _keys(scores, first, num_pages, BLOCK)
        num_above, num_inside = _write(keys, page_ids, first, low, last, wanted, num_above, num_inside, BLOCK)


def constants(plan: SelectPlan, *, take_tail: bool) -> dict[str, Any]:
    """Compile-time parameters and launch options of `select_kernel`."""
    return {"TAKE_TAIL": take_tail, "BLOCK": plan.block, "num_warps": plan.num_warps}


def select_plan(cache: PagedCache, num_qo_heads: int, **overrides: int) -> SelectPlan:
    """The plan `select` makes for `cache`; `overrides` as `plan_select` takes them."""
    return plan_select(
        num_qo_heads=num_qo_heads, batch_size=cache.batch_size, max_pages=cache.max_pages, **overrides
    )


def select(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool = True,
    *,
    plan: SelectPlan | None = None,
) -> None:
    """Write the K_r best pages of each query head and request r, logical ids, ascending.

    `scores` fp32 [num_qo_heads, >= total_pages]; `select_indptr` int32 [batch_size + 1] with K_r <= P_r;
    `page_ids` int32 [num_qo_heads, >= select_indptr[-1]]. A NaN score ranks above every number; equal scores
    go to the lower page. `take_tail`: the last page is always taken and counts in K_r (the rule of the
    official kernels); without it all pages compete. Raises TypeError on a wrong dtype, ValueError on a wrong
    shape, device or stride.
    """
    check_cache(cache)
    device = cache.pool.k.device
    check_rows("scores", scores, scores.shape[0], cache.total_pages, torch.float32, device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, device)
    check_rows("page_ids", page_ids, scores.shape[0], 0, torch.int32, device)
    plan = plan or select_plan(cache, scores.shape[0])
    check_grid(plan.grid, scores.shape[0], cache.batch_size)
    select_kernel[plan.grid](
        scores,
        cache.kv_indptr,
        select_indptr,
        page_ids,
        scores.stride(0),
        page_ids.stride(0),
        **constants(plan, take_tail=take_tail),
    )

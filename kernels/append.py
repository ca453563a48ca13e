"""Stages `append` and `append_kv`: write the newest tokens' K and V, with and without the page summaries.

The summary follows equations (1), (8) and (14): a page without older tokens gets the box of its new keys, a
tail page in use has its box widened by them. Only new keys and that one box are read, whatever the length.
A NaN key leaves the box unbounded in its dimension, -inf to inf: neither it nor a later number bounds it.

A program writes a run of pages of one KV head. In the paired layout a box is two contiguous vectors. In the
transposed one its numbers lie a row apart: a token that widens the tail writes 2 bytes (of a 16-bit summary)
at 2 * head_dim places, which no launch can avoid; a prefill gathers the boxes of its run first and writes
each row's share of them at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_cache, check_grid, check_tensor
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, AppendPlan, ceil_div, plan_append


@triton.jit
def append_kernel(
    keys,
    values,
    k,
    v,
    summary,
    block_table,
    kv_indptr,
    last_page_len,
    summary_table,
    summary_indptr,
    new_indptr,
    keys_token_stride,
    keys_head_stride,
    keys_dim_stride,
    values_token_stride,
    values_head_stride,
    values_dim_stride,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    RUN_PAGES: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    LAYOUT: tl.constexpr,  # of the summary; "none" leaves it alone
):
    """One program: every grid[0]-th run of RUN_PAGES touched pages of one request for one KV head.

    Runs begin at multiples of RUN_PAGES, so that one lies in one block of a transposed summary.
    """
    FEW: tl.constexpr = RUN_PAGES == 1  # new tokens: latency counts; in a prefill, registers do
    SUMMARISED: tl.constexpr = LAYOUT != "none"
    GATHERED: tl.constexpr = LAYOUT == "transposed" and RUN_PAGES > 1
    UPPER: tl.constexpr = BLOCK_PAGES if LAYOUT == "transposed" else HEAD_DIM  # from a min to its max
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    first_new = tl.load(new_indptr + request).to(tl.int64)
    num_new = tl.load(new_indptr + request + 1) - first_new
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    last_len = tl.load(last_page_len + request)
    if LAYOUT == "transposed":
        blocks = summary_table + tl.load(summary_indptr + request)
    if (num_new <= 0) | (num_pages <= 0):
        return
    seq_len = (num_pages - 1).to(tl.int64) * PAGE_SIZE + last_len
    oldest = seq_len - num_new  # position of the first new token
    first_page = oldest // PAGE_SIZE
    table = block_table + start
    dim = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, RUN_PAGES)[:, None]
    keys += (first_new - oldest) * keys_token_stride + head * keys_head_stride + dim * keys_dim_stride
    values += (first_new - oldest) * values_token_stride + head * values_head_stride + dim * values_dim_stride
    last_run = (num_pages - 1) // RUN_PAGES
    for run in range(first_page // RUN_PAGES + tl.program_id(0), last_run + 1, tl.num_programs(0)):
        origin = run * RUN_PAGES
        first = tl.maximum(origin, first_page)
        stop = tl.minimum(origin + RUN_PAGES, num_pages)
        whole = GATHERED & (origin * PAGE_SIZE >= oldest)  # no box of older tokens among the run's
        if LAYOUT == "transposed":
            block = tl.load(blocks + origin // BLOCK_PAGES).to(tl.int64)
            boxes = summary + ((block * NUM_KV_HEADS + head) * HEAD_DIM + dim) * (2 * BLOCK_PAGES)
            boxes += origin % BLOCK_PAGES
        elif LAYOUT == "paired":
            boxes = summary + head * (2 * HEAD_DIM) + dim
        if GATHERED:
            lowers = tl.full([RUN_PAGES, HEAD_DIM], float("inf"), summary.dtype.element_ty)
            uppers = tl.full([RUN_PAGES, HEAD_DIM], float("-inf"), summary.dtype.element_ty)
        for page in range(first, stop):
            position = page * PAGE_SIZE
            first_slot = tl.maximum(oldest - position, 0).to(tl.int32)
            num_slots = tl.minimum(seq_len - position, PAGE_SIZE).to(tl.int32)
            lower = tl.full([HEAD_DIM], float("inf"), tl.float32)
            upper = tl.full([HEAD_DIM], float("-inf"), tl.float32)
            if FEW:  # wait for the tokens and their page's number at once, then for the old box
                slot = first_slot + tl.arange(0, TILE_SLOTS)[:, None]
                new_keys = _load_tile(keys, keys_token_stride, position, slot, num_slots)
                new_values = _load_tile(values, values_token_stride, position, slot, num_slots)
            physical = tl.load(table + page).to(tl.int64)
            cell = (physical * NUM_KV_HEADS + head) * PAGE_SIZE * HEAD_DIM + dim[None, :]
            if LAYOUT == "paired":
                place = physical * (NUM_KV_HEADS * 2 * HEAD_DIM)
            elif LAYOUT == "transposed":
                place = page - origin
            if FEW:
                if SUMMARISED:
                    lower, upper = _with_old_box(lower, upper, boxes + place, UPPER, first_slot > 0)
                lower, upper = _write_tile(
                    k + cell, v + cell, new_keys, new_values, slot, num_slots, lower, upper, SUMMARISED
                )
            for tile in range(first_slot + FEW * TILE_SLOTS, num_slots, TILE_SLOTS):
                slot = tile + tl.arange(0, TILE_SLOTS)[:, None]
                new_keys = _load_tile(keys, keys_token_stride, position, slot, num_slots)
                new_values = _load_tile(values, values_token_stride, position, slot, num_slots)
                lower, upper = _write_tile(
                    k + cell, v + cell, new_keys, new_values, slot, num_slots, lower, upper, SUMMARISED
                )
            if GATHERED and whole:
                here = lane == (page - origin).to(tl.int32)
                lowers = tl.where(here, lower[None, :].to(lowers.dtype), lowers)
                uppers = tl.where(here, upper[None, :].to(uppers.dtype), uppers)
            elif SUMMARISED:
                if not FEW:
                    lower, upper = _with_old_box(lower, upper, boxes + place, UPPER, first_slot > 0)
                tl.store(boxes + place, lower.to(summary.dtype.element_ty))
                tl.store(boxes + place + UPPER, upper.to(summary.dtype.element_ty))
        if GATHERED and whole:  # pages that are not there yet keep empty boxes
            tl.store(boxes[None, :] + lane, lowers)
            tl.store(boxes[None, :] + lane + BLOCK_PAGES, uppers)


@triton.jit
def _load_tile(tokens, token_stride, position, slot, num_slots):
    """New keys or values [slots, HEAD_DIM] of the page at `position`; 0 from slot `num_slots` on."""
    return tl.load(tokens[None, :] + (position + slot) * token_stride, mask=slot < num_slots, other=0.0)


@triton.jit
def _write_tile(k, v, keys, values, slot, num_slots, lower, upper, SUMMARISED: tl.constexpr):
    """Write new keys, values [slots, HEAD_DIM] into their page at `k`, `v`; the box widened by the keys."""
    new = slot < num_slots
    tl.store(k + slot * keys.shape[1], keys, mask=new)
    tl.store(v + slot * keys.shape[1], values, mask=new)
    if SUMMARISED:
        lower, upper = _widened(lower, upper, keys.to(tl.float32), new)
    return lower, upper


@triton.jit
def _with_old_box(lower, upper, box, UPPER: tl.constexpr, in_use):
    """The box (lower, upper), joined with the one at `box` when it is `in_use`, else not read."""
    if in_use:
        lower = tl.minimum(lower, tl.load(box).to(tl.float32))
        upper = tl.maximum(upper, tl.load(box + UPPER).to(tl.float32))
    return lower, upper


@triton.jit
def _widened(lower, upper, keys, new):
    """(min, max) [HEAD_DIM] widened by the `new` ones of keys [slots, HEAD_DIM]; a NaN has no bounds."""
    is_number = keys == keys
    least = tl.min(tl.where(new, tl.where(is_number, keys, float("-inf")), float("inf")), axis=0)
    most = tl.max(tl.where(new, tl.where(is_number, keys, float("inf")), float("-inf")), axis=0)
    return tl.minimum(lower, least), tl.maximum(upper, most)


def constants(
    plan: AppendPlan, *, num_kv_heads: int, page_size: int, head_dim: int, layout: str
) -> dict[str, Any]:
    """Compile-time parameters and launch options of `append_kernel`; `layout` "none" writes no summary."""
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "PAGE_SIZE": page_size,
        "HEAD_DIM": head_dim,
        "TILE_SLOTS": plan.tile_slots,
        "RUN_PAGES": plan.run_pages,
        "BLOCK_PAGES": SUMMARY_BLOCK_PAGES,
        "LAYOUT": layout,
        "num_warps": plan.num_warps,
    }


def append_plan(keys: torch.Tensor, cache: PagedCache, **overrides: int) -> AppendPlan:
    """The plan `append` makes for `keys` [num_new_tokens, ...]; `overrides` as `plan_append` takes them.

    Each request is taken to receive the mean of the new tokens and to touch at most the longest's pages:
    one with more tokens is written by fewer programs than could work on it.
    """
    return plan_append(
        num_kv_heads=cache.pool.num_kv_heads,
        page_size=cache.pool.page_size,
        batch_size=cache.batch_size,
        max_new_tokens=ceil_div(keys.shape[0], max(1, cache.batch_size)),
        max_pages=cache.max_pages,
        transposed=cache.pool.summary.layout == "transposed",
        **overrides,
    )


def append(
    cache: PagedCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: torch.Tensor,
    *,
    plan: AppendPlan | None = None,
) -> None:
    """Write each request's newest tokens into its pages and their boxes into the summary.

    `cache.extend` has made room. `keys`, `values` [num_new_tokens, num_kv_heads, head_dim] in kv_dtype, any
    strides; `new_indptr` int32 [batch_size + 1]: request r's tokens are rows new_indptr[r]:new_indptr[r + 1],
    the last ones of its sequence. Launching again with the same arguments changes nothing. Raises TypeError
    on a wrong dtype, ValueError on a wrong shape or device.
    """
    _launch(cache, keys, values, new_indptr, plan, cache.pool.summary.layout)


def append_kv(
    cache: PagedCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: torch.Tensor,
    *,
    plan: AppendPlan | None = None,
) -> None:
    """`append` without the summary: what a cache without Quest pays."""
    _launch(cache, keys, values, new_indptr, plan, "none")


def check_append(
    cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor
) -> None:
    """Refuse what `append` does not take: TypeError on a dtype, ValueError on a shape or device."""
    check_cache(cache)
    pool, device = cache.pool, cache.pool.k.device
    shape = (None, pool.num_kv_heads, pool.head_dim)
    check_tensor("keys", keys, shape, pool.k.dtype, device, contiguous=False)
    check_tensor("values", values, keys.shape, pool.k.dtype, device, contiguous=False)
    check_tensor("new_indptr", new_indptr, (cache.batch_size + 1,), torch.int32, device)


def _launch(
    cache: PagedCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: torch.Tensor,
    plan: AppendPlan | None,
    layout: str,
) -> None:
    check_append(cache, keys, values, new_indptr)
    pool = cache.pool
    plan = plan or append_plan(keys, cache)
    check_grid(plan.grid, pool.num_kv_heads, cache.batch_size)
    append_kernel[plan.grid](
        keys,
        values,
        pool.k,
        pool.v,
        pool.summary.data,
        cache.block_table,
        cache.kv_indptr,
        cache.last_page_len,
        cache.summary_table,
        cache.summary_indptr,
        new_indptr,
        *keys.stride(),
        *values.stride(),
        **constants(
            plan,
            num_kv_heads=pool.num_kv_heads,
            page_size=pool.page_size,
            head_dim=pool.head_dim,
            layout=layout,
        ),
    )

"""Stages `append` and `append_kv`: write the newest tokens' K and V, with and without the page summaries.

The summary follows equations (1), (8) and (14): a page without older tokens gets the box of its new keys, a
tail page in use has its box widened by them. Only new keys and that one box are read, whatever the length.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_cache, check_grid, check_tensor
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import AppendPlan, plan_append


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
    new_indptr,
    keys_token_stride,
    keys_head_stride,
    keys_dim_stride,
    values_token_stride,
    values_head_stride,
    values_dim_stride,
    num_pool_pages,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_SLOTS: tl.constexpr,
    SUMMARISE: tl.constexpr,
):
    """One program: every grid[0]-th touched page of one request for one KV head."""
    head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    first_new = tl.load(new_indptr + request).to(tl.int64)
    num_new = tl.load(new_indptr + request + 1) - first_new
    start = tl.load(kv_indptr + request)
    num_pages = tl.load(kv_indptr + request + 1) - start
    seq_len = (num_pages - 1).to(tl.int64) * PAGE_SIZE + tl.load(last_page_len + request)
    if (num_new <= 0) | (num_pages <= 0):
        return
    oldest = seq_len - num_new  # position of the first new token
    slot = tl.arange(0, TILE_SLOTS)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    keys += head * keys_head_stride + dims * keys_dim_stride
    values += head * values_head_stride + dims * values_dim_stride
    for page in range(oldest // PAGE_SIZE + tl.program_id(0), num_pages, tl.num_programs(0)):
        position = page * PAGE_SIZE + slot
        new = ((position >= oldest) & (position < seq_len) & (slot < PAGE_SIZE))[:, None]
        token = (first_new + position - oldest)[:, None]
        physical = tl.load(block_table + start + page).to(tl.int64)
        where = ((physical * NUM_KV_HEADS + head) * PAGE_SIZE + slot)[:, None] * HEAD_DIM + dims
        new_keys = tl.load(keys + token * keys_token_stride, mask=new, other=0.0)
        new_values = tl.load(values + token * values_token_stride, mask=new, other=0.0)
        tl.store(k + where, new_keys, mask=new)
        tl.store(v + where, new_values, mask=new)
        if SUMMARISE:
            box = summary + (head * num_pool_pages + physical) * (2 * HEAD_DIM) + tl.arange(0, HEAD_DIM)
            in_use = tl.full([HEAD_DIM], page * PAGE_SIZE, tl.int64) < oldest
            _widen_box(box, new_keys.to(tl.float32), new, in_use, HEAD_DIM)


@triton.jit
def _widen_box(box, keys, new, in_use, HEAD_DIM: tl.constexpr):
    """Widen the stored box by the `new` ones of keys [slots, HEAD_DIM]; not `in_use`: it is theirs alone."""
    is_nan = new & (keys != keys)
    number = new & (keys == keys)
    lower = tl.min(tl.where(number, keys, float("inf")), axis=0)
    upper = tl.max(tl.where(number, keys, float("-inf")), axis=0)
    old_lower = tl.load(box, mask=in_use, other=float("inf"))
    old_upper = tl.load(box + HEAD_DIM, mask=in_use, other=float("-inf"))
    lower = tl.minimum(lower, old_lower.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    upper = tl.maximum(upper, old_upper.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    has_nan = tl.max(is_nan.to(tl.int32), axis=0) > 0
    lower = tl.where(has_nan, float("nan"), lower)
    upper = tl.where(has_nan, float("nan"), upper)
    tl.store(box, lower.to(box.dtype.element_ty))
    tl.store(box + HEAD_DIM, upper.to(box.dtype.element_ty))


def constants(
    plan: AppendPlan, *, num_kv_heads: int, page_size: int, head_dim: int, summarise: bool
) -> dict[str, Any]:
    """Compile-time parameters and launch options of `append_kernel`."""
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "PAGE_SIZE": page_size,
        "HEAD_DIM": head_dim,
        "TILE_SLOTS": plan.tile_slots,
        "SUMMARISE": summarise,
        "num_warps": plan.num_warps,
    }


def append_plan(keys: torch.Tensor, cache: PagedCache, **overrides: int) -> AppendPlan:
    """The plan `append` makes for `keys` [num_new_tokens, ...]; `overrides` as `plan_append` takes them.

    Each request is taken to receive at most all new tokens, and to touch at most the longest's pages.
    """
    return plan_append(
        num_kv_heads=cache.pool.num_kv_heads,
        page_size=cache.pool.page_size,
        batch_size=cache.batch_size,
        max_new_tokens=keys.shape[0],
        max_pages=cache.max_pages,
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
    _launch(cache, keys, values, new_indptr, plan, summarise=True)


def append_kv(
    cache: PagedCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: torch.Tensor,
    *,
    plan: AppendPlan | None = None,
) -> None:
    """`append` without the summary: what a cache without Quest pays."""
    _launch(cache, keys, values, new_indptr, plan, summarise=False)


def _launch(
    cache: PagedCache,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: torch.Tensor,
    plan: AppendPlan | None,
    *,
    summarise: bool,
) -> None:
    check_cache(cache)
    pool, device = cache.pool, cache.pool.k.device
    shape = (None, pool.num_kv_heads, pool.head_dim)
    check_tensor("keys", keys, shape, pool.k.dtype, device, contiguous=False)
    check_tensor("values", values, keys.shape, pool.k.dtype, device, contiguous=False)
    check_tensor("new_indptr", new_indptr, (cache.batch_size + 1,), torch.int32, device)
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
        new_indptr,
        *keys.stride(),
        *values.stride(),
        pool.num_pages,
        **constants(
            plan,
            num_kv_heads=pool.num_kv_heads,
            page_size=pool.page_size,
            head_dim=pool.head_dim,
            summarise=summarise,
        ),
    )

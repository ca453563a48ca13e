"""Stage `score`: the upper bound U_p of every page for every query head, equations (2)-(4)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.arguments import check_grid, check_queries, check_rows
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import ScorePlan, next_power_of_2, plan_score
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
    num_pool_pages,
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
    boxes = summary + kv_head * num_pool_pages * (2 * WORDS) + word
    table = block_table + start
    out = scores + (kv_head * GROUP + members) * scores_stride + start
    step = tl.num_programs(0) * TILE_PAGES
    page = tl.program_id(0) * TILE_PAGES + tl.arange(0, TILE_PAGES)[:, None, None]
    physical = tl.load(table + page, mask=page < num_pages, other=0)
    lower, upper = _load_boxes(boxes, physical, page < num_pages, WORDS)
    following = page + step
    physical = tl.load(table + following, mask=following < num_pages, other=0)
    for _ in range(tl.program_id(0) * TILE_PAGES, num_pages, step):
        bound = _corner(q_low, low(lower, DTYPE), low(upper, DTYPE))
        if PACKED == 2:
            bound += _corner(q_high, high(lower, DTYPE), high(upper, DTYPE))
        lower, upper = _load_boxes(boxes, physical, following < num_pages, WORDS)
        score = tl.sum(bound, axis=2, keep_dims=True)
        tl.store(out + page, score, mask=(page < num_pages) & (members < GROUP))
        page = following
        following += step
        physical = tl.load(table + following, mask=following < num_pages, other=0)


@triton.jit
def _load_boxes(boxes, physical, there, WORDS: tl.constexpr):
    """(min, max) of physical pages, [TILE_PAGES, 1, WORDS] each."""
    box = boxes + physical.to(tl.int64) * (2 * WORDS)
    return tl.load(box, mask=there, other=0), tl.load(box + WORDS, mask=there, other=0)


@triton.jit
def _corner(q, lower, upper):
    """Equation (2): the larger of q * lower and q * upper; a NaN stays."""
    return tl.maximum(q * lower, q * upper, propagate_nan=tl.PropagateNan.ALL)


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


def score_plan(cache: PagedCache, **overrides: int) -> ScorePlan:
    """The plan `score` makes for `cache`; `overrides` as `plan_score` takes them."""
    return plan_score(
        num_kv_heads=cache.pool.num_kv_heads,
        head_dim=cache.pool.head_dim,
        batch_size=cache.batch_size,
        max_pages=cache.max_pages,
        num_workers=cache.pool.num_workers,
        **overrides,
    )


def score(q: torch.Tensor, cache: PagedCache, scores: torch.Tensor, *, plan: ScorePlan | None = None) -> None:
    """Write U_p of equation (3), unscaled, of each (query head, logical page).

    `q` [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; `scores` fp32 [num_qo_heads,
    >= total_pages], flat logical pages, ragged by kv_indptr. A NaN in a box gives a NaN score.
    Raises TypeError on a wrong dtype, ValueError on a wrong shape, device or stride.
    """
    check_queries(q, cache)
    check_rows("scores", scores, q.shape[1], cache.total_pages, torch.float32, q.device)
    pool = cache.pool
    plan = plan or score_plan(cache)
    check_grid(plan.grid, pool.num_kv_heads, cache.batch_size)
    options = constants(
        plan,
        group_size=q.shape[1] // pool.num_kv_heads,
        head_dim=pool.head_dim,
        summary_dtype=pool.summary.dtype,
    )
    score_kernel[plan.grid](
        q,
        as_words(pool.summary.data),
        cache.block_table,
        cache.kv_indptr,
        scores,
        *q.stride(),
        scores.stride(0),
        pool.num_pages,
        **options,
    )

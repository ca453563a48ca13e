"""The CUDA variants of `score`, `select`, `attend` and `dense`, and `select` with `attend` in one launch.

Launchers take what the Triton ones take and give the same: same page ids, same outputs to rounding. They are
for fp16 and bf16, head_dim 64 and 128, at most 8 query heads a group, pages of 8 tokens or a multiple of 16.
"""

from __future__ import annotations

import torch
from questprof_kernels.arguments import (
    HEAD_DIMS,
    check_cache,
    check_outputs,
    check_queries,
    check_rows,
    check_tensor,
)
from questprof_kernels.cuda_arguments import AttentionArguments, ScoreArguments, SelectArguments
from questprof_kernels.cuda_module import Kernel, load_kernel
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import BlockPlan, ceil_div, next_power_of_2, plan_blocks
from questprof_kernels.softmax import LOG2_E

LARGEST_GROUP = 8
PAIRED_WARPS = 2  # that score neighbouring heads
PAIRED_TILE, PAIRED_GROUP_TILE = 8, 16  # pages a warp scores, for one query head and for a group
TRANSPOSED_WARPS = 4
MOST_WAITING_SPLITS = 32  # MOST_SPLITS of attention.cuh
SELECTED_AT_MOST = 2048  # page ids that one block of the fused launch has room for
MOST_SLOTS = 16  # keys a thread of `select` keeps in registers at most
MOST_INDICES = 9728  # page ids, and pages looked up ahead, of a fused block: in 48 KiB beside its sums


def why_not(
    kv_dtype: torch.dtype, summary_dtype: torch.dtype, head_dim: int, page_size: int, group_size: int
) -> str | None:
    """Why these stages cannot run on such a cache, or None."""
    if kv_dtype not in (torch.float16, torch.bfloat16) or summary_dtype != kv_dtype:
        return f"no CUDA stage for {kv_dtype} with a summary in {summary_dtype}"
    if head_dim not in HEAD_DIMS:
        return f"no CUDA stage for head_dim {head_dim}"
    if page_size != 8 and page_size % 16:
        return f"no CUDA stage for page_size {page_size}"
    if group_size > LARGEST_GROUP:
        return f"no CUDA stage for {group_size} query heads a KV head"
    return None


def score(q: torch.Tensor, cache: PagedCache, scores: torch.Tensor) -> None:
    """Write U_p of equation (3), unscaled, of each (query head, logical page), as the Triton launcher does.

    Over a paired summary an infinite bound, as a NaN key leaves one, gives NaN, where other variants give
    infinity unless the query's element is 0: among several such pages another may be selected.
    """
    check_queries(q, cache)
    check_rows("scores", scores, q.shape[1], cache.total_pages, torch.float32, q.device)
    _check_rows_aligned("q", q)
    pool = cache.pool
    transposed = pool.summary.layout == "transposed"
    table = cache.summary_table if transposed else cache.block_table
    arguments = ScoreArguments(
        table=table.data_ptr(),
        kv_indptr=cache.kv_indptr.data_ptr(),
        summary=pool.summary.data.data_ptr(),
        q=q.data_ptr(),
        table_size=len(table),
        num_kv_heads=pool.num_kv_heads,
        q_batch_stride=q.stride(0) // 8,
        q_head_stride=q.stride(1) // 8,
        scores=scores.data_ptr(),
        scores_stride=scores.stride(0),
        summary_indptr=cache.summary_indptr.data_ptr() if transposed else 0,
    )
    group_size = q.shape[1] // pool.num_kv_heads
    tile = PAIRED_TILE if group_size == 1 else PAIRED_GROUP_TILE
    if transposed:
        name, num_warps = "score_transposed", TRANSPOSED_WARPS
        grid = ceil_div(cache.max_pages, pool.summary.data.shape[-1]), pool.num_kv_heads
    else:
        name, num_warps = "score_paired", PAIRED_WARPS
        grid = ceil_div(pool.num_kv_heads, PAIRED_WARPS), ceil_div(cache.max_pages, tile)
    kernel = stage_kernel("score.cu", name, cache, num_warps, GROUP=group_size, TILE=tile)
    kernel.launch((max(1, grid[0]), max(1, grid[1]), cache.batch_size), arguments)


def select(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool = True,
    *,
    num_warps: int = 0,
) -> None:
    """Write the K_r best pages of each query head and request, as the Triton launcher does."""
    check_cache(cache)
    device = cache.pool.k.device
    check_rows("scores", scores, scores.shape[0], cache.total_pages, torch.float32, device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, device)
    check_rows("page_ids", page_ids, scores.shape[0], 0, torch.int32, device)
    arguments = SelectArguments(
        kv_indptr=cache.kv_indptr.data_ptr(),
        select_indptr=select_indptr.data_ptr(),
        scores=scores.data_ptr(),
        page_ids=page_ids.data_ptr(),
        scores_stride=scores.stride(0),
        num_columns=scores.shape[1],
        take_tail=take_tail,
        page_ids_stride=page_ids.stride(0),
    )
    num_warps = num_warps or _select_warps(cache.max_pages, ceil_div(page_ids.shape[1], cache.batch_size))
    kernel = stage_kernel("select.cu", "select_kernel", cache, num_warps, **_keys(cache.max_pages, num_warps))
    kernel.launch((scores.shape[0], cache.batch_size, 1), arguments)


def attend_plan(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, **overrides: int) -> BlockPlan:
    """The plan of `attend` and `select_attend`; its `scratch_floats` sizes their common scratch."""
    return _plan(q, cache, ceil_div(page_ids.shape[1], cache.batch_size), per_query_head=True, **overrides)


def dense_plan(q: torch.Tensor, cache: PagedCache, **overrides: int) -> BlockPlan:
    """The plan of `dense`; its `scratch_floats` sizes the scratch."""
    return _plan(q, cache, ceil_div(cache.total_pages, cache.batch_size), per_query_head=False, **overrides)


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
    plan: BlockPlan | None = None,
) -> None:
    """Attention of equation (6) over the selected pages of each query head, as the Triton launcher does.

    `scratch` is zero before the first launch and used with no other plan.
    """
    check_rows("page_ids", page_ids, q.shape[1], 0, torch.int32, q.device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, q.device)
    plan = plan or attend_plan(q, cache, page_ids)
    arguments = _attention_arguments(q, cache, out, lse, scratch, softmax_scale, plan)
    arguments.page_ids, arguments.page_ids_stride = page_ids.data_ptr(), page_ids.stride(0)
    arguments.select_indptr = select_indptr.data_ptr()
    kernel = stage_kernel(
        "attend.cu", "attend_kernel", cache, plan.num_warps, **_attend_definitions(q, cache)
    )
    _launch(kernel, plan, arguments, cache)


def select_attend(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool,
    q: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
    *,
    most_selected: int | None = None,
    plan: BlockPlan | None = None,
    dependent: bool = True,
) -> None:
    """`select` and `attend` in one launch: every split selects, and the first one writes `page_ids`.

    `most_selected` is the largest K_r; None stands for all of `page_ids`, which is right for one request and
    safe for more. `dependent`: it starts while the kernel before it, which must be `score`, still runs, and
    waits for it before it reads scores; the query, lengths, table and scratch are read at once, and must be
    settled when that kernel starts. Raises ValueError unless `fuses` says that the pages fit.
    """
    check_rows("scores", scores, q.shape[1], cache.total_pages, torch.float32, q.device)
    check_rows("page_ids", page_ids, q.shape[1], 0, torch.int32, q.device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, q.device)
    plan = plan or attend_plan(q, cache, page_ids)
    room = _room(cache, page_ids, most_selected, plan)
    if room > SELECTED_AT_MOST:
        raise ValueError(f"up to {room} pages a split: launch select and attend apart")
    arguments = _attention_arguments(q, cache, out, lse, scratch, softmax_scale, plan)
    arguments.page_ids, arguments.page_ids_stride = page_ids.data_ptr(), page_ids.stride(0)
    arguments.select_indptr = select_indptr.data_ptr()
    arguments.scores, arguments.scores_stride = scores.data_ptr(), scores.stride(0)
    arguments.take_tail = take_tail
    table = next_power_of_2(cache.max_pages)
    kernel = stage_kernel(
        "attend.cu",
        "select_attend_kernel",
        cache,
        plan.num_warps,
        **_attend_definitions(
            q,
            cache,
            room,
            table if table + room <= MOST_INDICES else 1,
            _keys(cache.max_pages, plan.num_warps),
        ),
    )
    _launch(kernel, plan, arguments, cache, dependent=dependent)


def fuses(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, most_selected: int) -> bool:
    """Whether a split of `select_attend` has room for its pages."""
    return _room(cache, page_ids, most_selected, attend_plan(q, cache, page_ids)) <= SELECTED_AT_MOST


def dense(
    q: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
    *,
    plan: BlockPlan | None = None,
) -> None:
    """Attention over all valid tokens of each request, as the Triton launcher does.

    Pages are walked as `dense_table` has them, so that rounding depends on where they lie. `scratch` is zero
    before the first launch and used with no other plan.
    """
    plan = plan or dense_plan(q, cache)
    arguments = _attention_arguments(q, cache, out, lse, scratch, softmax_scale, plan)
    arguments.block_table = cache.dense_table.data_ptr()
    definitions = {"GROUP": plan.heads_per_program, "PAGE_SIZE": cache.pool.page_size}
    kernel = stage_kernel("dense.cu", "dense_kernel", cache, plan.num_warps, **definitions)
    _launch(kernel, plan, arguments, cache)


def _plan(
    q: torch.Tensor, cache: PagedCache, pages: int, *, per_query_head: bool, **overrides: int
) -> BlockPlan:
    return plan_blocks(
        num_qo_heads=q.shape[1],
        num_kv_heads=cache.pool.num_kv_heads,
        per_query_head=per_query_head,
        head_dim=cache.pool.head_dim,
        batch_size=cache.batch_size,
        pages_per_request=pages,
        num_workers=cache.pool.num_workers,
        **overrides,
    )


def _room(cache: PagedCache, page_ids: torch.Tensor, most_selected: int | None, plan: BlockPlan) -> int:
    """Page ids that one split may have to hold."""
    most = min(cache.max_pages, page_ids.shape[1] if most_selected is None else most_selected)
    return max(64, next_power_of_2(ceil_div(most, plan.num_splits) + 1))


def _select_warps(max_pages: int, wanted: int) -> int:
    """Warps of a block of `select`: few wait for one another less, more hold more keys.

    A bound of the `wanted` best is known at once where a block has as many threads.
    """
    if max_pages <= 8 * 32 * MOST_SLOTS and wanted <= 8 * 32:
        return 8
    return 32 if max_pages > 8192 else 16


def _keys(max_pages: int, num_warps: int) -> dict[str, int]:
    """Definitions of select.cuh: the keys of a thread, and whether some pages are beyond them."""
    slots = max(1, min(MOST_SLOTS, next_power_of_2(ceil_div(max_pages, 32 * num_warps))))
    return {"SLOTS": slots, "REREAD": int(max_pages > 32 * num_warps * slots)}


def _attend_definitions(
    q: torch.Tensor, cache: PagedCache, room: int = 64, table: int = 1, keys: dict[str, int] | None = None
) -> dict[str, int]:
    """Definitions of attend.cu; what its two kernels do not share has the least value where it is unused."""
    return {
        "GROUP": q.shape[1] // cache.pool.num_kv_heads,
        "PAGE_SIZE": cache.pool.page_size,
        "SELECTED_PAGES": room,
        "TABLE": table,
        **(keys or {"SLOTS": 1, "REREAD": 0}),
    }


def _attention_arguments(
    q: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None,
    plan: BlockPlan,
) -> AttentionArguments:
    check_queries(q, cache)
    check_outputs(q, out, lse, scratch, plan.scratch_floats)
    if scratch.data_ptr() % 16:
        raise ValueError("scratch must be 16-byte aligned")
    _check_rows_aligned("q", q)
    _check_rows_aligned("out", out)
    pool = cache.pool
    scale = pool.head_dim**-0.5 if softmax_scale is None else softmax_scale
    return AttentionArguments(
        q=q.data_ptr(),
        k=pool.k.data_ptr(),
        v=pool.v.data_ptr(),
        block_table=cache.block_table.data_ptr(),
        kv_indptr=cache.kv_indptr.data_ptr(),
        last_page_len=cache.last_page_len.data_ptr(),
        table_size=len(cache.block_table),
        early_pages=cache.seq_lens[0] // pool.page_size,
        out=out.data_ptr(),
        lse=lse.data_ptr(),
        scratch=scratch.data_ptr(),
        q_batch_stride=q.stride(0) // 8,
        q_head_stride=q.stride(1) // 8,
        out_batch_stride=out.stride(0),
        out_head_stride=out.stride(1),
        scale_log2=scale * LOG2_E,
        num_kv_heads=pool.num_kv_heads,
    )


def _launch(
    kernel: Kernel,
    plan: BlockPlan,
    arguments: AttentionArguments,
    cache: PagedCache,
    *,
    dependent: bool = False,
) -> None:
    """Launch; blocks wait for one another only where the device holds all of them at once.

    That leaves one case unchecked: another kernel that keeps multiprocessors until this one ends.
    """
    splits, programs, requests = plan.grid
    arguments.num_splits, arguments.num_programs = splits, programs * requests
    resident = splits * programs * requests <= kernel.blocks_per_sm * cache.pool.num_workers
    arguments.blocks_stay = resident and splits <= MOST_WAITING_SPLITS
    kernel.launch(plan.grid, arguments, dependent=dependent)


def stage_kernel(source: str, name: str, cache: PagedCache, num_warps: int, **definitions: int) -> Kernel:
    """Kernel `name` of file `source`, compiled for what `cache` holds and where it lies."""
    pool = cache.pool
    common = {"BF16": int(pool.k.dtype == torch.bfloat16), "HEAD_DIM": pool.head_dim, "WARPS": num_warps}
    device = pool.device.index if pool.device.index is not None else torch.cuda.current_device()
    return load_kernel(source, name, tuple({**common, **definitions}.items()), 32 * num_warps, device)


def rows_aligned(tensor: torch.Tensor) -> bool:
    """Whether 16-byte loads can read the rows of `tensor` [.., .., head_dim], two bytes a number."""
    strides = tensor.stride()
    return strides[2] == 1 and not (strides[0] % 8 or strides[1] % 8 or tensor.data_ptr() % 16)


def _check_rows_aligned(name: str, tensor: torch.Tensor) -> None:
    """Refuse rows that 16-byte loads cannot read."""
    if not rows_aligned(tensor):
        raise ValueError(
            f"rows of {name} must be contiguous and 16-byte aligned, its strides are {tensor.stride()}"
        )

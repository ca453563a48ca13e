"""The CUDA variants of `append` and `append_kv`: one kernel for few new tokens a request, one for many.

One new token waits once, for lengths, where Triton's code waits for the page's number and for the old box too
(as ours does before sm_90). Of many tokens each page is a warp's. They are for fp16 and bf16, head_dim 64 and
128, and a summary of the same dtype.
"""

from __future__ import annotations

import torch
from questprof_kernels.append import append_plan, check_append
from questprof_kernels.cuda_arguments import AppendArguments
from questprof_kernels.cuda_module import Kernel
from questprof_kernels.cuda_stages import rows_aligned, stage_kernel
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import ceil_div

MOST_NEW = 4
"""New tokens a request, in the mean, that are few."""
FEW_WARPS, MANY_WARPS = 4, 8
LAYOUTS = {"none": 0, "paired": 1, "transposed": 2}
RUN_PAGES = {"none": MANY_WARPS, "paired": MANY_WARPS, "transposed": 16}
"""Pages that one block writes of many tokens: as many as make a sector of a transposed summary's row."""
MOST_BLOCKS = 65535  # along the last axis of a grid


def takes(keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the new tokens lie in rows that 16-byte loads can read."""
    return all(tensor.dim() == 3 and _in_words(tensor) for tensor in (keys, values))


def append(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """Write new tokens as `append.append` does; ValueError unless `takes` says that they can be."""
    _launch(cache, keys, values, new_indptr, cache.pool.summary.layout)


def append_kv(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """`append` without the summary."""
    _launch(cache, keys, values, new_indptr, "none")


def _launch(
    cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor, layout: str
) -> None:
    check_append(cache, keys, values, new_indptr)
    if not takes(keys, values):
        raise ValueError(f"new tokens of strides {keys.stride()}, {values.stride()}: 16-byte rows are taken")
    if not len(keys):
        return
    pool = cache.pool
    kernel, grid = (_few if len(keys) <= MOST_NEW * cache.batch_size else _many)(cache, keys, layout)
    arguments = AppendArguments(
        new_indptr=new_indptr.data_ptr(),
        kv_indptr=cache.kv_indptr.data_ptr(),
        last=cache.last_page_len.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        last_stride=cache.last_page.storage_offset() // 8,  # from its length
        num_kv_heads=pool.num_kv_heads,
        keys_head_stride=keys.stride(1) // 8,
        values_head_stride=values.stride(1) // 8,
        k=pool.k.data_ptr(),
        v=pool.v.data_ptr(),
        summary=pool.summary.data.data_ptr(),
        block_table=cache.block_table.data_ptr(),
        keys_token_stride=keys.stride(0) // 2,
        values_token_stride=values.stride(0) // 2,
        summary_table=cache.summary_table.data_ptr(),
        summary_indptr=cache.summary_indptr.data_ptr(),
        page_size=pool.page_size,
    )
    kernel.launch(grid, arguments)


def _few(cache: PagedCache, keys: torch.Tensor, layout: str) -> tuple[Kernel, tuple[int, int, int]]:
    """The kernel for few new tokens a request and its grid: heads, requests."""
    pool = cache.pool
    team = pool.head_dim * 2 // (2 if layout == "transposed" else 8)  # threads that write one head
    kernel = stage_kernel("append.cu", "append_kernel", cache, FEW_WARPS, LAYOUT=LAYOUTS[layout])
    return kernel, (ceil_div(pool.num_kv_heads * team, 32 * FEW_WARPS), cache.batch_size, 1)


def _many(cache: PagedCache, keys: torch.Tensor, layout: str) -> tuple[Kernel, tuple[int, int, int]]:
    """The kernel for many new tokens and its grid: heads, which read neighbouring rows, requests, runs."""
    plan = append_plan(keys, cache, run_pages=RUN_PAGES[layout], num_warps=MANY_WARPS)
    runs, num_kv_heads, batch_size = plan.grid
    kernel = stage_kernel(
        "append_pages.cu",
        "append_pages_kernel",
        cache,
        plan.num_warps,
        LAYOUT=LAYOUTS[layout],
        TILE_SLOTS=plan.tile_slots,
        RUN_PAGES=plan.run_pages,
    )
    return kernel, (num_kv_heads, batch_size, min(runs, MOST_BLOCKS))


def _in_words(tensor: torch.Tensor) -> bool:
    # The stride from head to head of a token is passed on in 16 bits.
    return rows_aligned(tensor) and tensor.stride(1) < 8 << 16

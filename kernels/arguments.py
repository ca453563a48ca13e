"""What every launcher checks before it launches; nothing here allocates or synchronises."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from questprof_kernels.paged_cache import DTYPE_NAMES, PagedCache

HEAD_DIMS = (64, 128)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device,
    *,
    contiguous: bool = True,
) -> None:
    """Refuse a tensor of another dtype (TypeError), shape (None: any), device or layout (ValueError)."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}, expected {dtype}")
    fits = tensor.dim() == len(shape) and all(
        w is None or n == w for n, w in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{wanted}]")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, the cache on {device}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, its strides are {tensor.stride()}")


def check_cache(cache: PagedCache) -> None:
    """Refuse an empty batch, and a kv_dtype or head_dim without a kernel (ValueError, TypeError)."""
    if cache.batch_size == 0:
        raise ValueError("the cache holds no request")
    if cache.pool.k.dtype not in DTYPE_NAMES:
        raise TypeError(f"kv_dtype {cache.pool.k.dtype} has no kernel: {', '.join(DTYPE_NAMES.values())} do")
    if cache.pool.head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim {cache.pool.head_dim} has no kernel: {', '.join(map(str, HEAD_DIMS))} do")


def check_queries(q: torch.Tensor, cache: PagedCache) -> None:
    """Refuse `q` unless it is [batch_size, a multiple of num_kv_heads, head_dim] in kv_dtype."""
    check_cache(cache)
    pool = cache.pool
    check_tensor(
        "q", q, (cache.batch_size, None, pool.head_dim), pool.k.dtype, pool.k.device, contiguous=False
    )
    if q.shape[1] == 0 or q.shape[1] % pool.num_kv_heads:
        raise ValueError(f"{q.shape[1]} query heads are no multiple of {pool.num_kv_heads} KV heads")


def check_outputs(
    q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, scratch: torch.Tensor, scratch_floats: int
) -> None:
    """Refuse outputs unlike `q` [batch_size, num_qo_heads, head_dim] and a scratch that is too short."""
    check_tensor("out", out, q.shape, q.dtype, q.device, contiguous=False)
    check_tensor("lse", lse, q.shape[:2], torch.float32, q.device)
    check_tensor("scratch", scratch, (None,), torch.float32, q.device)
    if len(scratch) < scratch_floats:
        raise ValueError(f"scratch holds {len(scratch)} numbers, this plan needs {scratch_floats}")


def check_grid(grid: Sequence[int], *wanted: int) -> None:
    """Refuse a plan made for other tensors: its grid must end in `wanted` (ValueError)."""
    if tuple(grid[-len(wanted) :]) != wanted:
        raise ValueError(f"the plan's grid {tuple(grid)} does not end in {wanted}: it is for other tensors")


def check_rows(
    name: str, tensor: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse anything but a [rows, >= columns] matrix with contiguous rows."""
    check_tensor(name, tensor, (rows, None), dtype, device, contiguous=False)
    if tensor.shape[1] < columns:
        raise ValueError(f"{name} has {tensor.shape[1]} columns, {columns} are needed")
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(f"rows of {name} must be contiguous, its strides are {tensor.stride()}")

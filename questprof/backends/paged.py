"""The project's own stages over the paged cache.

`questprof` takes CUDA stages where they can run and Triton ones elsewhere, on the CPU stages compiled by
numba; `triton` takes Triton ones always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from questprof.backends import Backend, paged_cuda
from questprof.model import Point
from questprof.units import KERNEL_DTYPES

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

HEAD_DIMS = (64, 128)


def load(device: str) -> Backend:
    """The CUDA and Triton stages on `cuda`, the numba stages on `cpu`."""
    if device != "cuda":
        return _cpu()
    return paged_cuda.over(_triton("questprof"))


def load_triton(device: str) -> Backend:
    """The Triton stages; only on `cuda`."""
    if device == "cuda":
        return _triton("triton")
    return replace(_cpu(), name="triton", why_not=lambda _: "Triton needs a GPU: use --device cuda")


def _cpu() -> Backend:
    from questprof_kernels import cpu

    stages = {
        "append": cpu.append,
        "append_kv": cpu.append_kv,
        "score": cpu.score,
        "select": cpu.select,
        "attend": cpu.attend,
        "dense": cpu.dense,
    }
    scratch = {"attend": cpu.attend_scratch_floats, "dense": cpu.dense_scratch_floats}
    return Backend("questprof", lambda _: "cpu", stages, _as_is, scratch, why_not)


def _triton(name: str) -> Backend:
    from questprof_kernels import append, attend, dense, score, select

    stages = {
        "append": append.append,
        "append_kv": append.append_kv,
        "score": score.score,
        "select": select.select,
        "attend": attend.attend,
        "dense": dense.dense,
    }

    def attend_scratch_floats(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
        return int(attend.attend_plan(q, cache, page_ids).scratch_floats)

    def dense_scratch_floats(q: torch.Tensor, cache: PagedCache) -> int:
        return int(dense.dense_plan(q, cache).scratch_floats)

    scratch: dict[str, Callable[..., int]] = {"attend": attend_scratch_floats, "dense": dense_scratch_floats}
    return Backend(name, lambda _: "triton", stages, _as_is, scratch, why_not)


def _as_is(cache: PagedCache, _: torch.Tensor) -> PagedCache:
    return cache


def why_not(point: Point) -> str | None:
    """Why the project's stages cannot run `point`, or None."""
    shape = point.shape
    if shape.kv_dtype not in KERNEL_DTYPES:
        return f"no kernel for kv_dtype {shape.kv_dtype}: {', '.join(KERNEL_DTYPES)} are there"
    if shape.effective_summary_dtype not in (shape.kv_dtype, "fp32"):
        return f"a summary in {shape.effective_summary_dtype} cannot bound {shape.kv_dtype} keys exactly"
    if shape.head_dim not in HEAD_DIMS:
        return f"no kernel for head_dim {shape.head_dim}: 64 and 128 are there"
    if not 1 <= point.page_size <= 128:
        return f"no kernel for page_size {point.page_size}: 1 to 128 are there"
    return None

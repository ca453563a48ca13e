"""RMSNorm of the residual stream, with the addition before it in the same pass.

Zhang and Sennrich, Root Mean Square Layer Normalization (2019). Sums are fp32; the residual stream is rounded
to its dtype before it is normalised, as a model that adds and normalises in two steps does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from questprof_kernels.decode_launch import check_matrix, launch_options, wait_for_previous
from questprof_kernels.plan import next_power_of_2


@triton.jit
def add_rms_norm_kernel(
    residual,
    delta,
    weight,
    out,
    size,
    eps,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: one row [size] of the residual stream."""
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    there = column < size
    scale = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    x = tl.load(residual + row + column, mask=there, other=0.0)
    if HAS_DELTA:
        x = x.to(tl.float32) + tl.load(delta + row + column, mask=there, other=0.0).to(tl.float32)
        x = x.to(residual.dtype.element_ty)
        tl.store(residual + row + column, x, mask=there)
    x = x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    normed = (x * factor).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row + column, (normed * scale).to(out.dtype.element_ty), mask=there)


def num_warps(size: int) -> int:
    """Warps of a program: 8 numbers a thread, 16 warps at most."""
    return max(1, min(16, next_power_of_2(size) // 256))


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    dependent: bool = False,
) -> None:
    """Add delta to residual in place, then write out = residual / rms(residual) * weight.

    `residual`, `delta`, `out` [num_rows, size], `weight` [size], one dtype. `dependent`: see decode_launch.
    """
    check_matrix("residual", residual, None, residual.shape[-1], residual)
    check_matrix("out", out, residual.shape[0], residual.shape[1], residual)
    if delta is not None:
        check_matrix("delta", delta, residual.shape[0], residual.shape[1], residual)
    size = residual.shape[1]
    add_rms_norm_kernel[(residual.shape[0],)](
        residual,
        delta if delta is not None else residual,
        weight,
        out,
        size,
        eps,
        HAS_DELTA=delta is not None,
        BLOCK=next_power_of_2(size),
        num_warps=num_warps(size),
        **launch_options(dependent),
    )

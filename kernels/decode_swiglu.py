"""SwiGLU over the fused gate and up projections: out = silu(gate) * up. Shazeer, GLU Variants (2020)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from questprof_kernels.decode_launch import check_matrix, launch_options, wait_for_previous


@triton.jit
def silu_product(gate, up):
    """silu(gate) * up in fp32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def swiglu_kernel(gate_up, out, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One program: BLOCK numbers of one row."""
    wait_for_previous(DEPENDENT)
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    gate = tl.load(gate_up + row * (2 * size) + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * size) + size + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, silu_product(gate, up).to(out.dtype.element_ty), mask=there)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor, *, dependent: bool = False) -> None:
    """Write out [num_rows, size] from gate_up [num_rows, 2 * size], gates first; any float dtype."""
    check_matrix("out", out, None, None, gate_up)
    check_matrix("gate_up", gate_up, out.shape[0], 2 * out.shape[1], out)
    size = out.shape[1]
    block = 512
    swiglu_kernel[(triton.cdiv(size, block), out.shape[0])](
        gate_up, out, size, BLOCK=block, num_warps=4, **launch_options(dependent)
    )

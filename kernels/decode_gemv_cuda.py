"""The CUDA variant of decode_gemv: products of a few rows with a large matrix on tensor cores.

Columns must be a multiple of 32 (int4: of 128).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from questprof_kernels.cuda_module import load_kernel
from questprof_kernels.int4 import GROUP_SIZE
from questprof_kernels.plan import ceil_div

MOST_ROWS = 8
STAGED_BYTES = 32768  # of x that a block keeps in shared memory at most


class GemvArguments(ctypes.Structure):
    """Of decode_gemv.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "scales", "bias", "out")),
        ("num_x_rows", ctypes.c_int),
        ("num_rows", ctypes.c_int),
    )


@dataclass(frozen=True)
class CudaGemvPlan:
    """Warps of a block, and the steps (64 bytes of each of 16 rows) that a warp has asked for ahead."""

    num_warps: int
    depth: int

    @property
    def name(self) -> str:
        """How a record calls it."""
        return f"cuda {self.num_warps}x{self.depth}"


PLANS = tuple(CudaGemvPlan(*plan) for plan in ((8, 4), (8, 8), (4, 4), (4, 8), (16, 4), (8, 2)))
"""Plans worth trying; which is fastest depends on the matrix, and is measured."""
INT4_PLANS = tuple(CudaGemvPlan(*plan) for plan in ((8, 4), (8, 2), (4, 4), (4, 8), (16, 2), (16, 4)))
"""The same of int4 weights, whose steps take more registers."""


def definitions(
    plan: CudaGemvPlan, *, columns: int, num_x_rows: int, bits: int, gated: bool, bf16: bool
) -> dict[str, int]:
    """What decode_gemv.cu is compiled with."""
    staged = num_x_rows if num_x_rows * columns * 2 <= STAGED_BYTES else 0
    return {
        "BF16": int(bf16),
        "HEAD_DIM": 128,
        "WARPS": plan.num_warps,
        "DEPTH": plan.depth,
        "BITS": bits,
        "COLUMNS": columns,
        "GATED": int(gated),
        "ROWS_STAGED": staged,
    }


def gemv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: CudaGemvPlan,
    *,
    gated: bool = False,
    dependent: bool = False,
) -> None:
    """`decode_gemv.gemv` as one CUDA launch."""
    _launch(x, w, None, bias, out, plan, gated, dependent)


def gemv_int4(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: CudaGemvPlan,
    *,
    gated: bool = False,
    dependent: bool = False,
) -> None:
    """`decode_gemv.gemv_int4` as one CUDA launch; fp16 activations."""
    _launch(x, packed, scales, bias, out, plan, gated, dependent)


def _launch(
    x: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: CudaGemvPlan,
    gated: bool,
    dependent: bool,
) -> None:
    check_arguments(x, w, scales, bias, out, gated)
    defined = definitions(
        plan,
        columns=x.shape[1],
        num_x_rows=x.shape[0],
        bits=16 if scales is None else 4,
        gated=gated,
        bf16=x.dtype == torch.bfloat16,
    )
    device = x.device.index if x.device.index is not None else torch.cuda.current_device()
    kernel = load_kernel("decode_gemv.cu", "gemv_kernel", tuple(defined.items()), 32 * plan.num_warps, device)
    arguments = GemvArguments(
        x.data_ptr(),
        w.data_ptr(),
        scales.data_ptr() if scales is not None else 0,
        bias.data_ptr() if bias is not None else 0,
        out.data_ptr(),
        x.shape[0],
        out.shape[1],
    )
    blocks = ceil_div(out.shape[1], 8 if gated else 16)
    kernel.launch((blocks, 1, 1), arguments, dependent=dependent)


def check_arguments(
    x: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
) -> None:
    """Refuse what the CUDA and the Triton kernel do not take: TypeError on a dtype, else ValueError."""
    (num_x_rows, columns), rows = x.shape, (2 if gated else 1) * out.shape[1]
    if x.dtype not in (torch.float16, torch.bfloat16) or (scales is not None and x.dtype != torch.float16):
        raise TypeError(f"x is {x.dtype}: fp16 is taken, and bf16 with weights in bf16")
    if not 1 <= num_x_rows <= MOST_ROWS or out.shape[0] != num_x_rows:
        raise ValueError(f"x has {num_x_rows} rows and out {out.shape[0]}: 1 to {MOST_ROWS} are taken, alike")
    if columns % (32 if scales is None else GROUP_SIZE):
        raise ValueError(f"x has {columns} columns: whole steps are taken")
    wanted = {"out": (out, x.dtype, (num_x_rows, out.shape[1]))}
    if scales is None:
        wanted["w"] = (w, x.dtype, (rows, columns))
    else:
        wanted["w"] = (w, torch.int32, (rows, columns // 8))
        wanted["scales"] = (scales, torch.float16, (rows, columns // GROUP_SIZE))
    if bias is not None:
        wanted["bias"] = (bias, x.dtype, (out.shape[1],))
    wanted["x"] = (x, x.dtype, (num_x_rows, columns))
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}, expected {dtype}")
        if tuple(tensor.shape) != shape or tensor.device != x.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {list(tensor.shape)} on {tensor.device} with strides {tensor.stride()}, "
                f"expected contiguous {list(shape)} on {x.device}"
            )
        if tensor.data_ptr() % 16:
            raise ValueError(f"{name} must be 16-byte aligned")

"""The CUDA variant of decode_gemv for one to four rows of activations: a row of the matrix a warp.

Weights in fp16 or bf16, columns a multiple of 256.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from questprof_kernels.cuda_module import load_kernel
from questprof_kernels.decode_gemv_cuda import check_arguments
from questprof_kernels.plan import ceil_div

MOST_ROWS = 4
COLUMNS_A_LOAD = 256
SHARED_BYTES = 48 * 1024  # of x, that a block takes without asking for more


class RowsArguments(ctypes.Structure):
    """Of decode_rows.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "out")),
        ("num_rows", ctypes.c_int),
    )


@dataclass(frozen=True)
class RowsPlan:
    """Warps of a block, and the loads of 512 bytes that a warp has asked for ahead."""

    num_warps: int
    depth: int

    @property
    def name(self) -> str:
        """How a record calls it."""
        return f"cuda rows {self.num_warps}x{self.depth}"


PLANS = tuple(RowsPlan(*plan) for plan in ((16, 8), (16, 4), (8, 8), (8, 4), (32, 4), (4, 8)))
"""Plans worth trying; which is fastest depends on the matrix, and is measured."""


def definitions(plan: RowsPlan, *, columns: int, num_x_rows: int, gated: bool, bf16: bool) -> dict[str, int]:
    """What decode_rows.cu is compiled with."""
    return {
        "BF16": int(bf16),
        "HEAD_DIM": 128,
        "WARPS": plan.num_warps,
        "DEPTH": plan.depth,
        "COLUMNS": columns,
        "X_ROWS": num_x_rows,
        "GATED": int(gated),
    }


def gemv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: RowsPlan,
    *,
    gated: bool = False,
    dependent: bool = False,
) -> None:
    """`decode_gemv.gemv` as one CUDA launch; ValueError for more rows or other columns than it takes."""
    check_arguments(x, w, None, bias, out, gated)
    (num_x_rows, columns), num_rows = x.shape, out.shape[1]
    if num_x_rows > MOST_ROWS or columns % COLUMNS_A_LOAD or 2 * x.numel() > SHARED_BYTES:
        raise ValueError(
            f"x is {num_x_rows} x {columns}: up to {MOST_ROWS} rows in {SHARED_BYTES >> 10} KiB are taken, "
            f"of a multiple of {COLUMNS_A_LOAD} columns"
        )
    defined = definitions(
        plan, columns=columns, num_x_rows=num_x_rows, gated=gated, bf16=x.dtype == torch.bfloat16
    )
    device = x.device.index if x.device.index is not None else torch.cuda.current_device()
    kernel = load_kernel("decode_rows.cu", "rows_kernel", tuple(defined.items()), 32 * plan.num_warps, device)
    arguments = RowsArguments(
        x.data_ptr(), w.data_ptr(), bias.data_ptr() if bias is not None else 0, out.data_ptr(), num_rows
    )
    wave = kernel.blocks_per_sm * torch.cuda.get_device_properties(device).multi_processor_count
    kernel.launch((min(wave, ceil_div(num_rows, plan.num_warps)), 1, 1), arguments, dependent=dependent)

"""What the decode step's own kernels share: argument checks, and programmatic dependent launches.

A kernel launched `dependent` (sm_90 and newer) may start while the one before it on the stream still runs.
It reads weights at once, which nobody writes, and waits before it touches anything else; it lets the kernel
after it start as early. Every kernel here waits, so that what a later one reads is complete.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):
    """Let the next kernel start, and wait until the one before this one has written everything."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


def launch_options(dependent: bool) -> dict[str, Any]:
    """Keyword arguments of a launch: the constant the kernel is compiled with, and the launch attribute."""
    return {"DEPENDENT": True, "launch_pdl": True} if dependent else {"DEPENDENT": False}


def can_depend(device: torch.device) -> bool:
    """Whether `device` knows programmatic dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def check_matrix(
    name: str, tensor: torch.Tensor, rows: int | None, columns: int | None, like: torch.Tensor
) -> None:
    """Refuse all but a contiguous [rows, columns] (None: any) matrix on `like`'s device, in its dtype."""
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name} is {tensor.dtype}, expected {like.dtype}")
    if tensor.dim() != 2 or any(
        wanted not in (None, size) for wanted, size in zip((rows, columns), tensor.shape, strict=True)
    ):
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, expected [{rows or 'any'}, {columns or 'any'}]"
        )
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, not on {like.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, its strides are {tensor.stride()}")

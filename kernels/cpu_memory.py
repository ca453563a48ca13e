"""Large CPU tensors on huge memory pages.

A stage that reads scattered pages of a cache touches a new 4 KiB memory page every few rows, and each costs
a walk of the page tables, which cold caches and virtual machines make several times dearer than the data.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch

LEAST_BYTES = 4 << 20  # smaller tensors gain nothing


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """A new tensor like torch.empty, on the CPU in huge pages where the system has them and it is large."""
    num_bytes = prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or num_bytes < LEAST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))

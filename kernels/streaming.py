"""Reads a buffer once, as fast as the device can: the measured read ceiling of a GPU.

Plain 16-byte loads, every program a grid-stride walk over tiles. Exclusive or folds the words into a checksum
per program, so that no load can be optimised away and the result can be checked exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from questprof_kernels.paged_cache import default_num_workers
from questprof_kernels.plan import ceil_div


@dataclass(frozen=True)
class Reader:
    """Tiles of `tile_words` 32-bit words, in `programs_per_worker` programs (0: one program a tile)."""

    name: str
    tile_words: int
    num_warps: int
    programs_per_worker: int


READERS = (
    Reader("16 KiB tiles, 8 programs a worker", 4096, 8, 8),
    Reader("16 KiB tiles, 16 programs a worker", 4096, 4, 16),
    Reader("32 KiB tiles, 4 programs a worker", 8192, 8, 4),
    Reader("8 KiB tiles, 16 programs a worker", 2048, 4, 16),
    Reader("16 KiB tiles, a program each", 4096, 8, 0),
    Reader("8 KiB tiles, a program each", 2048, 4, 0),
)
"""Ways worth trying: the ceiling is the best of them."""


@triton.jit
def read_kernel(words, checksums, num_vectors, TILE: tl.constexpr):
    """One program: the exclusive or of every grid[0]-th tile of TILE 32-bit words."""
    lane = tl.arange(0, TILE)
    num_words = tl.cast(num_vectors, tl.int64) * 4
    total = tl.zeros([TILE], tl.int32)
    stride = tl.num_programs(0).to(tl.int64) * TILE
    for first in range(tl.program_id(0).to(tl.int64) * TILE, num_words, stride):
        word = first + lane
        total ^= tl.load(words + word, mask=word < num_words, other=0)
    tl.store(checksums + tl.program_id(0), tl.xor_sum(total, axis=0))


def out_size(buffer: torch.Tensor, reader: Reader = READERS[0]) -> int:
    """Programs that `reader` runs over `buffer`, and so the length of the `out` it needs."""
    tiles = ceil_div(buffer.numel() * buffer.element_size(), 4 * reader.tile_words)
    if not reader.programs_per_worker:
        return max(1, tiles)
    return max(1, min(reader.programs_per_worker * default_num_workers(buffer.device), tiles))


def read(buffer: torch.Tensor, out: torch.Tensor, reader: Reader = READERS[0]) -> None:
    """Read every byte of `buffer` once.

    `buffer`: contiguous, a multiple of 16 bytes, any dtype. `out`: contiguous, 4-byte dtype, one element a
    program (`out_size` gives a good number); it receives checksums as bits. Nothing is allocated. Raises
    ValueError on anything else.
    """
    if not buffer.is_contiguous() or buffer.numel() * buffer.element_size() % 16:
        raise ValueError("buffer must be contiguous and a multiple of 16 bytes long")
    if out.element_size() != 4 or not out.is_contiguous() or out.dim() != 1 or len(out) == 0:
        raise ValueError("out must be a contiguous vector of a 4-byte dtype, one element a program")
    if out.device != buffer.device:
        raise ValueError(f"out is on {out.device}, the buffer on {buffer.device}")
    words = buffer.view(-1).view(torch.int32)
    read_kernel[(len(out),)](
        words,
        out.view(torch.int32),
        words.numel() // 4,
        TILE=reader.tile_words,
        num_warps=reader.num_warps,
    )

"""Reads or copies a working set again and again in one launch: bandwidth by its size, caches included.

One launch makes enough passes to hide its own overhead. The passes are turned against each other, so that a
program meets other tiles in every one; loads skip the L1, so that a set that fits the L2 is read from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from questprof_kernels.paged_cache import default_num_workers
from questprof_kernels.plan import ceil_div

STRIDE = 37
"""Tiles by which the order of a pass is turned against the one before."""
MOST_ITEMS = 1 << 30
"""Tiles times passes: they are counted in int32."""


@dataclass(frozen=True)
class Walk:
    """Tiles of `tile_words` 32-bit words, in `programs_per_worker` programs (0: one a tile and pass)."""

    name: str
    tile_words: int
    num_warps: int
    programs_per_worker: int


WALKS = (
    Walk("8 KiB tiles, 16 programs a worker", 2048, 4, 16),
    Walk("16 KiB tiles, 8 programs a worker", 4096, 8, 8),
    Walk("16 KiB tiles, 16 programs a worker", 4096, 4, 16),
    Walk("16 KiB tiles, a program each", 4096, 8, 0),
    Walk("8 KiB tiles, a program each", 2048, 4, 0),
)
"""Ways worth trying at every size: the figure is that of the fastest."""


@triton.jit
def _place(item, num_tiles, STRIDE: tl.constexpr):
    """(tile, pass) of the item-th tile to visit: every pass is all tiles once."""
    number = item // num_tiles
    return (item % num_tiles + number * STRIDE) % num_tiles, number


@triton.jit(do_not_specialize=["num_passes"])
def read_passes_kernel(words, checksums, num_vectors, num_passes, TILE: tl.constexpr, STRIDE: tl.constexpr):
    """One program: the exclusive or of (word + pass) over every grid[0]-th tile of all passes."""
    lane = tl.arange(0, TILE)
    num_words = tl.cast(num_vectors, tl.int64) * 4
    num_tiles = tl.cdiv(num_vectors * 4, TILE)
    total = tl.zeros([TILE], tl.int32)
    for item in range(tl.program_id(0), num_tiles * num_passes, tl.num_programs(0)):
        tile, number = _place(item, num_tiles, STRIDE)
        word = tl.cast(tile, tl.int64) * TILE + lane
        inside = word < num_words
        loaded = tl.load(words + word, mask=inside, other=0, cache_modifier=".cg")
        total ^= tl.where(inside, loaded + number, 0)
    tl.store(checksums + tl.program_id(0), tl.xor_sum(total, axis=0))


@triton.jit(do_not_specialize=["num_passes"])
def copy_passes_kernel(source, target, num_vectors, num_passes, TILE: tl.constexpr, STRIDE: tl.constexpr):
    """One program: copies every grid[0]-th tile of all passes."""
    lane = tl.arange(0, TILE)
    num_words = tl.cast(num_vectors, tl.int64) * 4
    num_tiles = tl.cdiv(num_vectors * 4, TILE)
    for item in range(tl.program_id(0), num_tiles * num_passes, tl.num_programs(0)):
        tile, _ = _place(item, num_tiles, STRIDE)
        word = tl.cast(tile, tl.int64) * TILE + lane
        inside = word < num_words
        loaded = tl.load(source + word, mask=inside, other=0, cache_modifier=".cg")
        tl.store(target + word, loaded, mask=inside)


@triton.jit
def empty_kernel():
    """Does nothing: what is left is the launch."""


def num_programs(buffer: torch.Tensor, num_passes: int, walk: Walk) -> int:
    """Programs that `walk` runs over `num_passes` passes of `buffer`."""
    tiles = ceil_div(buffer.numel() * buffer.element_size(), 4 * walk.tile_words)
    items = max(1, tiles * num_passes)
    if not walk.programs_per_worker:
        return items
    return min(walk.programs_per_worker * default_num_workers(buffer.device), items)


def read_passes(buffer: torch.Tensor, out: torch.Tensor, num_passes: int, walk: Walk = WALKS[0]) -> None:
    """Read every byte of `buffer` `num_passes` times.

    `buffer`: contiguous, a multiple of 16 bytes, any dtype. `out`: int32, one element a program
    (`num_programs`); together they hold the exclusive or of (word + pass) over words and passes. Nothing is
    allocated. Raises ValueError on anything else.
    """
    words = _words(buffer, num_passes, walk)
    if out.dtype != torch.int32 or out.dim() != 1 or not out.is_contiguous() or len(out) == 0:
        raise ValueError("out must be a contiguous vector of int32, one element a program")
    read_passes_kernel[(len(out),)](
        words,
        out,
        words.numel() // 4,
        num_passes,
        TILE=walk.tile_words,
        STRIDE=STRIDE,
        num_warps=walk.num_warps,
    )


def copy_passes(source: torch.Tensor, target: torch.Tensor, num_passes: int, walk: Walk = WALKS[0]) -> None:
    """Copy `source` to `target`, equally large, `num_passes` times; see `read_passes` for the rest."""
    words, copied = _words(source, num_passes, walk), _words(target, num_passes, walk)
    if words.numel() != copied.numel():
        raise ValueError("source and target must be equally large")
    copy_passes_kernel[(num_programs(source, num_passes, walk),)](
        words,
        copied,
        words.numel() // 4,
        num_passes,
        TILE=walk.tile_words,
        STRIDE=STRIDE,
        num_warps=walk.num_warps,
    )


def launch_empty() -> None:
    """Launch one program that does nothing."""
    empty_kernel[(1,)](num_warps=1)


def _words(buffer: torch.Tensor, num_passes: int, walk: Walk) -> torch.Tensor:
    num_bytes = buffer.numel() * buffer.element_size()
    if not buffer.is_contiguous() or num_bytes % 16 or not num_bytes:
        raise ValueError("a buffer must be contiguous and a multiple of 16 bytes long")
    if num_passes < 1 or ceil_div(num_bytes, 4 * walk.tile_words) * num_passes > MOST_ITEMS:
        raise ValueError(f"{num_passes} passes over {num_bytes} bytes cannot be counted in int32")
    return buffer.view(-1).view(torch.int32)

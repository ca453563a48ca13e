"""Whether the steps of a grid fit into the memory that is free, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from questprof.amdahl.plan import Block, Request
from questprof.environment import available_bytes
from questprof.errors import Exit, QuestprofError
from questprof.units import format_bytes


def shortages(blocks: Sequence[Block], request: Request) -> dict[str, str]:
    """By block id, why blocks do not fit into the memory that is free; nothing is allocated.

    QuestprofError (status 3) where none fits.
    """
    from questprof.decode.measure import steps_needed
    from questprof.decode.session import USABLE_SHARE, needed_bytes

    usable = int(available_bytes(request.device) * USABLE_SHARE)
    grown = steps_needed(request.num_steps, request.device)
    needed = {
        block.block_id: needed_bytes(
            block.config,
            block.weight_format,
            request.device,
            [length + grown for length in block.seq_lens],
            request.page_size,
            block.dense[0].summary_layout,
        )
        for block in blocks
    }
    found = {
        block_id: f"needs {format_bytes(size)}, {format_bytes(usable)} are usable"
        for block_id, size in needed.items()
        if size > usable
    }
    if len(found) == len(needed):
        smallest = min(blocks, key=lambda block: needed[block.block_id])
        raise QuestprofError(
            "no decode step of this grid fits into memory",
            f"the smallest, {smallest.title}, {found[smallest.block_id]} on this {request.device}",
            "Ask for shorter or fewer requests, 4-bit weights, or a smaller model (--shape tiny).",
            Exit.MACHINE,
        )
    return found


def is_out_of_memory(error: Exception) -> bool:
    """Whether `error` is a refused allocation (torch says so on the CPU with a plain RuntimeError)."""
    refused = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return refused or "DefaultCPUAllocator" in str(error)

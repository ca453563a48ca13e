"""How far counted bytes may lie from the ledger: from sectors for a trace, stated for hardware.

A trace counts whole 32-byte sectors, so that a run of n bytes which begins on a sector is at most 31 bytes
longer, and one that begins anywhere at most 62. What consists of whole sectors (K, V, a paired summary) may
not differ at all. Hardware also reads instructions, parameters and page tables, which no ledger names:
1 % + 128 KiB a launch. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from questprof.counts import SECTOR_BYTES, Entry
from questprof.model import Point
from questprof.units import dtype_bytes

ACCESS_BYTES: Final = 64
"""What memory delivers at least of a row: two sectors."""
ALIGNED_RUN: Final = SECTOR_BYTES - 1
"""Most bytes that whole sectors add to a run which begins on a sector, as every tensor does."""
ANY_RUN: Final = 2 * (SECTOR_BYTES - 1)
HARDWARE_SHARE: Final = 0.01
LAUNCH_BYTES: Final = 128 << 10
"""Instructions, parameters and page tables that one launch may read.

At 63 points on an H200 (profiles/h200/bytes.jsonl, profiles/NOTES.md) no stage alone is farther than 94 KB
from its ledger, whatever its size: score up to 12 KB and select 23 KB above it, dense 82 KB and attend 94 KB
below. 128 KiB holds the largest of these and 39 % more.
"""
GATHER_SHARE: Final = 1 / 4
"""Bytes written beyond the ledger, over K and V read, from which they are a copy: half of a copy of K."""
ABSOLUTE_STAGES: Final = ("select", "append", "append_kv")
"""Stages of a few bytes, whose hardware reads are held to the absolute term alone."""
SCRATCH: Final = ("split_partials", "counters")
"""Tensors that a launch writes before it reads them: the cache may serve the reads."""


class Allowance(NamedTuple):
    """Bytes that a count may stay below its prediction, and exceed it."""

    below: int
    above: int


def is_users(variant: str) -> bool:
    """Whether `variant` is of a user's kernels: MODULE:ATTRIBUTE; no name of the project's has a colon."""
    return ":" in variant


def hardware_reads(stage: str, ledger: Sequence[Entry], launches: int, point: Point) -> Allowance:
    """Allowance of a stage's hardware reads over `launches` kernels; `ledger` holds the stage's entries.

    Below it adds what the launch itself wrote or read before, in a chain of stages too: those reads may come
    from the cache. Above it adds what whole accesses of memory add to a transposed summary.
    """
    predicted = sum(entry.read_bytes for entry in ledger)
    share = 0 if stage in ABSOLUTE_STAGES else HARDWARE_SHARE
    most = round(share * predicted) + launches * LAUNCH_BYTES
    return Allowance(most + _from_cache(ledger), most + _rows_end(stage, point))


def hardware_text(stage: str, point: Point) -> str:
    """The tolerance of hardware reads in words."""
    share = "" if stage in ABSOLUTE_STAGES else f"{100 * HARDWARE_SHARE:g} % + "
    rows = f" + rows in whole {ACCESS_BYTES} B" if _rows_end(stage, point) else ""
    return f"{share}{LAUNCH_BYTES >> 10} KiB a launch{rows}"


def _rows_end(stage: str, point: Point) -> int:
    """What whole accesses add to a transposed summary: at the end of rows, around a tail page's numbers."""
    if point.summary_layout != "transposed":
        return 0
    if stage == "append":
        shape = point.shape
        numbers = 2 * shape.num_kv_heads * shape.head_dim * sum(length > 0 for length in point.lengths)
        return numbers * (ACCESS_BYTES - dtype_bytes(shape.effective_summary_dtype))
    return row_slack(point, ACCESS_BYTES) if stage in ("score", "quest") else 0


def row_slack(point: Point, access_bytes: int) -> int:
    """Bytes that whole accesses add to the rows, P long, that `score` reads of a transposed summary."""
    if point.summary_layout != "transposed":
        return 0
    shape = point.shape
    element = dtype_bytes(shape.effective_summary_dtype)
    rows = shape.num_kv_heads * shape.head_dim * (1 if shape.group_size == 1 else 2)
    return rows * sum(-(pages * element) % access_bytes for pages in point.num_pages)


TRACE_TEXT: Final = "whole 32-byte sectors: 0 B for K, V and a paired summary, 31 to 62 B a run elsewhere"


def _from_cache(ledger: Iterable[Entry]) -> int:
    """Reads of `ledger` that follow a write or a read of the same bytes."""
    by_tensor: dict[str, list[Entry]] = {}
    for entry in ledger:
        by_tensor.setdefault(entry.tensor, []).append(entry)
    total = 0
    for tensor, found in by_tensor.items():
        reads = [entry.read_bytes for entry in found]
        produced = tensor in SCRATCH or (len(found) > 1 and any(entry.write_bytes for entry in found))
        total += sum(reads) - (0 if produced else max(reads))
    return total


def trace_reads(entry: Entry, point: Point) -> Allowance:
    """Allowance of the distinct sectors read of one tensor."""
    return _trace(entry, entry.read_bytes, point)


def trace_writes(entry: Entry, point: Point) -> Allowance:
    """Allowance of the distinct sectors written of one tensor."""
    return _trace(entry, entry.write_bytes, point)


def _trace(entry: Entry, predicted: int, point: Point) -> Allowance:
    if entry.tensor in SCRATCH:
        return _scratch(entry, predicted, point)
    if not predicted:
        return Allowance(0, 0)
    if entry.tensor in ("k", "v"):
        return _vectors(entry, predicted, point)
    if entry.tensor == "summary":
        return Allowance(0, _boxes(entry, predicted, point))
    if entry.tensor == "block_table" and entry.stage in ("attend", "quest"):
        return _looked_up(predicted, point)
    if entry.stage.startswith("append") and entry.tensor in ("block_table", "summary_table"):
        return Allowance(0, (SECTOR_BYTES // 4 - 1) * predicted)  # one number a request, each on its own
    return Allowance(0, ALIGNED_RUN)


def _scratch(entry: Entry, predicted: int, point: Point) -> Allowance:
    """Counters and partials: a run a head and request; the arrangement of a user's kernels is their own.

    Those put what they like there, up to GATHER_SHARE of K and V: a gather's size, which is judged apart.
    """
    heads, vector = point.shape.num_qo_heads, point.shape.head_dim * dtype_bytes(point.shape.kv_dtype)
    if is_users(point.variant):
        pages = point.num_selected if entry.stage == "attend" else point.num_pages
        kv = 2 * sum(pages) * point.page_size * point.shape.num_kv_heads * vector
        return Allowance(predicted, round(GATHER_SHARE * kv))
    return Allowance(0, min(len(point.lengths) * heads * ANY_RUN, (SECTOR_BYTES // 4 - 1) * predicted))


def _vectors(entry: Entry, predicted: int, point: Point) -> Allowance:
    """K and V: whole vectors; of an unknown tail page and of a mean union only what they leave open."""
    shape = point.shape
    vector_bytes = shape.head_dim * dtype_bytes(shape.kv_dtype)
    above = 0 if vector_bytes % SECTOR_BYTES == 0 else predicted // vector_bytes * ANY_RUN
    if entry.stage not in ("attend", "quest"):
        return Allowance(0, above)
    pages = list(zip(point.lengths, point.num_pages, point.num_selected, strict=True))
    below = 0
    if point.policy != "quest":
        slots = sum(-length % point.page_size for length, total, chosen in pages if 0 < chosen < total)
        below += slots * shape.num_kv_heads * vector_bytes
    if shape.group_size > 1 and len({(total, chosen) for _, total, chosen in pages if chosen}) > 1:
        # The mean of unequal requests' unions: it says how many pages only between K and group_size x K.
        page_bytes = shape.num_kv_heads * point.page_size * vector_bytes
        spread = sum(min(shape.group_size * chosen, total) - chosen for _, total, chosen in pages)
        below, above = below + spread * page_bytes, above + spread * page_bytes
    return Allowance(below, above)


def _boxes(entry: Entry, predicted: int, point: Point) -> int:
    """Bytes that sectors add to the summary's reads or writes."""
    shape = point.shape
    element = dtype_bytes(shape.effective_summary_dtype)
    bound_bytes = shape.head_dim * element
    if point.summary_layout == "paired":
        return 0 if bound_bytes % SECTOR_BYTES == 0 else predicted // bound_bytes * ANY_RUN
    if entry.stage.startswith("append"):
        return (SECTOR_BYTES // element - 1) * predicted  # numbers a row apart, each in a sector of its own
    return row_slack(point, SECTOR_BYTES)


def _looked_up(predicted: int, point: Point) -> Allowance:
    """Entries of the block table that selected pages look up: each maybe alone in its sector.

    The ledger gives the most; every request looks up K different ones at least.
    """
    least = 4 * sum(point.num_selected)
    table = 4 * sum(point.num_pages) + ALIGNED_RUN
    most = min(SECTOR_BYTES // 4 * predicted, max(table, predicted))
    return Allowance(max(0, predicted - least), most - predicted)

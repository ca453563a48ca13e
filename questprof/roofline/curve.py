"""Bandwidth by working set: the roof of the last-level cache, and the knee where reads leave it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from questprof.model import CACHE_MULTIPLE, Ceiling, Environment
from questprof.roofline.vendor import Vendor
from questprof.roofs import Bandwidth, Roofs
from questprof.rows import Stat, summarise

KNEE_FACTOR: Final = 1.25
"""A working set reads from a cache as long as it is read this many times as fast as memory."""
LARGE: Final = {"cuda": 16, "cpu": CACHE_MULTIPLE}
"""Working set over the last-level cache from which on a repeated pass is a read of memory.

A GPU's L2 keeps part of a set that is a few times as large; a CPU's cache drops a line before its next turn.
"""


@dataclass(frozen=True)
class Size:
    """One working set of the bandwidth curve; GB/s are 1e9 bytes read and written a second."""

    operation: str
    name: str
    working_set_bytes: int
    stat: Stat
    fits_cache: bool | None
    """Against the last-level cache that the system names; None where it names none."""
    x_memory: float | None
    """Over the memory roof."""
    x_vendor: float | None
    """Over the vendor's memory bandwidth; None where it is unknown, or where the set fits the cache."""


def cache_roof(bandwidths: Iterable[Bandwidth], cache_bytes: int, memory_gb_s: float | None) -> float | None:
    """The largest median read of a working set within the last-level cache, GB/s.

    None where the cache's size is unknown, where nothing was read within it, or not faster than memory.
    """
    fitting = [
        stat.median
        for one in bandwidths
        if one.operation == "read" and one.working_set_bytes <= cache_bytes
        if (stat := summarise(one.samples_gb_s))
    ]
    best = max(fitting, default=None)
    return best if best and best > (memory_gb_s or 0) else None


def knee_bytes(bandwidths: Iterable[Bandwidth], cache_bytes: int) -> int | None:
    """The working set from which on reads come from memory, measured; None where the curve shows none.

    None too where no working set exceeds the last-level cache (`cache_bytes`, 0 where that is unknown).

    Memory's plateau is the read of the largest working set. The knee is where the curve comes down to
    KNEE_FACTOR times the plateau for the last time, on a line between its neighbours in both logarithms.
    """
    curve = sorted(
        (one.working_set_bytes, stat.median)
        for one in bandwidths
        if one.operation == "read" and (stat := summarise(one.samples_gb_s))
    )
    if not curve or curve[-1][0] <= cache_bytes:
        return None
    level = KNEE_FACTOR * curve[-1][1]
    above = [i for i, (_, gb_s) in enumerate(curve) if gb_s >= level]
    if not above:
        return None
    (size, gb_s), (next_size, next_gb_s) = curve[above[-1]], curve[above[-1] + 1]
    share = math.log(gb_s / level) / math.log(gb_s / next_gb_s)
    return round(size * math.exp(share * math.log(next_size / size)))


def large_reads(roofs: Roofs | None, environment: Environment) -> tuple[Ceiling, ...]:
    """The curve's reads of sets so large that no cache helps: streaming reads like any other ceiling.

    From LARGE of the last-level cache on; none where its size is unknown.
    """
    least = LARGE[environment.device] * environment.last_level_cache_bytes
    return tuple(
        Ceiling(f"repeated passes, {one.name}", one.working_set_bytes, one.samples_gb_s)
        for one in (roofs.bandwidths if roofs else ())
        if one.operation == "read" and one.working_set_bytes >= least > 0
    )


def sizes(
    bandwidths: Iterable[Bandwidth], env: Environment, memory: float | None, known: Vendor | None
) -> tuple[Size, ...]:
    """Every working set with valid samples, reads first, ascending."""
    found = []
    for one in bandwidths:
        stat = summarise(one.samples_gb_s)
        if not stat:
            continue
        cache = env.last_level_cache_bytes
        fits = one.working_set_bytes <= cache if cache else None
        of_vendor = stat.median / known.gb_s if known and fits is False else None
        of_memory = stat.median / memory if memory else None
        found.append(Size(one.operation, one.name, one.working_set_bytes, stat, fits, of_memory, of_vendor))
    return tuple(sorted(found, key=lambda size: (size.operation != "read", size.working_set_bytes)))

"""Bandwidth by working set: the roof of the last-level cache, and the knee where reads leave it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from questprof.model import CACHE_MULTIPLE, Ceiling, Environment
from questprof.roofline.vendor import Vendor
from questprof.roofs import Bandwidth, Roofs
from questprof.rows import Stat, summarise
from questprof.scan import ALARM_FACTOR

CACHE_SHARE: Final = 0.5
"""Of the last-level cache: a set up to there is read from it as fast as a smaller one.

On the H200's curve (profiles/h200/roofline.jsonl) half of the L2 reads within 3 % of a quarter of it, three
quarters a fifth slower.
"""
Served = Literal["cache", "both", "memory", "unknown"]
"""Where repeated passes over a working set are served from; both: the cache keeps part of it."""


@dataclass(frozen=True)
class Size:
    """One working set of the bandwidth curve; GB/s are 1e9 bytes read and written a second."""

    operation: str
    name: str
    working_set_bytes: int
    stat: Stat
    served: Served
    """By the last-level cache that the system names, and by the curve; unknown where it names none."""
    x_memory: float | None
    """Over the memory roof."""
    x_vendor: float | None
    """Over the vendor's memory bandwidth; None where that is unknown, or where a cache serves any of it."""


def cache_roof(bandwidths: Iterable[Bandwidth], cache_bytes: int, memory_gb_s: float | None) -> float | None:
    """The largest median read of a working set within the last-level cache, GB/s.

    None where the cache's size is unknown, where nothing was read within it, or not faster than memory.
    """
    fitting = (stat.median for size, stat in _medians(bandwidths, "read") if size <= cache_bytes)
    best = max(fitting, default=None)
    return best if best and best > (memory_gb_s or 0) else None


def knee_bytes(bandwidths: Iterable[Bandwidth], cache_bytes: int) -> int | None:
    """The working set from which on reads come from memory rather than the cache, measured; None without one.

    Half the way down, in logarithms, from the rate of the last-level cache to that of memory: at their
    geometric mean, where the curve comes down to it for the last time, on a line between its neighbours in
    both logarithms. The cache's rate is that of the largest set of at most CACHE_SHARE of its size (the
    fastest of all where `cache_bytes` is 0, unknown); memory's is that of the largest set. None where that
    set does not exceed the cache, or where the spreads (p10 to p90) of the two rates overlap.
    """
    curve = sorted(_medians(bandwidths, "read"), key=lambda pair: pair[0])
    if not curve or curve[-1][0] <= cache_bytes:
        return None
    memory = curve[-1][1]
    cache = _cache_rate(curve, cache_bytes)
    if cache is None or cache.p10 <= memory.p90:
        return None
    level = math.sqrt(cache.median * memory.median)
    last = max(i for i, (_, stat) in enumerate(curve) if stat.median >= level)
    (size, stat), (next_size, next_stat) = curve[last], curve[last + 1]
    share = math.log(stat.median / level) / math.log(stat.median / next_stat.median)
    return round(size * math.exp(share * math.log(next_size / size)))


def _cache_rate(curve: Sequence[tuple[int, Stat]], cache_bytes: int) -> Stat | None:
    """Of the largest set of at most half the cache; the fastest of all where its size is unknown."""
    if not cache_bytes:
        return max((stat for _, stat in curve), key=lambda stat: stat.median)
    return next((stat for size, stat in reversed(curve) if size <= CACHE_SHARE * cache_bytes), None)


def _medians(bandwidths: Iterable[Bandwidth], operation: str) -> Iterable[tuple[int, Stat]]:
    """(working set, samples in brief) of an operation; sets with invalid samples left out."""
    for one in bandwidths:
        if one.operation == operation and (stat := summarise(one.samples_gb_s)):
            yield one.working_set_bytes, stat


def served(working_set_bytes: int, gb_s: float, larger_gb_s: Iterable[float], cache_bytes: int) -> Served:
    """Where passes over a set come from that are measured at `gb_s`, larger ones at `larger_gb_s`.

    Cache: up to CACHE_SHARE of it. Memory: beyond CACHE_MULTIPLE caches, and not faster than any larger set
    by more than ALARM_FACTOR, the precision to which a figure counts as above a roof: a cache that still
    keeps part of the set shows as a curve that still comes down.
    """
    if not cache_bytes:
        return "unknown"
    if working_set_bytes <= CACHE_SHARE * cache_bytes:
        return "cache"
    flat = all(gb_s <= ALARM_FACTOR * larger for larger in larger_gb_s)
    return "memory" if flat and working_set_bytes > CACHE_MULTIPLE * cache_bytes else "both"


def large_reads(roofs: Roofs, environment: Environment) -> tuple[Ceiling, ...]:
    """The curve's reads that memory alone served: streaming reads like any other ceiling."""
    of_memory = {
        size.working_set_bytes
        for size in sizes(roofs.bandwidths, environment, None, None)
        if size.operation == "read" and size.served == "memory"
    }
    return tuple(
        Ceiling(f"repeated passes, {one.name}", one.working_set_bytes, one.samples_gb_s)
        for one in roofs.bandwidths
        if one.operation == "read" and one.working_set_bytes in of_memory
    )


def sizes(
    bandwidths: Sequence[Bandwidth], env: Environment, memory: float | None, known: Vendor | None
) -> tuple[Size, ...]:
    """Every working set with valid samples, reads first, ascending."""
    found = []
    for one in bandwidths:
        stat = summarise(one.samples_gb_s)
        if not stat:
            continue
        num_bytes = one.working_set_bytes
        larger = (s.median for size, s in _medians(bandwidths, one.operation) if size > num_bytes)
        by = served(num_bytes, stat.median, larger, env.last_level_cache_bytes)
        of_vendor = stat.median / known.gb_s if known and by == "memory" else None
        of_memory = stat.median / memory if memory else None
        found.append(Size(one.operation, one.name, num_bytes, stat, by, of_memory, of_vendor))
    return tuple(sorted(found, key=lambda size: (size.operation != "read", size.working_set_bytes)))

"""The roofline: measured ceilings in, each stage's place under them out. Pure.

Two roofs of bandwidth: that of memory (DRAM on a GPU), the largest streaming read of the run, and that of the
last-level cache, the fastest read of a working set that fits it. A stage's bytes at memory are those of
equation (12), which are cold; at the cache they are all bytes that the ledger counts. Operations are modelled
(`flops.py`), times are measured. Vendor figures stand beside and enter nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from questprof.model import Environment, Profile
from questprof.roofline.curve import Size, cache_roof, knee_bytes, sizes
from questprof.roofline.placing import Limits, Line, place_lines
from questprof.roofline.vendor import Vendor, vendor
from questprof.roofs import FlopRate, LaunchKind, Roofs
from questprof.rows import Stat, summarise
from questprof.scan import ALARM_FACTOR, best_ceiling
from questprof.units import format_bytes


@dataclass(frozen=True)
class Rate:
    """One measured rate of arithmetic, in units of 1e12 operations a second, with the vendor's beside it."""

    name: str
    dtype: str
    unit: str
    size: str
    stat: Stat
    vendor_tflop_s: float | None
    x_vendor: float | None


@dataclass(frozen=True)
class Overhead:
    """One measured launch of nothing, in us."""

    name: str
    kind: LaunchKind
    stat: Stat


@dataclass(frozen=True)
class Roofline:
    """Everything `roofline` says of one profile; what does not exist is None or empty, `notes` say why."""

    memory_gb_s: float | None
    cache_gb_s: float | None
    knee_bytes: int | None
    cache_bytes: int
    launch_us: float | None
    vendor: Vendor | None
    bus_gb_s: float | None
    """Derived from NVML's bus width and memory clock."""
    sizes: tuple[Size, ...]
    rates: tuple[Rate, ...]
    overheads: tuple[Overhead, ...]
    lines: tuple[Line, ...]
    alarms: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def roofline(profile: Profile) -> Roofline:
    """Ceilings and stages of a profile: any one with times, though `roofline` alone measures every roof."""
    header = profile.header
    roofs = header.roofs or Roofs()
    env, known = header.environment, vendor(header.environment.device_name)
    memory = _memory_gb_s(next((run for run in profile.runs if run.header.roofs), profile))
    cache = cache_roof(roofs.bandwidths, env.last_level_cache_bytes, memory)
    overheads = tuple(
        Overhead(x.name, x.kind, stat) for x in roofs.launches if (stat := summarise(x.samples_us))
    )
    limits = Limits(memory, cache, roofs.flop_rates, launch_us(overheads, env.device))
    lines = tuple(place_lines(profile, lambda run: _of_run(limits, run), env.device))
    return Roofline(
        memory_gb_s=memory,
        cache_gb_s=cache,
        knee_bytes=knee_bytes(roofs.bandwidths, env.last_level_cache_bytes),
        cache_bytes=env.last_level_cache_bytes,
        launch_us=limits.launch_us,
        vendor=known,
        bus_gb_s=roofs.memory_bus.gb_s if roofs.memory_bus else None,
        sizes=sizes(roofs.bandwidths, env, memory, known),
        rates=_rates(roofs.flop_rates, known),
        overheads=overheads,
        lines=lines,
        alarms=tuple(dict.fromkeys(line.alarm for line in lines if line.alarm)),
        notes=tuple(_notes(roofs, env, memory, cache, known)),
    )


def _memory_gb_s(profile: Profile) -> float | None:
    """The largest streaming read of a profile, 1e9 bytes a second."""
    calibration = (c for record in profile.records for c in record.calibration)
    return best_ceiling([*profile.header.ceilings, *calibration])


def _of_run(limits: Limits, run: Profile) -> Limits:
    """`limits` with the memory roof that `run` read itself, where it did: runs differ by some percent."""
    return replace(limits, memory_gb_s=_memory_gb_s(run) or limits.memory_gb_s)


TIMED_AS: Final[dict[str, LaunchKind]] = {"cuda": "graph node", "cpu": "compiled call"}
"""What no timed stage of a device can do without: it is its launch roof."""


def launch_us(overheads: Sequence[Overhead], device: str) -> float | None:
    """The least time of a launch of the kind that the stages of `device` are timed as; None without any.

    Where no launch has a kind (profiles of before it was kept): the least of all.
    """
    kind: LaunchKind = TIMED_AS[device] if any(one.kind for one in overheads) else ""
    return min((one.stat.median for one in overheads if one.kind == kind), default=None)


def _rates(rates: Iterable[FlopRate], known: Vendor | None) -> tuple[Rate, ...]:
    found = []
    for one in rates:
        if stat := summarise(one.samples_tflop_s):
            told = known.tflop_s.get(one.dtype) if known else None
            share = stat.median / told if told else None
            found.append(Rate(one.name, one.dtype, one.unit, one.size, stat, told, share))
    return tuple(found)


def _notes(
    roofs: Roofs, env: Environment, memory: float | None, cache: float | None, known: Vendor | None
) -> Iterable[str]:
    """What is missing, and figures that contradict each other."""
    yield from (f"{what}: {why}" for what, why in roofs.absent)
    if memory is None:
        yield "no memory roof: no streaming read was measured"
    if not known:
        yield f"measured only: no vendor figure is known for {env.device_name}"
    if not roofs.bandwidths:
        yield "no bandwidth by working set: `questprof roofline` measures it, this profile has none"
    elif cache is None and not env.last_level_cache_bytes:
        yield "no cache roof: the system does not tell the size of the last-level cache"
    elif cache is None:
        yield "no cache roof: no working set within the last-level cache was read faster than memory"
    printed = {"vendor's": known.gb_s if known else None}
    printed["bus width x clock of NVML, a derived"] = roofs.memory_bus.gb_s if roofs.memory_bus else None
    for name, gb_s in printed.items():
        if gb_s and memory and memory > ALARM_FACTOR * gb_s:
            yield (
                f"the measured memory roof of {memory:.4g} GB/s is above the {name} figure of {gb_s:.4g} "
                "GB/s: one of them is of another device, or the bus width was mistaken"
            )


def cache_sentence(found: Roofline, device: str) -> str:
    """The last-level cache as the system names it, beside the measured knee."""
    name = "L2" if device == "cuda" else "last-level cache"
    told = format_bytes(found.cache_bytes) if found.cache_bytes else "unknown"
    if found.knee_bytes:
        knee = f"reads are halfway down to memory's rate at {format_bytes(found.knee_bytes)} (measured)"
    else:
        knee = "no knee in the curve"
    return f"{name}: {told} by its properties; {knee}"


def as_document(found: Roofline) -> dict[str, Any]:
    """`found` for JSON, each line with its nearest roof and what it reaches of it."""
    derived = ("bound", "nearest_roof", "roof_share", "memory_share")
    lines = [
        msgspec.to_builtins(line) | {name: getattr(line, name) for name in derived} for line in found.lines
    ]
    return dict(msgspec.to_builtins(found)) | {"lines": lines}

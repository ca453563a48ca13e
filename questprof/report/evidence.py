"""Which of several profiles speak of one question: the same device and shape, joined for one verdict.

Times, energy and hardware counts belong to a device and a shape. Byte counts by address trace belong to the
kernels of a shape, wherever they ran, and attention mass to a model: both join on the shape alone. Shapes are
the same when their heads and dtype are; a trace of a model is of any dtype, and an address trace may be of
the first heads alone, as every head moves the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from questprof.bytecheck.grid import traced_shape
from questprof.model import Environment, Profile, Record, Shape
from questprof.report.scanned import rows_of
from questprof.rows import Row
from questprof.sweep.merge import rank

USUAL_LENGTH: Final = 32768
USUAL_BUDGET: Final = 2048
USUAL_PAGE_SIZE: Final = 16
"""What a page speaks of where it has the choice."""

Heads = tuple[int, int, int]


@dataclass(frozen=True)
class Evidence:
    """What the profiles of a page say of one device and shape."""

    environment: Environment
    shape: Shape
    times: Profile
    """The profile whose times are in the verdict: of several, the one with the most points of this shape, of
    those the earliest; in whatever order they are given."""
    rows: tuple[Row, ...]
    """Its length scan, of this shape alone."""
    bytes: tuple[Profile, ...]
    steps: tuple[Profile, ...]
    recall: tuple[Profile, ...]
    roofs: tuple[Profile, ...]
    other_times: tuple[Profile, ...]
    apart: tuple[str, ...]
    """Profiles of the page that are not in this verdict, and why, in words."""

    @property
    def used(self) -> tuple[Profile, ...]:
        """Every profile that the verdict rests on, once."""
        every = (self.times, *self.bytes, *self.steps, *self.recall, *self.roofs)
        return tuple({id(profile): profile for profile in every}.values())


def heads_of(shape: Shape) -> Heads:
    """What makes two shapes the same attention."""
    return shape.num_qo_heads, shape.num_kv_heads, shape.head_dim


def evidence(profiles: Sequence[Profile]) -> tuple[Evidence, ...]:
    """One entry for every device and shape that was timed, in the order of the profiles."""
    found: dict[tuple[str, str, Heads, str], dict[int, list[Row]]] = {}
    for number, profile in enumerate(profiles):
        for row in rows_of(profile):
            shape = row.point.shape
            key = (*_device(profile), heads_of(shape), shape.kv_dtype)
            found.setdefault(key, {}).setdefault(number, []).append(row)
    return tuple(_evidence(profiles, rows) for rows in found.values())


def _evidence(profiles: Sequence[Profile], rows: dict[int, list[Row]]) -> Evidence:
    main = min(rows, key=lambda number: (-len(rows[number]), rank(profiles[number])))
    times, shape = profiles[main], rows[main][0].point.shape
    here = [profile for profile in profiles if _device(profile) == _device(times)]
    counted = tuple(p for p in profiles if _has(p, "bytes", shape) and (p in here or _is_traced(p)))
    found = Evidence(
        environment=times.header.environment,
        shape=shape,
        times=times,
        rows=tuple(rows[main]),
        bytes=counted,
        steps=tuple(p for p in here if _has(p, "amdahl", shape)),
        recall=tuple(p for p in profiles if _has(p, "recall", shape)),
        roofs=tuple(sorted((p for p in here if p.header.roofs), key=rank)),
        other_times=tuple(profiles[number] for number in rows if number != main),
        apart=(),
    )
    return _with_apart(found, profiles)


def _with_apart(found: Evidence, profiles: Sequence[Profile]) -> Evidence:
    """`found` with a line for every profile that it does not rest on, or whose times it does not."""
    used, others = ({id(profile) for profile in own} for own in (found.used, found.other_times))
    names = {id(profile): name_of(profile, number) for number, profile in enumerate(profiles, start=1)}
    times = f"of the same shape, of another run; those here are of {names[id(found.times)]}"
    said = []
    for profile in profiles:
        name = names[id(profile)]
        if id(profile) in others and id(profile) in used:
            said.append(f"the times of {name}, {times}")
        elif id(profile) in others:
            said.append(f"{name}: times {times}")
        elif id(profile) not in used:
            said.append(f"{name}: {_why_apart(profile, found)}")
    return replace(found, apart=tuple(said))


def _why_apart(profile: Profile, found: Evidence) -> str:
    if not profile.records:
        return "it has no records"
    shapes = {record.point.shape.name: record.point.shape for record in profile.records}
    same = any(_alike(shape, found.shape, record.kind) for shape, record in _shapes(profile))
    own = profile.header.environment.device_name
    if same and _device(profile) != _device_of(found.environment):
        return f"it is of another device, {own}, not of {found.environment.device_name}"
    return f"it is of another shape, {', '.join(shapes)}, not of {found.shape.name} ({found.shape.kv_dtype})"


def name_of(profile: Profile, number: int) -> str:
    """The file's name, or the profile's place on the page."""
    return profile.name or f"profile {number}"


def _device(profile: Profile) -> tuple[str, str]:
    return _device_of(profile.header.environment)


def _device_of(env: Environment) -> tuple[str, str]:
    return env.device, env.device_name


def _shapes(profile: Profile) -> Iterable[tuple[Shape, Record]]:
    return ((record.point.shape, record) for record in profile.records)


def counts_for(one: Shape, other: Shape) -> bool:
    """Whether bytes of `one` say something of `other`: all its heads, or the first as a trace takes."""
    return heads_of(one) in (heads_of(other), heads_of(traced_shape(other)))


def _alike(one: Shape, other: Shape, kind: str) -> bool:
    """Whether a record of `kind` of shape `one` says something of shape `other`."""
    heads = counts_for(one, other) if kind == "bytes" else heads_of(one) == heads_of(other)
    return heads and (kind == "recall" or one.kv_dtype == other.kv_dtype)


def _has(profile: Profile, kind: str, shape: Shape) -> bool:
    return any(r.kind == kind and _alike(r.point.shape, shape, kind) for r in profile.records)


def _is_traced(profile: Profile) -> bool:
    """Whether its bytes were counted by address trace, which any machine does alike."""
    counts = (count for record in profile.records for count in record.counts)
    sources = {count.source for count in counts}
    return sources == {"trace"}

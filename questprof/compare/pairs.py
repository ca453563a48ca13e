"""Which records of two profiles, or of two stage sets in one profile, face each other in a comparison.

Pure. Points are equal but for what is compared. Other devices, drivers, dtypes and shapes are refused unless
forced: their figures answer another question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.model import Environment, Point, Profile, Record
from questprof.structs import canonical_json
from questprof.units import format_count

MACHINE_FIELDS: Final = ("device", "device_name", "driver", "cuda", "num_workers", "last_level_cache_bytes")
"""What must agree between two runs; versions and commit may differ, as they are what one compares."""
NOTED_FIELDS: Final = ("versions", "commit", "python", "platform")


@dataclass(frozen=True)
class Pair:
    """Two records of one point: what is compared with what."""

    base: Record
    new: Record


@dataclass(frozen=True)
class Pairs:
    """All pairs, the records left without a partner, and what is to be said beside the figures."""

    pairs: tuple[Pair, ...]
    only_base: tuple[Record, ...]
    only_new: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    one_run: bool = False
    """Whether both sides were measured by one run."""
    names: tuple[str, str] = ("base", "new")


@dataclass(frozen=True)
class _Looseness:
    """What points may differ in, and how that reads; the strictest that matches anything is taken."""

    says: str
    neutral: Callable[[Point], Point] = field(default=lambda point: point)


def _without_dtype(point: Point) -> Point:
    shape = replace(point.shape, kv_dtype="", summary_dtype="")
    return replace(point, shape=shape, device="cuda", variant="")


def _without_shape(point: Point) -> Point:
    shape = replace(point.shape, name="", num_qo_heads=1, num_kv_heads=1, head_dim=1, num_layers=1)
    return _without_dtype(replace(point, shape=shape))


_LOOSER: Final = (
    _Looseness("points match but for dtype and device", _without_dtype),
    _Looseness("points match but for shape, dtype and device", _without_shape),
)


def across(base: Profile, new: Profile, *, force: bool = False) -> Pairs:
    """Pairs of two runs, matched by point; of several records of one point the last counts.

    Raises QuestprofError for another device, driver or machine, and for profiles that share no point;
    with `force` those become notes, and points are matched without dtype, then without shape.
    """
    names = (base.name or "base", new.name or "new")
    if names[0] == names[1]:
        names = (f"{names[0]} (base)", f"{names[1]} (new)")
    notes = [note for note in (_machines(base, new, force), _noted(base, new)) if note]
    found = _match(base.records, new.records, lambda point: point, names)
    if not found.pairs:
        found, says = _forced_match(base, new, force, names)
        notes.append(says)
    return dataclasses.replace(found, notes=tuple(notes))


def within(profile: Profile, base: str, new: str) -> Pairs:
    """Pairs of backends `base` and `new` inside one profile: points equal but for backend and variant.

    Raises QuestprofError when a name is not in the profile, or the two share no point.
    """
    known = dict.fromkeys(record.point.backend for record in profile.records)
    for name in (base, new):
        if name not in known:
            why = f"{profile.name} holds no such backend"
            raise QuestprofError(f"backend {name!r}", why, f"Choose two of {', '.join(known) or 'none'}.")
    ours, theirs = ([r for r in profile.records if r.point.backend == name] for name in (base, new))
    found = _match(ours, theirs, lambda point: replace(point, backend="", variant=""), (base, new))
    if not found.pairs:
        raise _nothing_shared(f"{base} and {new} of {profile.name}")
    sides = zip((base, new), (ours, theirs), strict=True)
    ran = (f"{name} is {', '.join(variants)}" for name, side in sides if (variants := _variants(side)))
    return dataclasses.replace(found, one_run=True, notes=tuple(ran))


def refuse_other_machine(base: Profile, new: Profile) -> None:
    """QuestprofError unless both profiles were measured on machines that agree in MACHINE_FIELDS."""
    _machines(base, new, False)


def _variants(records: Iterable[Record]) -> list[str]:
    return sorted({record.variant for record in records} - {""})


def _match(
    base: Sequence[Record],
    new: Sequence[Record],
    neutral: Callable[[Point], Point],
    names: tuple[str, str],
) -> Pairs:
    ours, theirs = _by_key(base, neutral), _by_key(new, neutral)
    return Pairs(
        tuple(Pair(record, theirs[key]) for key, record in ours.items() if key in theirs),
        tuple(record for key, record in ours.items() if key not in theirs),
        tuple(record for key, record in theirs.items() if key not in ours),
        names=names,
    )


def _by_key(records: Iterable[Record], neutral: Callable[[Point], Point]) -> dict[bytes, Record]:
    return {record.kind.encode() + canonical_json(neutral(record.point)): record for record in records}


def _forced_match(base: Profile, new: Profile, force: bool, names: tuple[str, str]) -> tuple[Pairs, str]:
    for looser in _LOOSER:
        found = _match(base.records, new.records, looser.neutral, names)
        if found.pairs and force:
            return found, f"forced: {looser.says}"
        if found.pairs:
            raise QuestprofError(
                f"cannot compare {names[0]} with {names[1]}",
                f"they share no point; {looser.says}",
                "Measure the same grid twice, or compare anyway with --force.",
            )
    raise _nothing_shared(" and ".join(names))


def _nothing_shared(what: str) -> QuestprofError:
    return QuestprofError(
        f"{what} cannot be compared", "they share no point", "Measure the same grid with both."
    )


def _machines(base: Profile, new: Profile, force: bool) -> str:
    """How the machines differ where that matters, '' when they agree; QuestprofError unless forced."""
    differ = _differences(base.header.environment, new.header.environment, MACHINE_FIELDS)
    if differ and not force:
        raise QuestprofError(
            f"cannot compare {base.name} with {new.name}",
            f"they are of different machines ({differ})",
            "Measure both on one machine, or compare anyway with --force.",
        )
    return f"forced: different machines ({differ})" if differ else ""


def _noted(base: Profile, new: Profile) -> str:
    differ = _differences(base.header.environment, new.header.environment, NOTED_FIELDS)
    return f"differing: {differ}" if differ else ""


def _differences(one: Environment, other: Environment, fields: Sequence[str]) -> str:
    """`field: a -> b` for each of `fields` that differs; of a mapping only the entries that do."""
    said = []
    for name in fields:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, dict):
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            said += [f"{key}: {a.get(key, 'none')} -> {b.get(key, 'none')}" for key in keys]
        elif a != b:
            said.append(f"{name}: {a or 'none'} -> {b or 'none'}")
    return ", ".join(said)


_TITLES: Final[tuple[Callable[[Point], str], ...]] = (
    lambda point: point.shape.name,
    lambda point: point.shape.kv_dtype,
    lambda point: f"batch {point.batch_size}",
    lambda point: f"page {point.page_size}",
    lambda point: point.policy,
    lambda point: point.backend,
    lambda point: point.summary_layout,
    lambda point: f"{point.page_order} pages",
    lambda point: f"{point.data} data",
    lambda point: f"seed {point.seed}",
)
"""What a point is called by, where it differs between points."""


def labels(points: Sequence[Point]) -> list[str]:
    """A short name for each of `points`, unique: length, budget and what varies, `32k/2048 quest sdpa`."""
    varying = [title for title in _TITLES if len({title(point) for point in points}) > 1]
    found = [" ".join([_size(point), *(title(point) for title in varying)]) for point in points]
    counts: dict[str, set[str]] = {}
    for point, label in zip(points, found, strict=True):
        counts.setdefault(label, set()).add(point.point_id)
    return [
        f"{label} {point.point_id[:6]}" if len(counts[label]) > 1 else label
        for point, label in zip(points, found, strict=True)
    ]


def _size(point: Point) -> str:
    budget = f"/{format_count(point.token_budget)}" if point.token_budget else ""
    return format_count(point.seq_len) + budget

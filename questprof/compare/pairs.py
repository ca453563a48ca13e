"""Which records of two profiles, or of two stage sets in one profile, face each other in a comparison.

Pure. Points are equal but for what is compared. Other devices, drivers, dtypes and shapes are refused unless
forced: their figures answer another question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from questprof.decode.records import ASIDE
from questprof.errors import QuestprofError
from questprof.model import Environment, Point, Profile, Record
from questprof.structs import canonical_json
from questprof.units import count

MACHINE_FIELDS: Final = ("device", "device_name", "driver", "cuda", "num_workers", "last_level_cache_bytes")
"""What must agree between two runs; versions and commit may differ, as they are what one compares."""
NOTED_FIELDS: Final = ("versions", "commit", "python", "platform")
TIMED: Final = ("sweep", "amdahl")
"""Kinds of record that hold times; bytes and recall are not compared."""


@dataclass(frozen=True)
class Pair:
    """Two records of one point: what is compared with what."""

    base: Record
    new: Record


@dataclass(frozen=True)
class Unclear:
    """Points of which nobody can say which of one side faces which of the other."""

    base: tuple[Record, ...]
    new: tuple[Record, ...]


@dataclass(frozen=True)
class Pairs:
    """All pairs, the records left without a partner, and what is to be said beside the figures."""

    pairs: tuple[Pair, ...]
    only_base: tuple[Record, ...]
    only_new: tuple[Record, ...]
    unclear: tuple[Unclear, ...] = ()
    notes: tuple[str, ...] = ()
    one_run: bool = False
    """Whether both sides were measured by one run."""
    names: tuple[str, str] = ("base", "new")


def _without_dtype(point: Point) -> Point:
    shape = replace(point.shape, kv_dtype="", summary_dtype="")
    return replace(point, shape=shape, device="cuda", variant="")


def _without_shape(point: Point) -> Point:
    shape = replace(point.shape, name="", num_qo_heads=1, num_kv_heads=1, head_dim=1, num_layers=1)
    setup = point.decode and replace(point.decode, model="")
    return _without_dtype(replace(point, shape=shape, decode=setup))


def _without_layout(point: Point) -> Point:
    return _without_shape(replace(point, summary_layout="paired"))


def _without_weights(point: Point) -> Point:
    setup = point.decode and replace(point.decode, weight_format="")
    return _without_layout(replace(point, decode=setup))


_LOOSER: Final = (_without_dtype, _without_shape, _without_layout, _without_weights)
"""What points may differ in; the strictest that matches anything is taken."""
_SET_ASIDE: Final[dict[str, Callable[[Point], object]]] = {
    "shape": lambda point: (
        replace(point.shape, kv_dtype="", summary_dtype=""),
        point.decode and point.decode.model,
    ),
    "summary layout": lambda point: point.summary_layout,
    "weights": lambda point: point.decode and point.decode.weight_format,
    "dtype": lambda point: (point.shape.kv_dtype, point.shape.effective_summary_dtype),
    "device": lambda point: point.device,
    "variant": lambda point: point.variant,
}
"""What `_LOOSER` sets aside, in words."""


def across(base: Profile, new: Profile, *, force: bool = False) -> Pairs:
    """Pairs of two runs, matched by point; of several records of one point the last counts, which is noted.

    Raises QuestprofError for a profile that times nothing, for another device, driver or machine, and for
    profiles that share no point. With `force` the last two become notes, and points are matched without
    dtype, then without shape, the layout that goes with it, and the format of the weights.
    """
    names = (base.name or "base", new.name or "new")
    if names[0] == names[1]:
        names = (f"{names[0]} (base)", f"{names[1]} (new)")
    aside = _aside(base, new)
    base, new = _timed(base), _timed(new)
    sides = (base.records, new.records)
    notes = [
        _itself(base, new),
        _machines(base, new, force),
        _noted(base, new),
        *_repeats(sides, names),
        aside,
    ]
    found = _match(*sides, lambda point: point, names)
    if not found.pairs:
        found, says = _forced_match(base, new, force, names)
        notes.append(says)
    return dataclasses.replace(found, notes=tuple(filter(None, notes)))


def within(profile: Profile, base: str, new: str) -> Pairs:
    """Pairs of backends `base` and `new` inside one profile: points equal but for backend and variant.

    Raises QuestprofError when the profile times nothing, when a name is not in it, when both are the same,
    or when the two share no point.
    """
    aside, profile = _aside(profile), _timed(profile)
    known = dict.fromkeys(record.point.backend for record in profile.records)
    for name in (base, new):
        if name not in known:
            why = f"{profile.name} holds no such backend"
            raise QuestprofError(f"backend {name!r}", why, f"Choose two of {', '.join(known) or 'none'}.")
    if base == new:
        raise QuestprofError(
            f"--base {base} --new {new}",
            "a backend is no evidence against itself",
            f"Choose two of {', '.join(known)}, or name two profiles.",
        )
    ours, theirs = ([r for r in profile.records if r.point.backend == name] for name in (base, new))
    found = _match(ours, theirs, lambda point: replace(point, backend="", variant=""), (base, new))
    if not (found.pairs or found.unclear):
        raise _nothing_shared(f"{base} and {new} of {profile.name}")
    sides = zip((base, new), (ours, theirs), strict=True)
    ran = (f"{name} is {', '.join(variants)}" for name, side in sides if (variants := _variants(side)))
    notes = (*ran, *_repeats((ours, theirs), (base, new)), *filter(None, [aside]))
    return dataclasses.replace(found, one_run=True, notes=notes)


def refuse_other_machine(base: Profile, new: Profile) -> None:
    """QuestprofError unless both profiles were measured on machines that agree in MACHINE_FIELDS."""
    _machines(base, new, False)


def judged_us(record: Record) -> Mapping[str, tuple[float, ...]]:
    """The samples (us) by stage that a verdict may rest on: not those of ASIDE, which are always too few."""
    aside = ASIDE if record.kind == "amdahl" else ()
    return {stage: samples for stage, samples in record.times_us.items() if stage not in aside}


def _aside(*profiles: Profile) -> str:
    """Which stages of steps are not judged, and why; '' where there are none."""
    steps = [record for profile in profiles for record in profile.records if record.kind == "amdahl"]
    names = [name for name in ASIDE if any(record.times_us.get(name) for record in steps)]
    return (
        f"steps are compared as launched for use; not compared, timed too few times for a verdict: "
        f"{' and '.join(names)} steps"
        if names
        else ""
    )


def _timed(profile: Profile) -> Profile:
    """`profile` with records and stages to judge; QuestprofError where no record of several has times."""
    kept = tuple(
        replace(record, times_us=judged_us(record)) for record in profile.records if record.kind in TIMED
    )
    if profile.records and not kept:
        kinds = ", ".join(sorted({record.kind for record in profile.records}))
        raise QuestprofError(
            f"{profile.name or 'a profile'} cannot be compared",
            f"it holds no times (its records are of kind {kinds})",
            "Name profiles that `questprof sweep` or `questprof amdahl` wrote.",
        )
    return replace(profile, records=kept)


def refuse_strangers(baselines: Sequence[Profile]) -> None:
    """QuestprofError where a further baseline times no point of the first: it shows no spread of it."""
    first = {(r.kind, r.point_id) for r in _timed(baselines[0]).records if r.times_us}
    for other in baselines[1:]:
        if not any(r.times_us and (r.kind, r.point_id) in first for r in _timed(other).records):
            raise QuestprofError(
                f"--also {other.name}",
                f"it times no point of {baselines[0].name or 'BASE'}, and says nothing of its spread",
                "Name other runs of the code of BASE.",
            )


def refuse_repeats(baselines: Sequence[Profile], new: Profile | None = None, option: str = "--also") -> None:
    """QuestprofError where a run is given twice as a baseline, or is judged by a spread that holds itself.

    `new`: the run that is judged, where it is known already; `option`: how a further baseline is given.
    """
    for i, one in enumerate(baselines):
        if any(one.records == other.records for other in baselines[:i]):
            why = "it is a run that is a baseline already, and says nothing of the spread between runs"
        elif new and len(baselines) > 1 and one.records == new.records and i > 0:
            why = "it is the run that is judged, and cannot be its own baseline"
        else:
            continue
        raise QuestprofError(f"{option} {one.name}", why, "Name other runs of the same code.")


def _variants(records: Iterable[Record]) -> list[str]:
    return sorted({record.variant for record in records} - {""})


def _match(
    base: Sequence[Record],
    new: Sequence[Record],
    neutral: Callable[[Point], Point],
    names: tuple[str, str],
) -> Pairs:
    """Pairs of points that `neutral` makes equal; where several of one side become equal, none is paired."""
    ours, theirs = _by_key(base, neutral), _by_key(new, neutral)
    both = [(found, theirs[key]) for key, found in ours.items() if key in theirs]
    return Pairs(
        tuple(Pair(*mine, *yours) for mine, yours in both if len(mine) == len(yours) == 1),
        tuple(record for key, found in ours.items() if key not in theirs for record in found),
        tuple(record for key, found in theirs.items() if key not in ours for record in found),
        tuple(Unclear(tuple(m), tuple(y)) for m, y in both if not len(m) == len(y) == 1),
        names=names,
    )


def _by_key(records: Iterable[Record], neutral: Callable[[Point], Point]) -> dict[bytes, list[Record]]:
    """The records of the points that `neutral` makes equal, one a point: its last."""
    found: dict[bytes, dict[str, Record]] = {}
    for record in records:
        key = record.kind.encode() + canonical_json(neutral(record.point))
        found.setdefault(key, {})[record.point.point_id] = record
    return {key: list(same.values()) for key, same in found.items()}


def _repeats(sides: Iterable[Sequence[Record]], names: tuple[str, str]) -> list[str]:
    """A note for each side that holds several records of one point."""
    counts = [len(records) - len({(r.kind, r.point_id) for r in records}) for records in sides]
    return [
        f"{name} measures points more than once, the last counts: "
        f"{count(earlier, 'earlier record is', 'earlier records are')} left out"
        for name, earlier in zip(names, counts, strict=True)
        if earlier
    ]


def _forced_match(base: Profile, new: Profile, force: bool, names: tuple[str, str]) -> tuple[Pairs, str]:
    for neutral in _LOOSER:
        found = _match(base.records, new.records, neutral, names)
        shared = found.pairs or found.unclear
        if shared and force:
            return found, f"forced: {_but_for(found)}"
        if shared:
            raise QuestprofError(
                f"cannot compare {names[0]} with {names[1]}",
                f"they share no point; {_but_for(found)}",
                "Measure the same grid twice, or compare anyway with --force.",
            )
    empty = [name for name, side in zip(names, (base, new), strict=True) if not side.records]
    raise _nothing_shared(" and ".join(names), empty)


def _but_for(found: Pairs) -> str:
    """`points match but for dtype and device`: what differs between the points that face each other."""
    facing = [(pair.base.point, pair.new.point) for pair in found.pairs]
    facing += [(b.point, n.point) for unclear in found.unclear for b in unclear.base for n in unclear.new]
    differ = (name for name, of in _SET_ASIDE.items() if any(of(base) != of(new) for base, new in facing))
    most, _, last = ", ".join(differ).rpartition(", ")
    return f"points match but for {most}{' and ' * bool(most)}{last}"


def _nothing_shared(what: str, empty: Sequence[str] = ()) -> QuestprofError:
    why = f"no record is in {' and '.join(empty)}" if empty else "they share no point"
    return QuestprofError(f"{what} cannot be compared", why, "Measure the same grid with both.")


def _machines(base: Profile, new: Profile, force: bool) -> str:
    """How the machines differ where that matters, '' when they agree; QuestprofError unless forced."""
    differ = differences(base.header.environment, new.header.environment, MACHINE_FIELDS)
    if differ and not force:
        raise QuestprofError(
            f"cannot compare {base.name} with {new.name}",
            f"they are of different machines ({differ})",
            "Measure both on one machine, or compare anyway with --force.",
        )
    return f"forced: different machines ({differ})" if differ else ""


def _itself(base: Profile, new: Profile) -> str:
    """That both are one run; '' where they are not, or hold nothing."""
    same = base.header == new.header and base.records == new.records != ()
    return "both hold the same records: a run is compared with itself, which shows nothing" if same else ""


def _noted(base: Profile, new: Profile) -> str:
    differ = differences(base.header.environment, new.header.environment, NOTED_FIELDS)
    return f"differing: {differ}" if differ else ""


def differences(one: Environment, other: Environment, fields: Sequence[str]) -> str:
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

"""Where Quest pays, along the length or the batch, of equal and of ragged requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from questprof.amdahl.pairs import Pair, lengths_text, series_of, title
from questprof.amdahl.plan import spread
from questprof.crossover.crossing import Crossover, solve
from questprof.crossover.sentences import format_length
from questprof.model import Point
from questprof.units import format_count

Axis = Literal["length", "batch"]
Requests = Literal["", "equal", "ragged"]


@dataclass(frozen=True)
class Paying:
    """Where Quest pays along one axis, everything else fixed: measured speed-ups and where they cross 1."""

    axis: Axis
    setting: str
    curve: tuple[tuple[int, float], ...]
    """(length or batch size, measured speed-up of the whole step), rising."""
    found: Crossover
    undecided: tuple[int, ...] = ()
    """Lengths or batch sizes at which the speed-up's interval holds 1."""
    requests: Requests = ""
    """How the lengths of a batch's requests lie; the length of ragged ones is the longest. '' for one."""


_VALUE: Final[dict[Axis, Callable[[Point], int]]] = {
    "length": lambda point: point.seq_len,
    "batch": lambda point: point.batch_size,
}
_FREE: Final[dict[Axis, dict[str, Any]]] = {"length": {"seq_len": 0}, "batch": {"batch_size": 0}}


def paying(pairs: Sequence[Pair]) -> tuple[Paying, ...]:
    """Where Quest pays, by length at each batch and by batch at each length, where there are two or more.

    Equal requests, and apart from them the evenly ragged ones of `--ragged`: other lengths lie on no axis.
    Pairs with doubts are out.
    """
    sound = [pair for pair in pairs if not pair.doubts]
    equal = [pair for pair in sound if not pair.point.seq_lens]
    ragged = [pair for pair in sound if pair.point.seq_lens and _evenly(pair.point)]
    return tuple(
        one
        for kind, free in ((equal, {}), (ragged, {"seq_lens": ()}))
        for axis in _VALUE
        for group in series_of(kind, **_FREE[axis], **free).values()
        if (one := _one(group, axis)) is not None
    )


def _one(group: Sequence[Pair], axis: Axis) -> Paying | None:
    """The answer of pairs that differ along one axis; None where that is a single value."""
    by_value = {_VALUE[axis](pair.point): pair for pair in group}
    values = sorted(by_value)
    if len(values) == 1:
        return None
    point, curve = group[0].point, tuple((value, by_value[value].speedup) for value in values)
    undecided = tuple(value for value in values if _holds_1(by_value[value]))
    requests: Requests = "ragged" if point.seq_lens else _equal(point, axis)
    return Paying(axis, _setting(point, axis, requests), curve, solve(curve), undecided, requests)


def _evenly(point: Point) -> bool:
    return point.seq_lens == spread(point.seq_len, point.batch_size)


def _equal(point: Point, axis: Axis) -> Requests:
    return "equal" if axis == "batch" or point.batch_size > 1 else ""


def _holds_1(pair: Pair) -> bool:
    low, high = pair.interval
    return low <= 1 <= high


def _setting(point: Point, axis: Axis, requests: Requests) -> str:
    """The words of a step's title that do not belong to the axis, and how its requests lie."""
    named = lengths_text(point)
    mine = named if axis == "length" else f"batch {point.batch_size}"
    words = [word for word in title(point).split(", ") if word != mine]
    if requests == "ragged" and axis == "batch":
        return ", ".join(
            f"ragged up to {format_count(point.seq_len)}" if word == named else word for word in words
        )
    return ", ".join((*words, f"{requests} requests") if requests else words)


def paying_sentences(found: Sequence[Paying]) -> tuple[str, ...]:
    """Where Quest pays: settings where it always or never does together, an axis each, the others alone.

    Ragged requests follow the equal ones, and share no sentence with them.
    """
    ragged = [one for one in found if one.requests == "ragged"]
    equal = [one for one in found if one.requests != "ragged"]
    return tuple(said for kind in (equal, ragged) for axis in _VALUE for said in _along(axis, kind))


def _along(axis: Axis, found: Sequence[Paying]) -> Iterator[str]:
    mine = [one for one in found if one.axis == axis]
    for kind in ("always", "never in range"):
        alike = [one for one in mine if one.found.kind == kind and not one.undecided]
        yield from [_together(alike)] if len(alike) > 1 else map(paying_text, alike)
    alone = (one for one in mine if one.undecided or one.found.kind not in ("always", "never in range"))
    yield from map(paying_text, alone)


def _together(alike: Sequence[Paying]) -> str:
    """One sentence for settings with the same answer over their whole axis."""
    axis, values = alike[0].axis, sorted({value for one in alike for value, _ in one.curve})
    times = [times for one in alike for _, times in one.curve]
    pays = "pays at every" if alike[0].found.kind == "always" else "pays at no"
    requests = next((f" of {one.requests} requests" for one in alike if one.requests), "")
    return (
        f"Quest {pays} {axis} measured, {_at(axis, values[0])} to {_at(axis, values[-1])}, in {len(alike)} "
        f"settings{requests}: {min(times):.2f}x to {max(times):.2f}x."
    )


def paying_text(one: Paying) -> str:
    """A sentence: where Quest is faster than the fastest dense step along the axis."""
    ends = f"{_at(one.axis, one.curve[0][0])} to {_at(one.axis, one.curve[-1][0])}"
    if one.undecided or (one.requests == "ragged" and one.found.kind not in ("always", "never in range")):
        text = _as_measured(one)
    elif one.found.kind == "always":
        text = f"Quest pays at every {one.axis} measured, {ends}"
    elif one.found.kind == "never in range":
        text = f"Quest never pays in range, {ends}"
    else:
        text = _crossing(one.axis, one.found)
    last = one.curve[-1]
    return f"{one.setting}: {text}; {last[1]:.2f}x at {_at(one.axis, last[0])}."


def _crossing(axis: Axis, found: Crossover) -> str:
    """Where the answer turns, between measured values that are all decided."""
    if found.kind == "only between":
        text = f"Quest stops paying at {_first(axis, found.until)}"
        text += f" and pays from {_first(axis, found.seq_len)} on until there" if found.seq_len else ""
    else:
        text = f"Quest pays from {_first(axis, found.seq_len)} on" + ", and below it does not" * found.steady
    return text if found.steady else f"{text} (the speed-up crosses 1 more than once; this is the last time)"


def _as_measured(one: Paying) -> str:
    """The answer at the measured values, neighbours of one answer together: nothing is told between them.

    So where one of them is undecided, which crosses 1 nowhere, and for ragged requests, whose mixture changes
    along with the batch.
    """
    last, subject = one.curve[-1][0], "Quest "
    said = []
    for answer, group in groupby(one.curve, lambda found: _answer(one, *found)):
        values = [value for value, _ in group]
        where = f"at {_at(one.axis, values[0])}"
        if len(values) > 1:
            end = "on" if values[-1] == last else f"to {_at(one.axis, values[-1])}"
            where = f"from {_at(one.axis, values[0])} {end}"
        if answer:
            said.append(f"{subject}{answer} {where}")
            subject = ""
        else:
            said.append(f"undecided {where}, where the 95 % interval holds 1")
    return "; ".join(said)


def _answer(one: Paying, value: int, speedup: float) -> str:
    """The verb of a measured value; '' where it is undecided."""
    return "" if value in one.undecided else "pays" if speedup > 1 else "does not pay"


def _first(axis: Axis, value: float | None) -> str:
    """Where the answer turns: an interpolated length, or the first whole batch from there on."""
    return _at(axis, math.ceil(round(value, 6)) if axis == "batch" and value else value)


def _at(axis: Axis, value: float | None) -> str:
    if value is None:
        return "-"
    return f"batch {value:.3g}" if axis == "batch" else format_length(value)

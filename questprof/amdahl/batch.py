"""Batches: tokens a second, latency a token, attention's share, and where Quest stops paying. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from questprof.amdahl.breakdown import Breakdown, quest_layers
from questprof.amdahl.pairs import Pair, series_of, title
from questprof.crossover.crossing import Crossover, solve
from questprof.crossover.sentences import format_length
from questprof.model import Point
from questprof.rows import Stat
from questprof.units import format_count

Axis = Literal["length", "batch"]


@dataclass(frozen=True)
class Served:
    """One step as a service: every request with tokens gets one more a step."""

    point: Point
    requests: int
    """Active tokens a step: one for each request that is not empty."""
    cached_tokens: int
    """Tokens in the cache, over all requests."""
    attended_tokens: float
    """Tokens that a head attends to in a step: over all requests, mean over the layers."""
    ms_a_token: float
    p95_ms: float | None
    no_p95: str
    """Why p95 is missing; '' where it is there."""
    tokens_s: float
    attention_share: float | None


def served(step: Breakdown) -> Served:
    """A step's tokens and rates. A request waits one whole step for its token, whatever the batch."""
    point = step.point
    requests = sum(length > 0 for length in point.lengths)
    return Served(
        point=point,
        requests=requests,
        cached_tokens=sum(point.lengths),
        attended_tokens=attended_tokens(point),
        ms_a_token=step.us / 1e3,
        p95_ms=step.step.p95 / 1e3 if step.step.p95 else None,
        no_p95="" if step.step.p95 else _no_p95(step.step),
        tokens_s=requests / step.us * 1e6,
        attention_share=step.attention_share if step.parts else None,
    )


def _no_p95(stat: Stat) -> str:
    return stat.no_tail or f"{stat.num_samples} samples"


def attended_tokens(point: Point) -> float:
    """Tokens a head attends to in a step, mean over the layers: all of them where a layer is dense."""
    everything, layers = sum(point.lengths), point.shape.num_layers
    setup, quest = point.decode, quest_layers(point)
    if not quest or setup is None:
        return float(everything)
    if setup.layer_budgets:
        budgets = [budget for budget in setup.layer_budgets[setup.dense_layers :] if budget]
        picked = sum(_attended(point, (budget,) * len(point.lengths)) for budget in budgets)
    else:
        picked = quest * _attended(point, point.budgets)
    return (picked + (layers - quest) * everything) / layers


def _attended(point: Point, budgets: Sequence[int]) -> int:
    """Tokens of the selected pages of one layer; a budget that covers its request takes all of it."""
    size = point.page_size
    return sum(
        length if budget >= length else budget // size * size
        for budget, length in zip(budgets, point.lengths, strict=True)
    )


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


_VALUE: Final[dict[Axis, Callable[[Point], int]]] = {
    "length": lambda point: point.seq_len,
    "batch": lambda point: point.batch_size,
}
_FREE: Final[dict[Axis, dict[str, Any]]] = {"length": {"seq_len": 0}, "batch": {"batch_size": 0}}


def paying(pairs: Sequence[Pair]) -> tuple[Paying, ...]:
    """Where Quest pays, by length at each batch and by batch at each length, where there are two or more.

    Batches of requests of one length alone: a ragged batch has no single length. Pairs with doubts are out.
    """
    equal = [pair for pair in pairs if not pair.point.seq_lens and not pair.doubts]
    found = []
    for axis, free in _FREE.items():
        for group in series_of(equal, **free).values():
            by_value = {_VALUE[axis](pair.point): pair for pair in group}
            curve = tuple((value, by_value[value].speedup) for value in sorted(by_value))
            if len(curve) > 1:
                undecided = tuple(value for value in sorted(by_value) if _holds_1(by_value[value]))
                setting = _setting(group[0].point, axis)
                found.append(Paying(axis, setting, curve, solve(curve), undecided))
    return tuple(found)


def _holds_1(pair: Pair) -> bool:
    low, high = pair.interval
    return low <= 1 <= high


def _setting(point: Point, axis: Axis) -> str:
    """The words of a step's title that do not belong to the axis."""
    mine = format_count(point.seq_len) if axis == "length" else f"batch {point.batch_size}"
    return ", ".join(word for word in title(point).split(", ") if word != mine)


def paying_sentences(found: Sequence[Paying]) -> tuple[str, ...]:
    """Where Quest pays: settings where it always or never does together, an axis each, the others alone."""
    said: list[str] = []
    for axis in _VALUE:
        mine = [one for one in found if one.axis == axis]
        for kind in ("always", "never in range"):
            alike = [one for one in mine if one.found.kind == kind and not one.undecided]
            said += [_together(alike)] if len(alike) > 1 else map(paying_text, alike)
        alone = (one for one in mine if one.undecided or one.found.kind not in ("always", "never in range"))
        said += map(paying_text, alone)
    return tuple(said)


def _together(alike: Sequence[Paying]) -> str:
    """One sentence for settings with the same answer over their whole axis."""
    axis, values = alike[0].axis, sorted({value for one in alike for value, _ in one.curve})
    times = [times for one in alike for _, times in one.curve]
    pays = "pays at every" if alike[0].found.kind == "always" else "pays at no"
    return (
        f"Quest {pays} {axis} measured, {_at(axis, values[0])} to {_at(axis, values[-1])}, in {len(alike)} "
        f"settings: {min(times):.2f}x to {max(times):.2f}x."
    )


def paying_text(one: Paying) -> str:
    """A sentence: where Quest is faster than the fastest dense step along the axis."""
    ends = f"{_at(one.axis, one.curve[0][0])} to {_at(one.axis, one.curve[-1][0])}"
    found, setting = one.found, one.setting
    if found.kind == "always":
        text = f"Quest pays at every {one.axis} measured, {ends}"
    elif found.kind == "never in range":
        text = f"Quest never pays in range, {ends}"
    elif found.kind == "only between":
        text = f"Quest stops paying at {_first(one.axis, found.until)}"
        text += f" and pays from {_first(one.axis, found.seq_len)} on until there" if found.seq_len else ""
    else:
        text = f"Quest pays from {_first(one.axis, found.seq_len)} on, and below it does not"
    if not found.steady:
        text += " (the speed-up crosses 1 more than once; this is the last time)"
    last = one.curve[-1]
    doubt = ", ".join(_at(one.axis, value) for value in one.undecided)
    said = f"; undecided at {doubt}, where the 95 % interval holds 1" if doubt else ""
    return f"{setting}: {text}; {last[1]:.2f}x at {_at(one.axis, last[0])}{said}."


def _first(axis: Axis, value: float | None) -> str:
    """Where the answer turns: an interpolated length, or the first whole batch from there on."""
    return _at(axis, math.ceil(round(value, 6)) if axis == "batch" and value else value)


def _at(axis: Axis, value: float | None) -> str:
    if value is None:
        return "-"
    return f"batch {value:.3g}" if axis == "batch" else format_length(value)

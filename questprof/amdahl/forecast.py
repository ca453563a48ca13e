"""Whole steps at lengths that were not run, from those that were. Pure; everything here is modelled.

Dense attention and the page scores read bytes in proportion to the length, equations (9) and (10), and
nothing else in a step of a fixed budget and batch grows with it: both steps are fitted as a fixed time and a
time a token, with equal relative errors. How good that is, each length says that a fit without it predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from questprof.amdahl.pairs import Pair, series_of, title
from questprof.errors import QuestprofError
from questprof.model import Point
from questprof.units import count, format_count

LEAST: int = 2
"""Lengths above the budget that a line needs."""


@dataclass(frozen=True)
class Line:
    """us = fixed_us + us_a_token x length."""

    fixed_us: float
    us_a_token: float

    def at(self, seq_len: int) -> float:
        """Microseconds of a step over requests of `seq_len` tokens."""
        return self.fixed_us + self.us_a_token * seq_len


@dataclass(frozen=True)
class Forecast:
    """A pair of steps that was not run. Modelled; `setting` is that of the steps it was fitted to."""

    setting: str
    seq_len: int
    dense_us: float
    quest_us: float
    speedup: float
    lengths: tuple[int, ...]
    """Measured lengths of the fit."""
    error: float | None
    """Largest relative error of the speed-up at a measured length that the fit left out; None below three."""

    @property
    def inside(self) -> bool:
        """Whether the length lies between measured ones."""
        return self.lengths[0] <= self.seq_len <= self.lengths[-1]


def forecasts(pairs: Sequence[Pair], lengths: Sequence[int]) -> tuple[Forecast, ...]:
    """Every setting of `pairs` at each of `lengths` above its budget that it was not measured at.

    Settings with fewer than LEAST measured lengths above the budget are left out: `left_out` names them.
    """
    found = []
    for usable in map(_usable, _settings(pairs)):
        if len(usable) >= LEAST:
            measured = {pair.point.seq_len for pair in usable}
            found += [
                _forecast(usable, length)
                for length in lengths
                if length not in measured and _grows(usable[0].point, length)
            ]
    return tuple(found)


def check_enough(points: Iterable[Point]) -> None:
    """QuestprofError, before anything is measured, where Quest steps have too few lengths for a line."""
    above = {one.seq_len for one in points if not one.seq_lens and _grows(one, one.seq_len)}
    if len(above) < LEAST:
        raise QuestprofError(
            f"--predict with {count(len(above), 'length')} above the budget to measure",
            f"a line through the steps needs at least {LEAST} measured lengths",
            "Name more, as in --lengths 8k,16k,32k.",
        )


def left_out(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """A sentence for each setting that no line can be drawn through, and one where there is no setting."""
    need = f"--predict needs at least {LEAST} measured lengths above the budget, without doubts"
    groups = _settings(pairs)
    if not groups:
        return (f"Nothing is predicted: {need}, and no requests of one length stand beside a dense step.",)
    return tuple(
        f"{_setting(group[0])}: nothing is predicted; {need}, and {_has(_usable(group))}."
        for group in groups
        if len(_usable(group)) < LEAST
    )


def _has(usable: Sequence[Pair]) -> str:
    return f"this has {format_count(usable[0].point.seq_len)} alone" if usable else "this has none"


def _settings(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs that differ in length alone; a ragged batch has no single length."""
    return list(series_of([pair for pair in pairs if not pair.point.seq_lens], seq_len=0).values())


def _usable(group: Sequence[Pair]) -> list[Pair]:
    """Those that a line may go through, by length: above the budget, without doubts."""
    grown = [pair for pair in group if _grows(pair.point, pair.point.seq_len) and not pair.doubts]
    return sorted(grown, key=lambda pair: pair.point.seq_len)


def _setting(pair: Pair) -> str:
    """A step's title without its length."""
    words = title(pair.point).split(", ")
    return ", ".join([*words[:2], *words[3:]])


def _grows(point: Point, seq_len: int) -> bool:
    """Whether every budget of the point selects among pages at that length."""
    tables = point.decode.layer_budgets if point.decode else ()
    return seq_len > max(tables or point.budgets)


def _forecast(pairs: Sequence[Pair], seq_len: int) -> Forecast:
    dense, quest = fit(pairs)
    return Forecast(
        setting=_setting(pairs[0]),
        seq_len=seq_len,
        dense_us=dense.at(seq_len),
        quest_us=quest.at(seq_len),
        speedup=dense.at(seq_len) / quest.at(seq_len),
        lengths=tuple(pair.point.seq_len for pair in pairs),
        error=_error(pairs) if len(pairs) > LEAST else None,
    )


def fit(pairs: Sequence[Pair]) -> tuple[Line, Line]:
    """The lines of the dense and the Quest steps, which differ in length alone."""
    lengths = [pair.point.seq_len for pair in pairs]
    return line(lengths, [pair.dense.us for pair in pairs]), line(lengths, [pair.quest.us for pair in pairs])


def line(lengths: Sequence[int], times_us: Sequence[float]) -> Line:
    """Least squares of relative errors: weights 1 / us squared. Two lengths or more that differ."""
    weights = [us**-2 for us in times_us]
    total = sum(weights)
    x = sum(w * length for w, length in zip(weights, lengths, strict=True)) / total
    y = sum(w * us for w, us in zip(weights, times_us, strict=True)) / total
    rows = list(zip(weights, lengths, times_us, strict=True))
    slope = sum(w * (length - x) * (us - y) for w, length, us in rows) / sum(
        w * (length - x) ** 2 for w, length, _ in rows
    )
    return Line(y - slope * x, slope)


def _error(pairs: Sequence[Pair]) -> float:
    errors = []
    for left_out in pairs:
        dense, quest = fit([pair for pair in pairs if pair is not left_out])
        length = left_out.point.seq_len
        errors.append(abs(dense.at(length) / quest.at(length) / left_out.speedup - 1))
    return max(errors)

"""From which length Quest is faster than the fastest dense baseline: the measured crossover of one series.

Pure. Between neighbouring lengths the logarithm of the speed-up is taken as linear in the logarithm of the
length, which is exact where both times are powers of the length. Only usable rows count (checked, stable,
possible), and only lengths above the budget: at or below it Quest reads every page and the summary too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from questprof.rows import FEWEST_SAMPLES, Row, Series, Stat
from questprof.samples import bootstrap_medians, percentile_interval

Kind = Literal["length", "only between", "always", "never in range", "trivial", "no valid point"]
NUM_RESAMPLES: Final = 1000
Curve = Sequence[tuple[int, float]]
"""(length, speed-up) pairs, shortest first."""


@dataclass(frozen=True)
class Crossover:
    """The answer for one series; lengths in tokens."""

    kind: Kind
    seq_len: float | None = None
    """Interpolated length of the last upward crossing."""
    bracket: tuple[int, int] | None = None
    """The neighbouring measured lengths around it."""
    until: float | None = None
    """Kind `only between`: the length from which Quest is slower again."""
    steady: bool = True
    """Whether each end in the answer is the only one of its way; otherwise they are the last of several."""
    lengths: tuple[int, ...] = ()
    """Lengths that count: usable and above the budget."""
    longest_speed_up: float | None = None
    """Speed-up at the last of them."""
    left_out: tuple[Row, ...] = ()
    """Rows above the budget without a valid pair of figures."""
    warm: tuple[int, ...] = ()
    """Those of `lengths` whose times are of a cache, not of memory."""


def crossover(series: Series) -> Crossover:
    """Where Quest becomes faster than the fastest dense baseline at each length of `series`."""
    above = [row for row in series.rows if not row.trivial]
    if not above:
        return Crossover("trivial")
    left_out = tuple(row for row in above if not row.usable)
    curve = [(row.seq_len, row.speed_up) for row in above if row.usable and row.speed_up]
    if not curve:
        return Crossover("no valid point", left_out=left_out)
    return replace(
        solve(curve),
        lengths=tuple(length for length, _ in curve),
        longest_speed_up=curve[-1][1],
        left_out=left_out,
        warm=tuple(row.seq_len for row in above if row.usable and row.speed_up and row.warm),
    )


def solve(curve: Curve) -> Crossover:
    """The answer for one curve."""
    ups = [pair for pair in pairwise(curve) if pair[0][1] <= 1 < pair[1][1]]
    downs = [pair for pair in pairwise(curve) if pair[1][1] <= 1 < pair[0][1]]
    up, down = (pairs[-1] if pairs else None for pairs in (ups, downs))
    ends_faster = curve[-1][1] > 1
    kind: Kind = (
        ("length" if up else "always") if ends_faster else "only between" if down else "never in range"
    )
    return Crossover(
        kind,
        seq_len=_interpolate(*up) if up else None,
        bracket=(up[0][0], up[1][0]) if up else None,
        until=_interpolate(*down) if down and not ends_faster else None,
        steady=len(ups) + len(downs) <= (2 if kind == "only between" and up else 1),
    )


def _interpolate(one: tuple[int, float], other: tuple[int, float]) -> float:
    """Length at which the speed-up is 1, with log(speed-up) linear in log(length)."""
    (length, speed_up), (next_length, next_speed_up) = one, other
    share = math.log(speed_up) / (math.log(speed_up) - math.log(next_speed_up))
    return float(min(max(length * (next_length / length) ** share, length), next_length))


@dataclass(frozen=True)
class Resampled:
    """How far a crossover hangs on its samples: the middle samples.LEVEL of what resamples of them give."""

    low: float | None
    """Tokens; None: shorter than every length that counts (Quest is faster at each)."""
    high: float | None
    """Tokens; None: longer than every length that counts, or none at all."""
    same_answer: float
    """Share of the resamples with the kind of answer that the samples themselves give."""
    num_resamples: int = NUM_RESAMPLES


def resampled(series: Series, found: Crossover | None = None) -> Resampled | None:
    """Bootstrap of `crossover(series)`: resample every point's samples, take medians, cross again.

    Samples of one timing loop are drawn by rounds, so that what slowed both sides slows both in a resample;
    the fastest baseline is chosen anew in each. The interval holds the crossover itself. Its ends are for
    kind `length` alone; None without a curve.
    """
    found = found or crossover(series)
    rows = [row for row in series.rows if row.seq_len in found.lengths]
    if not rows:
        return None
    draws = [_draws(row, seed, found) for seed, row in enumerate(rows)]
    most = max(map(len, draws))  # 1: no resample of any row can change the answer
    curves = zip(*(draw * most if len(draw) == 1 else draw for draw in draws), strict=True)
    answers = [solve(list(zip(found.lengths, speed_ups, strict=True))) for speed_ups in curves]
    same = sum(answer.kind == found.kind for answer in answers) / len(answers)
    if found.kind != "length" or found.seq_len is None:
        return Resampled(None, None, same)
    first, last = percentile_interval([_reached(answer) for answer in answers])
    low, high = min(first, found.seq_len), max(last, found.seq_len)
    return Resampled(low or None, high if high < math.inf else None, same)


def _reached(answer: Crossover) -> float:
    """The length from which an answer has Quest faster to the end of the curve: 0 always, inf never."""
    if answer.kind == "length" and answer.seq_len:
        return answer.seq_len
    return 0.0 if answer.kind == "always" else math.inf


def _sides(row: Row) -> list[Stat]:
    """Quest's samples, then those of every baseline that has enough to draw from."""
    return [
        row.stats["quest"],
        *(b.stat for b in row.baselines if b.stat and b.stat.num_samples >= FEWEST_SAMPLES),
    ]


def _draws(row: Row, seed: int, found: Crossover) -> list[float]:
    """Speed-ups of the resamples of one row; its own alone where no resample can change what it says.

    It cannot where all samples of one side are below all of the other and the row brackets no crossing.
    """
    quest, *dense = _sides(row)
    fastest = min(dense, key=lambda stat: stat.median)
    apart = max(quest.samples) < min(min(d.samples) for d in dense) or min(quest.samples) > max(
        fastest.samples
    )
    if row.speed_up is not None and apart and row.seq_len not in (found.bracket or ()):
        return [row.speed_up]
    loops: dict[str, list[Stat]] = {}
    for stat in (quest, *dense):
        loops.setdefault(stat.loop_id, []).append(stat)
    medians: dict[int, list[float]] = {}
    for number, stats in enumerate(loops.values()):
        groups = bootstrap_medians(
            [stat.samples for stat in stats], num_resamples=NUM_RESAMPLES, seed=16 * seed + number
        )
        medians |= {id(stat): group for stat, group in zip(stats, groups, strict=True)}
    best = map(min, zip(*(medians[id(stat)] for stat in dense), strict=True))
    return [d / q for d, q in zip(best, medians[id(quest)], strict=True)]

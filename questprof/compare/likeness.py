"""How much the rounds of a timing loop resemble the ones before them: a neighbour comes, and stays a while.

Pure. Twenty rounds that are all slow because a neighbour came once are one observation, not twenty. The
likeness of one stage's few rounds is barely known, so it is also taken over what slows together: all loops of
a comparison, a stage in all of them, and all stages of a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

from questprof.compare.serial import autocorrelation
from questprof.samples import LEVEL

SIGMAS: Final = NormalDist().inv_cdf(LEVEL)
"""Standard errors above 0 from which a stage's, a loop's or a lone likeness counts: of independent rounds at
most one in twenty of each loses some of its power."""
FEWEST: Final = 6
"""Rounds from which a likeness can be told; a median needs as many for an interval of 95 %."""


class Rounds(NamedTuple):
    """One stage of one point, timed round by round: samples (us) of both sides in the order taken."""

    loop_id: str
    stage: str
    base: Sequence[float]
    new: Sequence[float]


class _Told(NamedTuple):
    rounds: Rounds
    size: int
    rho: float


def likenesses(every: Sequence[Rounds]) -> list[float]:
    """For each of `every`, from 0 to 1: autocorrelation of its log ratios from one round to the next.

    The largest of its own, that of its stage, that of its loop (where beyond chance), and that of all rounds,
    which has one standard error on top: few rounds are not independent because they cannot show otherwise.
    """
    told = [_Told(one, len(one.base), _own(one)) for one in every]
    known = [one for one in told if one.size >= FEWEST]
    if not known:
        return [0.0] * len(told)
    mean, error = _mean(known)
    stages = _pools(known, lambda rounds: rounds.stage)
    loops = _pools(known, lambda rounds: rounds.loop_id)
    return [
        min(
            1.0,
            max(
                0.0,
                mean + error,
                stages.get(one.rounds.stage, 0.0),
                loops.get(one.rounds.loop_id, 0.0),
                _beyond_chance([one]) if one.size >= FEWEST else 0.0,
            ),
        )
        for one in told
    ]


def _own(rounds: Rounds) -> float:
    return autocorrelation([math.log(n / b) for b, n in zip(rounds.base, rounds.new, strict=True)])


def _pools(known: Sequence[_Told], key: Callable[[Rounds], str]) -> dict[str, float]:
    groups: dict[str, list[_Told]] = {}
    for one in known:
        groups.setdefault(key(one.rounds), []).append(one)
    return {name: _beyond_chance(group) for name, group in groups.items()}


def _beyond_chance(group: Sequence[_Told]) -> float:
    mean, error = _mean(group)
    return mean if mean > SIGMAS * error else 0.0


def _mean(group: Sequence[_Told]) -> tuple[float, float]:
    """Mean over all rounds, and its standard error were they independent: sqrt(n) / (n - 4) a stage."""
    total = sum(one.size for one in group)
    squares = sum(one.size**3 / (one.size - 4) ** 2 for one in group)
    return sum(one.size * one.rho for one in group) / total, math.sqrt(squares) / total

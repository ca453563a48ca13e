"""Amdahl's law against the measurement: equation (13) from the dense parts, and what it leaves. Pure.

f is the share of a dense step that Quest replaces: its attention, in the layers that Quest serves. s is how
much faster that attention became: dense attention of those layers over score, select and attend, both as
timed within their steps. The residual is the measured Quest step less the predicted one. The terms that
explain it are differences between the two steps part by part, and add up to it exactly: nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from questprof.amdahl.breakdown import QUEST_PARTS, UNEXPLAINED, Breakdown, quest_layers
from questprof.amdahl.law import most_speedup
from questprof.equations import eq13_time_ratio
from questprof.samples import bootstrap_medians, percentile_interval

RESIDUAL: Final = 0.05
"""Of the measured step: a residual up to there is small."""
UNEXPLAINED_SHARE: Final = 0.03
"""Of the measured step: what no part explains beyond that is said."""
NUM_RESAMPLES: Final = 1000

Cause = Literal["new work", "dense layers", "same part", "gaps", "unexplained"]
CAUSES: Final[dict[Cause, str]] = {
    "new work": "work that a dense step does not have: the summary's update in append",
    "dense layers": "the dense first layers took another time than in the dense step",
    "same part": "the same work took another time: clocks, caches, neighbours",
    "gaps": "time in which no part ran: more or fewer launches",
    "unexplained": "the unprofiled steps against the sums of their parts",
}


@dataclass(frozen=True)
class Term:
    """One reason for the residual; `us` above 0 made the Quest step slower than predicted."""

    part: str
    us: float
    cause: Cause


@dataclass(frozen=True)
class Check:
    """Equation (13) beside the measurement, for one Quest step and the fastest dense one."""

    attention_share: float
    """Share of attention in the dense step, all layers."""
    served_share: float
    """f: the part of it in layers that Quest serves."""
    attention_speedup: float | None
    """s; None where Quest serves no layer, or its parts were not timed."""
    with_append: float | None
    """s with what append costs beyond the dense step's counted as attention."""
    time_ratio: float
    predicted_us: float
    predicted_speedup: float
    speedup: float
    """Measured: the dense step over the Quest step, medians of the unprofiled samples."""
    most_speedup: float | None
    """If attention of the served layers cost nothing."""
    residual_us: float
    residual: float
    """residual_us over the measured Quest step."""
    terms: tuple[Term, ...]

    @property
    def unexplained_us(self) -> float:
        """The term that no part explains."""
        return sum(term.us for term in self.terms if term.cause == "unexplained")


def check(dense: Breakdown, quest: Breakdown) -> Check | None:
    """The check of one pair; None where `why_not` has a reason."""
    if why_not(dense, quest):
        return None
    attention, served = dense.of("dense"), served_us(dense, quest)
    chain = quest.sum_of(QUEST_PARTS)
    more_append = quest.of("append") - dense.of("append")
    s = served / chain if served else None
    ratio = eq13_time_ratio(served / dense.us, s) if s else 1.0
    predicted = ratio * dense.us
    residual = quest.us - predicted
    return Check(
        attention_share=attention / dense.us,
        served_share=served / dense.us,
        attention_speedup=s,
        with_append=served / (chain + more_append) if served and chain + more_append > 0 else None,
        time_ratio=ratio,
        predicted_us=predicted,
        predicted_speedup=1 / ratio,
        speedup=dense.us / quest.us,
        most_speedup=most_speedup(served / dense.us),
        residual_us=residual,
        residual=residual / quest.us,
        terms=tuple(_terms(dense, quest, attention - served)),
    )


def served_us(dense: Breakdown, quest: Breakdown) -> float:
    """Dense attention, us, of the layers that Quest serves: all layers of a dense step are alike."""
    return dense.of("dense") * quest_layers(quest.point) / quest.point.shape.num_layers


def why_not(dense: Breakdown, quest: Breakdown) -> str:
    """Why equation (13) cannot be checked on a pair of steps; '' where it can."""
    if not (dense.parts and quest.parts):
        return "the parts were not timed"
    served, chain = served_us(dense, quest), quest.sum_of(QUEST_PARTS)
    if dense.of("dense") <= 0 or (served and chain <= 0):
        return "the parts of attention were not timed"
    return "dense attention takes longer than its own step" if served > dense.us else ""


def _terms(dense: Breakdown, quest: Breakdown, dense_kept_us: float) -> Iterator[Term]:
    """Differences that add up to measured less predicted; `dense_kept_us` is attention that stays dense."""
    names = [part.part for part in (*dense.parts, *quest.parts)]
    for name in dict.fromkeys(names):
        if name in QUEST_PARTS:
            continue
        before = dense_kept_us if name == "dense" else dense.of(name)
        causes: dict[str, Cause] = {"append": "new work", "dense": "dense layers", "gaps": "gaps"}
        yield Term(name, quest.of(name) - before, causes.get(name, "same part"))
    yield Term(UNEXPLAINED, quest.unexplained_us - dense.unexplained_us, "unexplained")


def speedup_interval(dense: Breakdown, quest: Breakdown) -> tuple[float, float]:
    """The middle 95 % of dense over quest when both steps' samples are drawn again, each for itself."""
    draws = [
        bootstrap_medians([side.step.samples], num_resamples=NUM_RESAMPLES, seed=seed)[0]
        for seed, side in enumerate((dense, quest))
    ]
    low, high = percentile_interval([d / q for d, q in zip(*draws, strict=True)])
    middle = dense.us / quest.us
    return min(low, middle), max(high, middle)

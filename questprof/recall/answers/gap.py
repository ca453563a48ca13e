"""Whether the score gap U_(K) - U_(K+1) tells that a budget is too small, tested on queries it has not seen.

Too small: a (layer, head) misses more than TOO_SMALL of the mass at a query. The first half of the
queries, by position, calibrates; the second half tests. (Neighbouring queries are alike: taken in turn,
the halves would not be independent.) Calibrated are the direction (whether a small or a large gap goes
with a budget that is too small), and the threshold, where the hit rate less the false-alarm rate is
largest (Youden's J). Tested are

auc         over all pairs of a failing and a sufficing (layer, head, query): how often the gap orders them
            right, ties half; 0.5 is a coin. One threshold for every head is what this judges.
auc_within  the same over pairs of one (layer, head): whether the gap tells a head's hard steps from its easy
            ones, which is what a budget that moves from step to step needs.
auc_head    the share of failures of that (layer, head) in the first half, in place of the gap: what
            knowing the head alone tells, without looking at the step.

Intervals are of a bootstrap over queries: heads of one query are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from questprof.recall.answers.evaluation import Evaluation
from questprof.samples import percentile_interval
from questprof.units import count

TOO_SMALL = 0.05
MIN_QUERIES = 8
"""Below that a half has fewer than 4 queries, and no interval over queries means anything."""
RESAMPLES = 1000
WEAK = 0.7
"""An AUC below that is commonly called poor: of ten pairs three and more are in the wrong order."""
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Says = Literal["predicts", "hardly", "nothing"]


@dataclass(frozen=True)
class Area:
    """An AUC with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def says(self) -> Says:
        """`nothing`: the interval reaches 0.5 or below; `hardly`: it ends, or the value lies, below WEAK."""
        if self.low <= 0.5:
            return "nothing"
        return "hardly" if self.value < WEAK else "predicts"


@dataclass(frozen=True)
class Gap:
    """The test at one page size and budget; shares are of (layer, head, query) in the test half."""

    page_size: int
    token_budget: int
    calibrated_on: tuple[int, int]
    """First and last position of the queries that calibrated."""
    tested_on: tuple[int, int]
    too_small: float
    """Share of failures in the test half."""
    small_gap_fails: bool
    """The direction found in the first half."""
    threshold: float
    """Gap in scaled logits, below which (above, where `small_gap_fails` is not) failure is predicted."""
    precision: float | None
    """Share of predicted failures that fail; None where none is predicted."""
    recall: float
    """Share of failures that are predicted."""
    auc: Area
    auc_within: Area | None
    """None where no head has both failures and successes in the test half."""
    auc_head: Area | None


def gaps(evaluation: Evaluation) -> tuple[Gap, ...]:
    """The test wherever a half holds both failures and successes; empty below MIN_QUERIES queries."""
    if len(evaluation.trace.query_positions) < MIN_QUERIES:
        return ()
    found = (
        _gap(evaluation, page_size, budget)
        for page_size in evaluation.page_sizes
        for budget in evaluation.budgets(page_size)
    )
    return tuple(one for one in found if one)


def why_none(evaluation: Evaluation) -> str:
    """Why `gaps` is empty, in words."""
    queries = len(evaluation.trace.query_positions)
    if queries < MIN_QUERIES:
        made = count(queries, "query does", "queries do")
        return f"{made} not make two halves to calibrate and to test on; {MIN_QUERIES} would"
    return "no budget fails some (layer, head, query) and suffices for others in both halves"


def _gap(evaluation: Evaluation, page_size: int, token_budget: int) -> Gap | None:
    rows = evaluation.cases[page_size, token_budget, evaluation.policy].queries
    if not rows:
        return None
    gap = np.array([[np.nan if number is None else number for number in row.gaps] for row in rows])
    fails = np.array([row.missed_mass for row in rows]) > TOO_SMALL
    use = ~np.isnan(gap).any(axis=0)  # a query whose pages all fit has no gap
    positions = np.array(evaluation.trace.query_positions)[use]
    gap, fails = gap[:, use], fails[:, use]
    half = len(positions) // 2
    first, second = fails[:, :half], fails[:, half:]
    if len(positions) < MIN_QUERIES or _same(first) or _same(second):
        return None
    small = _area(_wins(-gap[:, :half], first)) >= 0.5
    score = -gap if small else gap
    cut = _youden(score[:, :half], first)
    predicted = score[:, half:] >= cut
    hits = int((predicted & second).sum())
    rates = np.broadcast_to(first.mean(axis=1, keepdims=True), second.shape)
    return Gap(
        page_size=page_size,
        token_budget=token_budget,
        calibrated_on=(int(positions[0]), int(positions[half - 1])),
        tested_on=(int(positions[half]), int(positions[-1])),
        too_small=float(second.mean()),
        small_gap_fails=bool(small),
        threshold=float(abs(cut)),
        precision=hits / int(predicted.sum()) if predicted.any() else None,
        recall=hits / int(second.sum()),
        auc=_tested(_wins(score[:, half:], second)),
        auc_within=_tested_within(score[:, half:], second),
        auc_head=_tested(_wins(rates, second)),
    )


def _same(fails: Bools) -> bool:
    return bool(fails.all() or not fails.any())


def _youden(score: Floats, fails: Bools) -> float:
    """The least score at which hit rate less false-alarm rate is largest."""
    order = np.argsort(-score, axis=None, kind="stable")
    ranked, failing = score.ravel()[order], fails.ravel()[order]
    j = np.cumsum(failing) / failing.sum() - np.cumsum(~failing) / (~failing).sum()
    last = np.append(ranked[1:] != ranked[:-1], True)  # a threshold takes all of equal scores
    return float(ranked[np.flatnonzero(last)[j[last].argmax()]])


Wins = tuple[Floats, Floats]
"""(won, pairs), [query of the failure, query of the success]: pairs of (layer, head), ties won by half."""


def _wins(score: Floats, fails: Bools) -> Wins:
    """Over all pairs of a failing and a sufficing (layer, head) of any two queries; `score` [head, query]."""
    count = score.shape[1]
    won, pairs = np.zeros((count, count)), np.zeros((count, count))
    at = np.nonzero(fails.T)[0]
    failing = score.T[fails.T]
    failures = np.bincount(at, minlength=count)
    for query in range(count):
        good = np.sort(score[~fails[:, query], query])
        beaten = np.searchsorted(good, failing, "left") + np.searchsorted(good, failing, "right")
        won[:, query] = np.bincount(at, weights=beaten / 2, minlength=count)
        pairs[:, query] = failures * len(good)
    return won, pairs


def _tested_within(score: Floats, fails: Bools) -> Area | None:
    """The area over pairs of one (layer, head)."""
    above = (score[:, :, None] > score[:, None, :]) + 0.5 * (score[:, :, None] == score[:, None, :])
    both = fails[:, :, None] & ~fails[:, None, :]
    if not both.any():
        return None
    return _tested(((above * both).sum(axis=0), both.sum(axis=0).astype(np.float64)))


def _area(wins: Wins) -> float:
    return float(wins[0].sum() / wins[1].sum())


def _tested(wins: Wins) -> Area:
    """The area with a bootstrap over queries; a resample without pairs tells nothing and counts as a coin."""
    count = len(wins[0])
    rng = np.random.default_rng(0)
    weights = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)
    won, pairs = (((weights @ counts) * weights).sum(axis=1) for counts in wins)
    areas = np.divide(won, pairs, out=np.full(RESAMPLES, 0.5), where=pairs > 0)
    low, high = percentile_interval(areas.tolist())
    return Area(_area(wins), low, high)

"""Whether letting all pages compete starves the tail page, which holds the newest tokens.

A tail page of few tokens has a tight box: its bound is nearly its true maximum, and loses to pages whose
bounds are mostly slack. It is *starved* at a page size where, over the budgets that select at all, both hold:

TAKEN   tail pages up to a quarter full are picked by less than half of (layer, head); a page that competes
        fairly is picked as often as its mass deserves, and forcing it would then gain nothing;
CUT     taking it always, which costs one page of K, makes a tenth of (layer, head) lose half as much mass or
        less, in the median of the budgets. Where the tail page is worth no more than the page it displaces,
        the ratio is about 1. Heads, because dense ones lose much under either rule and would hide it in a
        mean; those that lose less than LITTLE count as 1, for nothing is at stake there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from questprof.recall.answers.evaluation import Case, Evaluation

TAKEN = 0.5
CUT = 2.0
LITTLE = 0.01
FEW = 0.25
"""A tail page up to this share full has few tokens; one token is always few."""


@dataclass(frozen=True)
class Tail:
    """`quest-open` beside `quest` at one page size; shares are means over layers, heads and budgets."""

    page_size: int
    budgets: tuple[int, ...]
    """Those that leave pages out, at which both policies were evaluated."""
    taken: tuple[tuple[int, float], ...]
    """(valid tokens of the tail page, share that picks it), for every fill that a query has."""
    taken_few: float | None
    """Share that picks a tail page with few tokens; None where no query has one."""
    tail_mass: float
    """Dense mass of the tail page, mean."""
    lost_open: tuple[float, ...]
    """1 - mass of quest-open at each budget, mean over layers, heads and queries."""
    lost_forced: tuple[float, ...]
    """The same of quest."""
    few_open: tuple[float, ...]
    """`lost_open` over the queries whose tail page has few tokens; of all where that is not kept."""
    few_forced: tuple[float, ...]
    """The same of quest."""
    heads_cut: float
    """What a tenth of (layer, head) cut at least: how many times less they lose over all queries with the
    tail page taken always, in the median of the budgets."""

    @property
    def cuts(self) -> tuple[float, ...]:
        """How many times less is lost with the tail page taken always where it has few tokens, by budget."""
        return _ratios(self.few_open, self.few_forced)

    @property
    def all_cuts(self) -> tuple[float, ...]:
        """The same over all queries."""
        return _ratios(self.lost_open, self.lost_forced)

    @property
    def starved(self) -> bool:
        """Whether both rules hold."""
        few = self.taken_few is not None and self.taken_few < TAKEN
        return few and self.heads_cut >= CUT


def _ratios(lost: Sequence[float], less: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(_ratio, lost, less))


def _ratio(lost: float, less: float) -> float:
    return lost / less if less > 0 else float("inf") if lost > 0 else 1.0


def tails(evaluation: Evaluation) -> tuple[Tail, ...]:
    """A Tail for every page size where both policies have a budget that leaves pages out."""
    found = (_tail(evaluation, page_size) for page_size in evaluation.page_sizes if page_size > 1)
    return tuple(one for one in found if one)


def _tail(evaluation: Evaluation, page_size: int) -> Tail | None:
    both = set(evaluation.budgets(page_size, "quest")) & set(evaluation.budgets(page_size, "quest-open"))
    budgets = tuple(sorted(budget for budget in both if not evaluation.covers(page_size, budget)))
    if not budgets:
        return None
    fills = [position % page_size + 1 for position in evaluation.trace.query_positions]
    few = [i for i, fill in enumerate(fills) if fill <= max(1, page_size * FEW)]
    shares: dict[int, list[float]] = {}
    taken_few = []
    for budget in budgets:
        taken = evaluation.cases[page_size, budget, "quest-open"].tail_taken
        taken_few += [taken[i] for i in few]
        for fill, share in zip(fills, taken, strict=True):
            shares.setdefault(fill, []).append(share)
    lost = {
        (policy, queries): tuple(
            _lost(evaluation, (page_size, budget, policy), queries) for budget in budgets
        )
        for policy in ("quest-open", "quest")
        for queries in (tuple(few), ())
    }
    return Tail(
        page_size=page_size,
        budgets=budgets,
        taken=tuple((fill, fmean(shares[fill])) for fill in sorted(shares)),
        taken_few=fmean(taken_few) if taken_few else None,
        tail_mass=fmean(row.tail_mass for row in evaluation.pages[page_size].pages),
        lost_open=lost["quest-open", ()],
        lost_forced=lost["quest", ()],
        few_open=lost["quest-open", tuple(few)],
        few_forced=lost["quest", tuple(few)],
        heads_cut=median(_heads_cut(evaluation, page_size, budget) for budget in budgets),
    )


def _lost(evaluation: Evaluation, case: Case, queries: tuple[int, ...]) -> float:
    """1 - mass, mean over layers, heads and `queries`: over all, where no single query is kept."""
    each = evaluation.cases[case].query_missed
    if queries and each:
        return fmean(each[i] for i in queries)
    return fmean(max(0.0, 1 - row.mass_recall) for row in evaluation.cases[case].heads)


def _heads_cut(evaluation: Evaluation, page_size: int, token_budget: int) -> float:
    compete, forced = (evaluation.heads(page_size, token_budget, name) for name in ("quest-open", "quest"))
    cuts = [
        _ratio(1 - row.mass_recall, max(0.0, 1 - forced[name].mass_recall))
        if 1 - row.mass_recall >= LITTLE
        else 1.0
        for name, row in compete.items()
    ]
    return sorted(cuts)[int(0.9 * (len(cuts) - 1))]

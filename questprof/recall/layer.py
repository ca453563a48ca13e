"""One layer at one page size: the product's stages and the float64 path side by side.

The product selects (for the policies its `select` knows) and so does the float64 path, which measures the
picks; what the product's `attend` makes of them is compared with that. Where the two paths pick other pages,
the bounds of these pages differ by rounding at most, or the check fails; in such a near tie float64's counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from questprof.recall import measures, regret
from questprof.recall.agreement import Agreement, attention_errors, score_error, shortfall, worst
from questprof.recall.board import Board
from questprof.recall.policies import POLICIES
from questprof.recall.rows import SHARES
from questprof.recall.setting import Arrays, Cut, Setting, view_of, views
from questprof.recall.view import Bools, Ints, PageView

if TYPE_CHECKING:
    from questprof.backends import Backend
    from questprof.recall.stages import Product


@dataclass
class Evaluated:
    """One layer at one page size; heads are those read, cases in the setting's order."""

    setting: Setting
    layer: int
    board: Board
    agreement: Agreement
    picked: Bools
    """[case, head, query, page]."""
    pairs: list[tuple[int, regret.Pair]] = field(default_factory=list)
    """(case, its pair that lost most); `group` and `query` are places among those read."""


def evaluate(
    setting: Setting,
    layer: int,
    arrays: Arrays,
    stages: Product | None,
    attend: bool,
    gather: Backend | None = None,
) -> Evaluated:
    """Layer `layer` of the trace. `stages` over the same arrays; None: float64 alone.

    `attend`: run attention through the stages too, for every case; with `gather` also over gathered copies of
    the pages that the stages selected with the first budget (larger ones take too much memory).
    """
    heads, queries = len(setting.scope.read_heads), len(setting.positions)
    size = len(setting.cases), heads, queries, int(setting.num_pages.max())
    found = Evaluated(setting, layer, Board(heads, queries), Agreement(size[0]), np.zeros(size, np.bool_))
    scores = stages.scores() if stages else None
    selected = _select(found, stages) if stages else {}
    for (shown, asked), view in views(setting, layer, arrays):
        if scores is not None:
            found.agreement.note_all("score", score_error(view, scores[shown, asked, : view.max_pages]))
        picked = _settle(found, (shown, asked), view, selected)
        _measure(found, (shown, asked), view, picked)
        _regret(found, (shown, asked), view, picked)
        _pages(found, (shown, asked), view, arrays)
    if stages and attend:
        _attend(found, stages, gather)
    return found


def _select(found: Evaluated, stages: Product) -> dict[int, Bools]:
    """Picks [head, query, page] of the stages `score` and `select`, for the cases that they know."""
    setting, selected = found.setting, {}
    for index, case in enumerate(setting.cases):
        if case.policy.take_tail is not None:
            num_selected = case.num_selected(setting.page_size, setting.num_pages)
            picked = stages.select(num_selected, case.policy.take_tail)
            if picked is None:
                found.agreement.note(index, "select", np.nan)
            else:
                selected[index] = picked
    return selected


def _settle(found: Evaluated, cut: Cut, view: PageView, selected: dict[int, Bools]) -> Bools:
    """The picks in float64, [case, group, query, page], compared with those of the stages."""
    settled = found.picked[:, cut[0], cut[1], : view.max_pages]
    for index, case in enumerate(found.setting.cases):
        settled[index] = case.policy.pick(view, case.num_selected(view.page_size, view.num_pages))
        if index in selected and case.policy.scores:
            picked = selected[index][cut[0], cut[1], : view.max_pages]
            error, rows = shortfall(view, picked, settled[index], case.policy.scores(view))
            found.agreement.note(index, "select", error)
            found.agreement.near_ties[index] += rows
    return settled


def _measure(found: Evaluated, cut: Cut, view: PageView, picked: Bools) -> None:
    """Equation (6), bound (7) and what the picks cover."""
    of, covers = (
        measures.attended(view, picked),
        measures.covered(view, picked, found.setting.asked.top_tokens),
    )
    for index in range(len(picked)):
        found.agreement.note(index, "bound (7)", max(0.0, float(of.bound_ratio[index].max()) - 1))
    found.board.put(
        *cut,
        mass=of.mass,
        missed=of.missed,
        out=np.moveaxis(of.out, -1, 1),
        rel_err=of.rel_err,
        bound_ratio=of.bound_ratio,
        top_tokens=covers.top_tokens,
        top_pages=covers.top_pages,
        tail_taken=covers.tail_taken,
        pages=covers.pages,
        union_ratio=np.broadcast_to(covers.union_ratio[:, None], covers.pages.shape),
        largest_value=np.broadcast_to(view.largest_value, covers.pages.shape[1:]),
    )


def _regret(found: Evaluated, cut: Cut, view: PageView, picked: Bools) -> None:
    """Ranking regret of every case, and thresholds and score gap of its budget."""
    bounds = np.take_along_axis(view.bounds, _order("quest-open", view), axis=-1)
    maxima = np.take_along_axis(view.maxima, _order("oracle", view), axis=-1)
    parts = []
    for index, case in enumerate(found.setting.cases):
        num_selected = case.num_selected(view.page_size, view.num_pages)
        oracle = POLICIES["oracle"].pick(view, num_selected)
        one = regret.regret(view, picked[index], oracle, case.policy.order(view))
        swallowed = np.full(one.missed.shape, np.nan) if one.swallowed is None else one.swallowed
        tau_bound = regret.threshold(bounds, num_selected, view.scale)
        tau_true = regret.threshold(maxima, num_selected, view.scale)
        gap = regret.score_gap(bounds, num_selected, view.scale)
        parts.append(
            (one.missed, one.lost, one.missed_slack, one.false_slack, swallowed, tau_bound, tau_true, gap)
        )
        pair = regret.worst_pair(view, picked[index], oracle) if case.policy.take_tail is not None else None
        if pair:
            moved = pair._replace(group=pair.group + cut[0].start, query=pair.query + cut[1].start)
            found.pairs.append((index, moved))
    names = ("lost_pages", "lost", "missed_slack", "false_slack", "swallowed", "tau_bound", "tau_true", "gap")
    stacked = {name: np.stack(part) for name, part in zip(names, zip(*parts, strict=True), strict=True)}
    found.board.put(cut[0], cut[1], **stacked)


def _pages(found: Evaluated, cut: Cut, view: PageView, arrays: Arrays) -> None:
    """Slack, tail and needed budgets, which no case changes; bound (4)."""
    found.agreement.note_all("bound (4)", max(0.0, measures.broken_bounds(view)))
    slack = np.maximum(measures.slacks(view), 0)
    rows = np.arange(len(view.tails))
    quest, oracle = (_order(name, view) for name in ("quest", "oracle"))
    padded = np.full((int(found.setting.num_pages.max()), *slack.shape[:2]), np.nan)
    padded[: view.max_pages] = np.moveaxis(slack, -1, 0)
    found.board.put(
        *cut,
        slack=np.nanmean(slack, axis=-1),
        page_slack=padded,
        slack_tail=slack[:, rows, view.tails],
        tail_mass=view.weights[:, rows, view.tails],
        needed_quest=measures.pages_needed(view, quest, SHARES),
        needed_oracle=measures.pages_needed(view, oracle, SHARES),
    )
    if arrays.q_pre_rope is not None and arrays.k_pre_rope is not None:
        before = view_of(found.setting, found.layer, arrays.q_pre_rope, arrays.k_pre_rope, arrays.v, cut)
        found.board.put(*cut, slack_pre_rope=np.nanmean(np.maximum(measures.slacks(before), 0), axis=-1))


def _order(name: str, view: PageView) -> Ints:
    """The order of a policy that ranks."""
    order = POLICIES[name].order(view)
    assert order is not None
    return order


def _attend(found: Evaluated, stages: Product, gather: Backend | None) -> None:
    """Stages `attend` and `dense` over the picks, against the float64 path."""
    board = found.board
    _, dense_lse = stages.dense()
    cases = found.setting.cases
    for index, case in enumerate(cases):
        out, lse = stages.attend(found.picked[index])
        reference = np.moveaxis(board["out"][index], 0, -1)
        mass, output = attention_errors(
            lse, dense_lse, out, board["mass"][index], reference, board["largest_value"]
        )
        found.agreement.note(index, "mass", mass)
        found.agreement.note(index, "output", output)
        if gather and case.policy.take_tail is not None and case.token_budget == cases[0].token_budget:
            copied, _ = stages.attend(found.picked[index], gather)
            off = np.abs(copied.astype(np.float64) - out).max(axis=-1)
            found.agreement.note(index, "gather", worst(off, board["largest_value"]))

"""Which pages a query reads: one small interface, `POLICIES`, and a function a policy.

A policy answers for every query of a PageView which pages it picks with K of them to spend. Most rank the
pages and take the first K (`ranked`); one that does not (fixed windows, rules of a group, stopping rules)
gives a `pick` of its own. A new one is a file with such a function, and a line in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from questprof.errors import QuestprofError
from questprof.recall.view import Bools, Floats, Ints, PageView

Pick = Callable[[PageView, Ints], Bools]
"""(view, K of each query [query]) -> picked pages [group, query, page]."""


@dataclass(frozen=True)
class Policy:
    """One way to pick pages.

    `scores` [group, query, page] is what is ranked, for a policy that takes the K highest. `take_tail` is
    what the kernels' `select` is told, for a policy that it selects for; None: no kernel selects.
    """

    name: str
    says: str
    pick: Pick
    scores: Callable[[PageView], Floats] | None = None
    take_tail: bool | None = None

    def order(self, view: PageView) -> Ints | None:
        """Pages best first, [group, query, page], the same for every K; None where nothing is ranked."""
        scores = self.scores
        return None if scores is None else view.order(self.name, lambda: scores(view))


def ranked(
    name: str, says: str, scores: Callable[[PageView], Floats], take_tail: bool | None = None
) -> Policy:
    """The policy that takes the K pages of the highest scores [group, query, page]; -inf: not to be had.

    Equal scores go to the lower page.
    """

    def pick(view: PageView, num_selected: Ints) -> Bools:
        order = view.order(name, lambda: scores(view))
        picked: Bools = view.ranks(name, order) < num_selected[None, :, None]
        return picked

    return Policy(name, says, pick, scores, take_tail)


def tail_first(view: PageView) -> Floats:
    """Page bounds, the tail page above all others: it is always taken and counts in K."""
    scores = view.bounds.copy()
    scores[:, np.arange(len(view.tails)), view.tails] = np.inf
    return scores


def by_bound(view: PageView) -> Floats:
    """Page bounds: all pages compete."""
    return view.bounds


def by_true_maximum(view: PageView) -> Floats:
    """The true page maximum, for which every key is read: the box's slack is gone, nothing else."""
    return view.maxima


def at_random(view: PageView) -> Floats:
    """Uniform draws by (seed, layer, head, page size); a larger budget keeps what a smaller one picked."""
    place = view.place
    size = place.num_queries, -(-place.num_tokens // view.page_size)
    draws = [
        np.random.default_rng([place.seed, place.layer, head, view.page_size]).random(size)
        for head in place.heads
    ]
    shown = np.stack(draws)[:, place.queries, : view.max_pages]
    return np.where(view.visible, shown, -np.inf)


def first_and_recent(view: PageView, num_selected: Ints) -> Bools:
    """Page 0 and the most recent K - 1 pages, whatever the query."""
    pages = np.arange(view.max_pages)
    recent = pages > (view.tails - (num_selected - 1))[:, None]
    picked = ((pages == 0) | recent) & view.visible
    return np.broadcast_to(picked, (view.q.shape[0], *picked.shape))


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        ranked("quest", "bound (4), the tail page always taken", tail_first, take_tail=True),
        ranked("quest-open", "bound (4), all pages compete", by_bound, take_tail=False),
        ranked("oracle", "true page maximum, all pages compete", by_true_maximum),
        Policy("fixed", "page 0 and the most recent K - 1", first_and_recent),
        ranked("random", "drawn anew for every query", at_random),
    )
}


def parse_policies(text: str) -> tuple[Policy, ...]:
    """The policies of `quest,oracle`, in the order given; QuestprofError for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise QuestprofError(f"policy {name!r}", "it is unknown", f"Choose among {', '.join(POLICIES)}.")
    return tuple(POLICIES[name] for name in names)

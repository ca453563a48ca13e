"""Heads that one figure for all of them would hide: dense ones, those failed by the boxes, those under a
mean.

Three rules, each with its threshold, on means over the queries of a (layer, head):

dense    in the order of the true page maxima, which no summary beats, half of its queries need DENSE of their
         pages or more for 0.95 of the mass. Eq. (12) is then at least 1/S + DENSE: Quest reads more than half
         of what dense attention reads whatever its boxes are.
failed   the head is sparse: at the same budget the oracle keeps ENOUGH of the mass, and the better of
         quest and quest-open FAILED less. The pages are there and paid for, and neither taking the tail
         page nor letting it compete explains the loss: what differs is the box.
hidden   a mean passes PASSES while the head misses twice of what passing allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from questprof.recall.answers.evaluation import Evaluation, Name
from questprof.recall.rows import SHARES

DENSE = 0.5
DENSE_SHARE = 0.95
MIN_PAGES = 16
"""Pages of a context below which a half of them says nothing: a few sinks and the newest tokens are a
half."""
ENOUGH, FAILED = 0.9, 0.1
PASSES = 0.9
HIDDEN = 1 - 2 * (1 - PASSES)


@dataclass(frozen=True)
class DenseHead:
    """`pages_share`: median share of its pages that 0.95 of the mass needs in the oracle's order."""

    layer: int
    head: int
    pages_share: float
    page_size: int


@dataclass(frozen=True)
class FailedHead:
    """Mass recall of both policies at the budget where they differ most."""

    layer: int
    head: int
    page_size: int
    token_budget: int
    oracle: float
    quest: float
    """Of the better of quest and quest-open."""
    false_slack: float | None
    """Slack of the pages that took the place of missed ones, scaled logits."""

    @property
    def lost(self) -> float:
        """Mass that the same number of pages would keep."""
        return self.oracle - self.quest


@dataclass(frozen=True)
class HiddenHead:
    """A head below a mean that passes."""

    layer: int
    head: int
    page_size: int
    token_budget: int
    mass: float
    layer_mean: float
    mean: float
    """Over all layers and heads."""

    @property
    def hides_under(self) -> tuple[str, float]:
        """The mean that passes and its value: the layer's where that does."""
        under_layer = self.layer_mean >= PASSES
        return ("its layer", self.layer_mean) if under_layer else ("all heads", self.mean)


def dense_heads(evaluation: Evaluation) -> tuple[DenseHead, ...]:
    """Dense heads at the smallest page size (larger pages are dense sooner), the densest first."""
    page_size, at = evaluation.page_sizes[0], SHARES.index(DENSE_SHARE)
    pages = evaluation.num_pages(page_size)
    there = [i for i, count in enumerate(pages) if count >= MIN_PAGES]
    found = [
        DenseHead(layer, head, share, page_size)
        for (layer, head), row in evaluation.page_heads(page_size).items()
        if there and (share := median(row.needed_oracle[at][i] / pages[i] for i in there)) >= DENSE
    ]
    return tuple(sorted(found, key=lambda one: (-one.pages_share, one.layer, one.head)))


def dense_by_layer(evaluation: Evaluation, found: Iterable[DenseHead]) -> tuple[tuple[int, int, int], ...]:
    """(layer, dense heads, heads) of every layer that has a dense head."""
    heads = Counter(layer for layer, _ in evaluation.page_heads(evaluation.page_sizes[0]))
    dense = Counter(one.layer for one in found)
    return tuple((layer, dense[layer], heads[layer]) for layer in sorted(dense))


def failed_heads(evaluation: Evaluation, page_size: int) -> tuple[FailedHead, ...]:
    """Sparse heads that the boxes fail, each at its worst budget; the most mass lost first."""
    worst: dict[Name, FailedHead] = {}
    for budget in evaluation.budgets(page_size):
        oracle = evaluation.heads(page_size, budget, "oracle")
        other = evaluation.heads(page_size, budget, "quest-open")
        for name, own in evaluation.heads(page_size, budget).items():
            if name not in oracle or oracle[name].mass_recall < ENOUGH:
                continue
            row = max(own, other.get(name, own), key=lambda row: row.mass_recall)
            one = FailedHead(
                *name, page_size, budget, oracle[name].mass_recall, row.mass_recall, row.false_slack
            )
            if one.lost >= FAILED and (name not in worst or one.lost > worst[name].lost):
                worst[name] = one
    return tuple(sorted(worst.values(), key=lambda one: (-one.lost, one.layer, one.head)))


def hidden_heads(evaluation: Evaluation, page_size: int, token_budget: int) -> tuple[HiddenHead, ...]:
    """Heads under a mean that passes, the worst first."""
    heads = evaluation.heads(page_size, token_budget)
    if not heads:
        return ()
    mean = fmean(row.mass_recall for row in heads.values())
    by_layer: dict[int, list[float]] = {}
    for (layer, _), row in heads.items():
        by_layer.setdefault(layer, []).append(row.mass_recall)
    found = [
        HiddenHead(layer, head, page_size, token_budget, row.mass_recall, fmean(by_layer[layer]), mean)
        for (layer, head), row in heads.items()
        if row.mass_recall < HIDDEN and max(mean, fmean(by_layer[layer])) >= PASSES
    ]
    return tuple(sorted(found, key=lambda one: (one.mass, one.layer, one.head)))


def passing_budget(evaluation: Evaluation, page_size: int, mass: float = PASSES) -> int | None:
    """The least measured budget whose mean over all layers and heads is at least `mass`; None without one."""
    budgets = evaluation.budgets(page_size)
    return next((b for b in budgets if (evaluation.mass(page_size, b) or 0.0) >= mass), None)

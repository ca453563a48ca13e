"""Ranking regret: the pages that the oracle reads and the pick does not, and what took their place.

The oracle reads the K pages of the largest true maxima. Those of them that a pick of K pages misses are as
many as its false positives, which are paired with them: the i-th best missed page with the i-th false
positive by bound. Whatever the pairing, the true maxima lost are the same in sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from questprof.recall.measures import slacks
from questprof.recall.view import Bools, Floats, Ints, PageView


@dataclass(frozen=True)
class Regret:
    """For every query [group, query], in scaled logits where it is a logit.

    `missed_slack`, `false_slack`: mean over the pages, NaN where none was missed. `swallowed`: pages to read
    beyond K, in the order of the pick, until the oracle's K are among them, or None without an order.
    """

    missed: Floats
    lost: Floats
    missed_slack: Floats
    false_slack: Floats
    swallowed: Floats | None


class Pair(NamedTuple):
    """A missed page and the false positive in its place; true maxima and bounds in scaled logits."""

    group: int
    query: int
    missed_page: int
    missed_true: float
    missed_bound: float
    false_page: int
    false_true: float
    false_bound: float

    @property
    def lost(self) -> float:
        """How far the missed page's true maximum lies above the other's."""
        return self.missed_true - self.false_true


def regret(view: PageView, picked: Bools, oracle: Bools, order: Ints | None) -> Regret:
    """What `picked` misses of `oracle` (both [group, query, page], K of each); `order` is the pick's own."""
    missed, false = oracle & ~picked, picked & ~oracle
    count, num_selected = missed.sum(axis=-1), oracle.sum(axis=-1)
    true = np.where(view.visible, view.maxima, 0.0)
    lost = (true * missed).sum(axis=-1) - (true * false).sum(axis=-1)
    slack = np.nan_to_num(slacks(view))
    return Regret(
        missed=count.astype(np.float64),
        lost=np.maximum(lost, 0) * view.scale / num_selected,
        missed_slack=_mean(slack, missed),
        false_slack=_mean(slack, false),
        swallowed=None if order is None else _swallowed(order, oracle, num_selected),
    )


def _mean(values: Floats, pages: Bools) -> Floats:
    count = pages.sum(axis=-1)
    found = np.full(count.shape, np.nan)
    np.divide((values * pages).sum(axis=-1), count, out=found, where=count > 0)
    return found


def _swallowed(order: Ints, oracle: Bools, num_selected: Ints) -> Floats:
    """Place after the last of the oracle's pages in `order`, less K."""
    wanted = np.take_along_axis(oracle, order, axis=-1)
    last = wanted.shape[-1] - np.argmax(wanted[..., ::-1], axis=-1)
    found: Floats = np.maximum(last - num_selected, 0).astype(np.float64)
    return found


def threshold(ordered: Floats, num_selected: Ints, scale: float) -> Floats:
    """tau, the K-th largest of `ordered` [group, query, page] (falling), scaled, [group, query]."""
    at = np.broadcast_to((num_selected - 1)[None, :, None], (*ordered.shape[:2], 1))
    found: Floats = np.take_along_axis(ordered, at, axis=-1)[..., 0] * scale
    return found


def score_gap(ordered: Floats, num_selected: Ints, scale: float) -> Floats:
    """U_(K) - U_(K+1), scaled, [group, query]; NaN where K is every page."""
    padded = np.concatenate([ordered, np.full((*ordered.shape[:2], 1), -np.inf)], axis=-1)
    gap = threshold(padded, num_selected, scale) - threshold(padded, num_selected + 1, scale)
    return np.where(np.isfinite(gap), gap, np.nan)


def worst_pair(view: PageView, picked: Bools, oracle: Bools) -> Pair | None:
    """The pair that lost most, of the query that lost most in sum; None: nothing was missed."""
    missed, false = oracle & ~picked, picked & ~oracle
    true = np.where(view.visible, view.maxima, 0.0)
    lost = (true * missed).sum(axis=-1) - (true * false).sum(axis=-1)
    group, query = (int(at) for at in np.unravel_index(int(lost.argmax()), lost.shape))
    maxima, bounds = (array[group, query] * view.scale for array in (view.maxima, view.bounds))
    missed_pages, false_pages = (np.flatnonzero(pages[group, query]) for pages in (missed, false))
    if not len(missed_pages):
        return None
    pairs = [
        Pair(group, query, *_page(m, maxima, bounds), *_page(f, maxima, bounds))
        for m, f in zip(
            missed_pages[np.argsort(-maxima[missed_pages], kind="stable")],
            false_pages[np.argsort(-bounds[false_pages], kind="stable")],
            strict=True,
        )
    ]
    return max(pairs, key=lambda pair: pair.lost)


def _page(page: np.int64, maxima: Floats, bounds: Floats) -> tuple[int, float, float]:
    return int(page), float(maxima[page]), float(bounds[page])

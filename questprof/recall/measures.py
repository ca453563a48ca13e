"""What picked pages are worth: the figures of every query, for all cases of a PageView at once.

A case is one budget and policy; the leading axis of every result is the case, then [group, query]. All of it
is float64, and what is missed is summed over what is missed: 1 - mass rounds, and bound (7) would fail by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from questprof.recall.view import Bools, Floats, Ints, PageView

LITTLE = 1e-4
"""Mass of picked pages below which their softmax is computed afresh: 1 - epsilon would lose its digits."""


@dataclass(frozen=True)
class Attended:
    """Equation (6) for every case: [case, group, query]; `out` [case, group, query, d] is o_C."""

    mass: Floats
    missed: Floats
    out: Floats
    rel_err: Floats
    bound_ratio: Floats


@dataclass(frozen=True)
class Covered:
    """What the picked pages hold, [case, group, query]; `union_ratio` [case, query] is of the group."""

    top_tokens: Floats
    top_pages: Floats
    tail_taken: Floats
    pages: Floats
    union_ratio: Floats


def attended(view: PageView, picked: Bools) -> Attended:
    """Mass and output of `picked` [case, group, query, page]; each query picks one page or more.

    o - o_C = sum of p_j v_j over the missed - epsilon o_C, so that a small error keeps its digits.
    """
    by_query = picked.transpose(1, 2, 0, 3)
    dropped = (~by_query & view.visible[:, None]).astype(np.float64)
    missed: Floats = np.matmul(dropped, view.weights[..., None])[..., 0]
    left_out: Floats = np.matmul(dropped, view.sums)
    dense = view.sums.sum(axis=2)
    mass = np.maximum(1 - missed, 0.0)
    out = (dense[:, :, None] - left_out) / np.maximum(mass, LITTLE)[..., None]
    for group, query in np.argwhere((mass < LITTLE).any(axis=-1)):
        cases = np.flatnonzero(mass[group, query] < LITTLE)
        for case in cases:
            out[group, query, case] = _own_softmax(view, group, query, by_query[group, query, case])
    size = np.linalg.norm(left_out - missed[..., None] * out, axis=-1)
    bound = 2 * missed * view.largest_value[:, None]
    return Attended(
        mass=_cases_first(mass),
        missed=_cases_first(missed),
        out=_cases_first(out),
        rel_err=_cases_first(_over(size, np.linalg.norm(dense, axis=-1)[..., None])),
        bound_ratio=_cases_first(_over(size, bound)),
    )


def _own_softmax(view: PageView, group: int, query: int, pages: Bools) -> Floats:
    """o_C of one query from its picked tokens alone, however little weight they have beside the others."""
    picked = np.flatnonzero(pages)
    tokens = (picked[:, None] * view.page_size + np.arange(view.page_size)).ravel()
    logits = view.dots[group, query, tokens] * view.scale
    weights = np.exp(logits - logits.max())
    found: Floats = weights @ view.v[picked].reshape(len(tokens), -1) / weights.sum()
    return found


def _over(size: Floats, most: Floats) -> Floats:
    """The ratio size / most, 0 where both are 0, infinite where something stands over nothing."""
    most = np.broadcast_to(most, size.shape)
    found = np.where(size > 0, np.inf, 0.0)
    np.divide(size, most, out=found, where=most > 0)
    return found


def _cases_first(array: Floats) -> Floats:
    """[group, query, case, ..] as [case, group, query, ..]."""
    return np.moveaxis(array, 2, 0)


def covered(view: PageView, picked: Bools, top_tokens: int) -> Covered:
    """Recall of the `top_tokens` tokens of most dense weight, tail page and union, for `picked`."""
    top = view.top_tokens(top_tokens).sum(axis=-1)
    holds = top > 0
    tails = np.arange(len(view.tails)), view.tails
    pages = picked.sum(axis=-1)
    return Covered(
        top_tokens=(picked * top).sum(axis=-1) / top.sum(axis=-1),
        top_pages=(picked & holds).sum(axis=-1) / holds.sum(axis=-1),
        tail_taken=picked[:, :, tails[0], tails[1]].astype(np.float64),
        pages=pages.astype(np.float64),
        union_ratio=picked.any(axis=1).sum(axis=-1) / pages.mean(axis=1),
    )


def pages_needed(view: PageView, order: Ints, shares: tuple[float, ...]) -> Ints:
    """Pages of `order` [group, query, page] to reach each of `shares` of the mass; [share, group, query]."""
    grown = np.cumsum(np.take_along_axis(view.weights, order, axis=-1), axis=-1)
    needed = np.stack([1 + (grown < share).sum(axis=-1) for share in shares])
    found: Ints = np.minimum(needed, view.num_pages)
    return found


def slacks(view: PageView) -> Floats:
    """g_p = (U_p - max q.k) x softmax_scale of every page, [group, query, page]; NaN where unseen."""
    found = np.full(view.bounds.shape, np.nan)
    np.subtract(view.bounds, view.maxima, out=found, where=view.visible)
    return found * view.scale


def broken_bounds(view: PageView) -> float:
    """The largest max q.k - U_p over the numbers a bound is summed from, 0 or below: bound (4) holds."""
    excess = np.subtract(view.maxima, view.bounds, out=np.zeros(view.bounds.shape), where=view.visible)
    relative = np.divide(excess, view.rounding, out=np.zeros(excess.shape), where=view.rounding > 0)
    return float(np.where((view.rounding == 0) & (excess > 0), np.inf, relative).max())

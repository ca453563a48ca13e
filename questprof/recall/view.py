"""What policies and measures look at: one KV head's queries over its pages, in float64.

A PageView is one layer, KV head and page size, for the query heads of the group and some of the queries. Its
axes are [group, query, page]. Query at position t sees the tokens 0..t; pages count from position 0; the tail
page of a query ends with its own token, in the mass as in the box. What a query does not see has weight 0,
and -inf for bound and maximum. The arithmetic shares no code with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Where a view lies in the trace; random policies draw by it, so that no cut of the work changes them."""

    layer: int = 0
    heads: tuple[int, ...] = ()
    """Query heads of the trace, one an entry of the group axis."""
    queries: slice = field(default_factory=lambda: slice(None))
    """Queries of the trace in the view, of `num_queries` over `num_tokens`."""
    num_queries: int = 0
    num_tokens: int = 0
    seed: int = 0


class PageView:
    """`q` [group, queries, d], `k`, `v` [tokens, d], `positions` [queries]; kept in float64."""

    def __init__(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        positions: Ints,
        page_size: int,
        softmax_scale: float,
        place: Place | None = None,
    ) -> None:
        self.q, self.page_size, self.scale = np.asarray(q, np.float64), page_size, softmax_scale
        self.positions, self.place = np.asarray(positions, np.int64), place or Place()
        self.max_pages = int(self.positions.max()) // page_size + 1
        self.num_tokens = min(len(k), self.max_pages * page_size)
        self.k, self.v = self._paged(k), self._paged(v)
        self.tails: Ints = self.positions // page_size
        self.num_pages: Ints = self.tails + 1
        self.visible: Bools = np.arange(self.max_pages) <= self.tails[:, None]
        self._held: dict[str, Ints] = {}

    def _paged(self, rows: NDArray[np.float32]) -> Floats:
        """Rows [tokens, d] as [pages, page_size, d], zeros past the end."""
        paged = np.zeros((self.max_pages * self.page_size, rows.shape[-1]))
        paged[: self.num_tokens] = rows[: self.num_tokens]
        return paged.reshape(self.max_pages, self.page_size, -1)

    @cached_property
    def seen(self) -> Bools:
        """Tokens that a query sees, [query, page x slot]."""
        return np.arange(self.max_pages * self.page_size) <= self.positions[:, None]

    @cached_property
    def dots(self) -> Floats:
        """q.k of every token, unscaled, [group, query, page x slot]; -inf where unseen."""
        keys = self.k.reshape(-1, self.k.shape[-1])
        dots: Floats = (self.q.reshape(-1, keys.shape[-1]) @ keys.T).reshape(*self.q.shape[:2], -1)
        dots[:, ~self.seen] = -np.inf
        return dots

    @cached_property
    def token_weights(self) -> Floats:
        """Dense softmax weight of every token, [group, query, page x slot]."""
        weights: Floats = self.dots * self.scale
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights

    @cached_property
    def weights(self) -> Floats:
        """Dense softmax weight of every page."""
        found: Floats = self._by_page(self.token_weights).sum(axis=-1)
        return found

    @cached_property
    def maxima(self) -> Floats:
        """True page maximum, max q.k over the tokens of the page that the query sees, unscaled."""
        found: Floats = self._by_page(self.dots).max(axis=-1)
        return found

    @cached_property
    def boxes(self) -> tuple[Floats, Floats]:
        """(m, M) of every page over its first 1, 2, ... tokens, equation (1), [page, slot, d].

        Slot s holds the box of the tokens up to s: the last one is the page's, another a tail page's.
        """
        return np.minimum.accumulate(self.k, axis=1), np.maximum.accumulate(self.k, axis=1)

    @cached_property
    def bounds(self) -> Floats:
        """U_p of equations (2) and (3), unscaled; of a tail page over the tokens that the query sees."""
        lows, highs = self.boxes
        found = self._corner(lows[:, -1], highs[:, -1])
        slots = self.positions % self.page_size
        tail_lows, tail_highs = lows[self.tails, slots], highs[self.tails, slots]
        tail = np.maximum(self.q * tail_lows, self.q * tail_highs).sum(axis=-1)
        found[:, np.arange(len(self.tails)), self.tails] = tail
        found[:, ~self.visible] = -np.inf
        return found

    def _corner(self, lows: Floats, highs: Floats) -> Floats:
        """sum_j max(q_j m_j, q_j M_j) for boxes [page, d]: q_j >= 0 asks for M_j, q_j < 0 for m_j."""
        flat = self.q.reshape(-1, self.q.shape[-1])
        found = np.maximum(flat, 0) @ highs.T + np.minimum(flat, 0) @ lows.T
        return found.reshape(*self.q.shape[:2], -1)

    @cached_property
    def rounding(self) -> Floats:
        """sum_j |q_j| max(|m_j|, |M_j|), to which the rounding of a bound is relative; 0 where unseen."""
        lows, highs = self.boxes
        flat = np.abs(self.q).reshape(-1, self.q.shape[-1])
        widest = np.maximum(np.abs(lows[:, -1]), np.abs(highs[:, -1]))
        return (flat @ widest.T).reshape(*self.q.shape[:2], -1) * self.visible

    @cached_property
    def sums(self) -> Floats:
        """Weighted values of every page, sum of p_j v_j, [group, query, page, d]."""
        group, queries = self.q.shape[:2]
        weights = self.token_weights.reshape(group * queries, self.max_pages, self.page_size)
        found: Floats = np.matmul(weights.transpose(1, 0, 2), self.v)
        return found.transpose(1, 0, 2).reshape(group, queries, self.max_pages, -1)

    @cached_property
    def largest_value(self) -> Floats:
        """V_max of equation (7), the largest |v_j| among the tokens a query sees, [query]."""
        norms = np.linalg.norm(self.v.reshape(-1, self.v.shape[-1]), axis=-1)
        found: Floats = np.maximum.accumulate(norms)[self.positions]
        return found

    def top_tokens(self, count: int) -> Bools:
        """The `count` tokens of most dense weight (all, where fewer are seen), [group, query, page, slot].

        Equal ones go to the lower position. Logits are ranked, which do not underflow as weights do.
        """
        count = min(count, self.dots.shape[-1])
        least = np.partition(self.dots, -count, axis=-1)[..., -count, None]
        above, equal = self.dots > least, self.dots == least
        left = count - above.sum(axis=-1, keepdims=True)
        top: Bools = (above | (equal & (np.cumsum(equal, axis=-1) <= left))) & self.seen
        return self._by_page(top)

    def order(self, name: str, scores: Callable[[], Floats]) -> Ints:
        """Pages best first by `scores()` [group, query, page], equal ones by rising page; kept by `name`."""
        if name not in self._held:
            self._held[name] = np.argsort(-scores(), axis=-1, kind="stable")
        return self._held[name]

    def ranks(self, name: str, order: Ints) -> Ints:
        """Place of each page in `order`, from 0; kept by `name`."""
        key = f"{name} ranks"
        if key not in self._held:
            ranks = np.empty_like(order)
            np.put_along_axis(ranks, order, np.broadcast_to(np.arange(self.max_pages), order.shape), axis=-1)
            self._held[key] = ranks
        return self._held[key]

    def _by_page(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """[.., page x slot] as [.., page, slot]."""
        return tokens.reshape(*tokens.shape[:-1], self.max_pages, self.page_size)

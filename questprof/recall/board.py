"""Figures of every (case, head, query) of one layer and page size, filled in view by view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from questprof.recall.rows import SIGNIFICANT
from questprof.recall.view import Floats


class Board:
    """Named arrays whose axes before the last two are free, and whose last two are head and query.

    What is never put stays NaN, False or 0.
    """

    def __init__(self, num_heads: int, num_queries: int) -> None:
        self._size = num_heads, num_queries
        self._held: dict[str, NDArray[Any]] = {}

    def put(self, heads: slice, queries: slice, **figures: NDArray[Any]) -> None:
        """Store each of `figures` [.., heads, queries] under its name."""
        for name, part in figures.items():
            if name not in self._held:
                fill = np.nan if part.dtype.kind == "f" else 0
                self._held[name] = np.full((*part.shape[:-2], *self._size), fill, part.dtype)
            self._held[name][..., heads, queries] = part

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._held[name]

    def find(self, name: str) -> NDArray[Any] | None:
        """The array of `name`, None where it was never put."""
        return self._held.get(name)


def mean_where_there(values: Floats) -> Floats:
    """Mean over the last axis of what is no NaN; NaN where nothing is left."""
    there = ~np.isnan(values)
    count = there.sum(axis=-1)
    found = np.full(count.shape, np.nan)
    np.divide(np.where(there, values, 0.0).sum(axis=-1), count, out=found, where=count > 0)
    return found


def some_mean(values: Floats) -> float:
    """Mean of finite numbers, of which there is one or more."""
    return rounded(float(np.mean(values)))


def rounded_all(values: Floats) -> list[Any]:
    """Each of `values` [n] rounded; None for a NaN."""
    return [None if math.isnan(value) else rounded(value) for value in values.tolist()]


def rounded(number: float) -> float:
    """`number` with SIGNIFICANT digits; 0.0 for -0.0."""
    return float(f"{number:.{SIGNIFICANT}g}") + 0.0

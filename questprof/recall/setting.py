"""What one layer is evaluated under, the arrays of it that this reads, and their cut into views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from questprof.recall.cases import Asked, Case, Scope
from questprof.recall.source import LayerArrays, TraceHeader
from questprof.recall.view import Ints, PageView, Place

VIEW_BYTES = 1 << 28
"""Memory that the arrays of one view may take, roughly: the queries are cut into views accordingly."""
Floats32 = NDArray[np.float32]
Cut = tuple[slice, slice]
"""Heads and queries of a view, among those read."""


@dataclass(frozen=True)
class Setting:
    """What stays the same over the layers of one page size."""

    asked: Asked
    scope: Scope
    header: TraceHeader
    page_size: int

    @property
    def cases(self) -> tuple[Case, ...]:
        """Budgets and policies."""
        return self.asked.cases(self.page_size, self.header.num_tokens)

    @property
    def positions(self) -> Ints:
        """Of the queries."""
        return np.asarray(self.header.query_positions, np.int64)

    @property
    def num_pages(self) -> Ints:
        """P of each query."""
        return self.positions // self.page_size + 1


@dataclass(frozen=True)
class Arrays:
    """The KV heads of a scope and the query heads of their groups; axes as of `source.LayerArrays`."""

    q: Floats32
    k: Floats32
    v: Floats32
    q_pre_rope: Floats32 | None
    k_pre_rope: Floats32 | None


def narrowed(scope: Scope, arrays: LayerArrays) -> Arrays:
    """What `scope` reads of a layer."""
    heads, kv_heads = list(scope.read_heads), list(scope.kv_heads)
    return Arrays(
        arrays.q[:, heads],
        arrays.k[:, kv_heads],
        arrays.v[:, kv_heads],
        None if arrays.q_pre_rope is None else arrays.q_pre_rope[:, heads],
        None if arrays.k_pre_rope is None else arrays.k_pre_rope[:, kv_heads],
    )


def views(setting: Setting, layer: int, arrays: Arrays) -> Iterator[tuple[Cut, PageView]]:
    """KV head by KV head, as many queries at a time as VIEW_BYTES allow."""
    header, scope = setting.header, setting.scope
    pages = int(setting.num_pages.max())
    numbers = 4 * pages * setting.page_size + pages * (header.head_dim + 4 * len(setting.cases))
    step = max(1, VIEW_BYTES // (8 * numbers * scope.group_size))
    for place in range(len(scope.kv_heads)):
        heads = slice(place * scope.group_size, (place + 1) * scope.group_size)
        for start in range(0, len(setting.positions), step):
            queries = slice(start, min(start + step, len(setting.positions)))
            yield (heads, queries), view_of(setting, layer, arrays.q, arrays.k, arrays.v, (heads, queries))


def view_of(setting: Setting, layer: int, q: Floats32, k: Floats32, v: Floats32, cut: Cut) -> PageView:
    """The view of `cut`, whose heads are one KV head's group; `q`, `k`, `v` as in Arrays."""
    heads, queries = cut
    header, scope = setting.header, setting.scope
    positions = setting.positions
    kv_head = heads.start // scope.group_size
    place = Place(
        layer, scope.read_heads[heads], queries, len(positions), header.num_tokens, setting.asked.seed
    )
    return PageView(
        q[queries, heads].transpose(1, 0, 2),
        k[:, kv_head],
        v[:, kv_head],
        positions[queries],
        setting.page_size,
        header.softmax_scale,
        place,
    )

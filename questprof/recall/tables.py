"""From the figures of every query to the rows of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from questprof.recall.board import mean_where_there, rounded, rounded_all, some_mean
from questprof.recall.layer import Evaluated
from questprof.recall.rows import (
    GAP_UNIT,
    MASS_UNIT,
    SLACK_UNIT,
    EvidenceRow,
    HeadRow,
    LayerRow,
    PageRow,
    PairRow,
    QueryRow,
)
from questprof.recall.view import Bools, Floats, Ints

KEPT_PAIRS = 8
"""Pairs of missed page and false positive that a record keeps."""
Span = tuple[str, int, int]


MEANS = {
    "mass_recall": "mass",
    "top_recall": "top_tokens",
    "top_page_recall": "top_pages",
    "output_rel_err": "rel_err",
    "pages_read": "pages",
    "union_ratio": "union_ratio",
    "tail_taken": "tail_taken",
    "missed_pages": "lost_pages",
    "regret": "lost",
    "tau_bound": "tau_bound",
    "tau_true": "tau_true",
}
"""Fields of a HeadRow that are means over all queries, and their figures."""
MEANS_WHERE_THERE = {
    "missed_slack": "missed_slack",
    "false_slack": "false_slack",
    "swallowed_pages": "swallowed",
}
"""Those over the queries that have the figure."""


def head_rows(found: Evaluated, case: int) -> list[HeadRow]:
    """A row a shown head, for the case of that number."""
    scope, of = found.setting.scope, {}
    for name, figure in MEANS.items():
        of[name] = rounded_all(found.board[figure][case, scope.shown].mean(axis=-1))
    for name, figure in MEANS_WHERE_THERE.items():
        of[name] = rounded_all(mean_where_there(found.board[figure][case, scope.shown]))
    of["mass_min"] = rounded_all(found.board["mass"][case, scope.shown].min(axis=-1))
    of["bound_ratio"] = rounded_all(found.board["bound_ratio"][case, scope.shown].max(axis=-1))
    of["evidence_recall"] = rounded_all(mean_where_there(evidence_recall(found, case)[scope.shown]))
    return [
        HeadRow(layer=found.layer, head=head, **{name: values[row] for name, values in of.items()})
        for row, head in enumerate(scope.heads)
    ]


def query_rows(found: Evaluated, case: int) -> list[QueryRow]:
    """Missed mass and score gap of every query, a row a shown head."""
    board, scope = found.board, found.setting.scope
    return [
        QueryRow(
            found.layer,
            head,
            whole(board["missed"][case, at], MASS_UNIT),
            whole(np.nan_to_num(board["gap"][case, at], nan=-GAP_UNIT), GAP_UNIT),
        )
        for head, at in zip(scope.heads, scope.shown, strict=True)
    ]


def page_rows(found: Evaluated) -> list[PageRow]:
    """Slack and needed budgets, a row a shown head."""
    board, scope = found.board, found.setting.scope
    before = board.find("slack_pre_rope")
    rows = []
    for head, at in zip(scope.heads, scope.shown, strict=True):
        pages = board["page_slack"][:, at]
        low, middle, high, highest = np.nanquantile(pages, (0.1, 0.5, 0.9, 0.99)).tolist()
        rows.append(
            PageRow(
                layer=found.layer,
                head=head,
                slack=some_mean(board["slack"][at]),
                slack_p10=rounded(low),
                slack_p50=rounded(middle),
                slack_p90=rounded(high),
                slack_p99=rounded(highest),
                slack_tail=some_mean(board["slack_tail"][at]),
                tail_mass=some_mean(board["tail_mass"][at]),
                slack_pre_rope=None if before is None else some_mean(before[at]),
                query_slack=whole(board["slack"][at], SLACK_UNIT),
                needed_quest=tuple(tuple(share.tolist()) for share in board["needed_quest"][:, at]),
                needed_oracle=tuple(tuple(share.tolist()) for share in board["needed_oracle"][:, at]),
            )
        )
    return rows


def any_head(found: Evaluated) -> Bools:
    """Pages that any shown head picked, [case, query, page]."""
    return np.asarray(found.picked[:, found.setting.scope.shown].any(axis=1))


def layer_row(found: Evaluated, here: Bools, before: Bools | None) -> LayerRow:
    """Candidates of one case, [query, page], beside those of the layer before."""
    jaccard = None
    if before is not None:
        jaccard = some_mean((here & before).sum(axis=-1) / (here | before).sum(axis=-1))
    return LayerRow(found.layer, some_mean(here.sum(axis=-1) / found.setting.num_pages), jaccard)


def evidence_pages(span: Span, page_size: int, positions: Ints, max_pages: int) -> Bools:
    """Pages of `span` [query, page], for queries that see all of it; no page for the others."""
    pages = np.arange(max_pages)
    inside = (pages >= span[1] // page_size) & (pages <= span[2] // page_size)
    return np.logical_and(inside, (positions >= span[2])[:, None])


def evidence_recall(found: Evaluated, case: int) -> Floats:
    """Share of the pages of all evidence that is picked, [head, query]; NaN for a query that sees none."""
    setting, picked = found.setting, found.picked[case]
    wanted = np.zeros(picked.shape[1:], np.bool_)
    for span in setting.header.evidence:
        wanted |= evidence_pages(span, setting.page_size, setting.positions, wanted.shape[-1])
    count = wanted.sum(axis=-1)
    share = np.full(picked.shape[:2], np.nan)
    np.divide((picked & wanted).sum(axis=-1), count, out=share, where=np.broadcast_to(count > 0, share.shape))
    return share


def evidence_hits(found: Evaluated, case: int) -> list[NDArray[np.int64]]:
    """For each evidence span, how many shown heads pick every page of it, [query]; -1: it is not seen."""
    setting = found.setting
    hits = []
    for span in setting.header.evidence:
        picked = found.picked[case, setting.scope.shown]
        wanted = evidence_pages(span, setting.page_size, setting.positions, picked.shape[-1])
        heads = (picked | ~wanted).all(axis=-1).sum(axis=0)
        hits.append(np.where(wanted.any(axis=-1), heads, -1))
    return hits


def evidence_rows(
    spans: Sequence[Span], layers: Sequence[int], hits: Sequence[Sequence[NDArray[np.int64]]]
) -> list[EvidenceRow]:
    """First hit and hits of every span and query; `hits[layer][span]` [query] is of `evidence_hits`."""
    rows = []
    for number, span in enumerate(spans):
        table = np.stack([layer[number] for layer in hits])
        for query in np.flatnonzero(table[0] >= 0).tolist():
            hit = np.flatnonzero(table[:, query] > 0)
            first = layers[int(hit[0])] if len(hit) else -1
            rows.append(EvidenceRow(span[0], query, first, len(hit), int(table[hit, query].sum())))
    return rows


def pair_rows(found: Evaluated, case: int) -> list[tuple[float, PairRow]]:
    """(true maximum lost, row) of the case's pairs, of shown heads."""
    scope, positions = found.setting.scope, found.setting.positions
    return [
        (
            pair.lost,
            PairRow(
                found.layer,
                scope.read_heads[pair.group],
                int(positions[pair.query]),
                pair.missed_page,
                rounded(pair.missed_true),
                rounded(pair.missed_bound),
                pair.false_page,
                rounded(pair.false_true),
                rounded(pair.false_bound),
            ),
        )
        for number, pair in found.pairs
        if number == case and pair.group in scope.shown
    ]


def whole(values: NDArray[Any], unit: float) -> tuple[int, ...]:
    """`values` in whole numbers of `unit`."""
    return tuple(np.rint(values / unit).astype(np.int64).tolist())

"""The bytes figure: the ledger's terms of Quest's reads stacked over dense, and what was counted as marks.

A trace carries `meta`: its role, which is its colour, and a text a point, of our words and numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from questprof.bytecheck.judgement import Judgement, StageFinding
from questprof.units import format_bytes, format_count, six_digits

TERMS: Final = (
    ("summary", "summary, eq. (10)", "score"),
    ("k", "selected K, eq. (11)", "attend"),
    ("v", "selected V, eq. (11)", "quest"),
    ("", "everything else, itemised", "muted"),
)
"""Tensor (empty: the others), name and colour of a bar's parts, from below."""
CHAIN: Final = ("score", "attend")


def stack_figure(judgements: Sequence[Judgement], counted: str) -> dict[str, Any] | None:
    """Figure of points that differ in length alone, for page.js; None where dense was not predicted.

    Bars: predicted reads of score and attend by term, over all predicted reads of dense. Marks: `counted`
    (`measured` or `counted`) reads of both stages over those of dense.
    """
    columns = [found for one in judgements if (found := _column(one))]
    if not columns:
        return None
    lengths = [column["length"] for column in columns]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": lengths,
            "y": [column["terms"][i] for column in columns],
            "meta": {"role": role, "hover": [column["texts"][i] for column in columns]},
        }
        for i, (_, name, role) in enumerate(TERMS)
    ]
    data.append(_marks(columns, lengths, counted))
    layout = {
        "xaxis": {"type": "category", "title": {"text": "context length, tokens"}},
        "barmode": "stack",
        "yaxis": {"title": {"text": "reads of score + attend / reads of dense"}},
    }
    return {"data": [trace for trace in data if any(trace["y"])], "layout": layout}


def _marks(columns: Sequence[dict[str, Any]], lengths: Sequence[str], counted: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": counted,
        "x": list(lengths),
        "y": [column["counted"] for column in columns],
        "marker": {"symbol": "diamond"},
        "meta": {
            "role": "ink",
            "hover": [
                f"{length} tokens, {counted}: {column['counted']:.4f} of dense"
                if column["counted"] is not None
                else ""
                for length, column in zip(lengths, columns, strict=True)
            ],
        },
    }


def _column(judgement: Judgement) -> dict[str, Any] | None:
    """Heights of one length; None without a score, attend and dense counted alone."""
    stages = {stage.stage: stage for stage in judgement.stages if stage.mode == "isolated"}
    if not {*CHAIN, "dense"} <= stages.keys() or not stages["dense"].read.predicted_bytes:
        return None
    chain = [stages[stage] for stage in CHAIN]
    dense = stages["dense"].read
    sums = [_sum(chain, tensor) for tensor, _, _ in TERMS]
    length = format_count(judgement.point.seq_len)
    return {
        "length": length,
        "terms": [six_digits(size / dense.predicted_bytes) for size in sums],
        "texts": [
            f"{length} tokens, {name}: {format_bytes(size)}, {size / dense.predicted_bytes:.4f} of dense, "
            "modelled: formula"
            for size, (_, name, _) in zip(sums, TERMS, strict=True)
        ],
        "counted": six_digits(sum(stage.read.counted_bytes for stage in chain) / dense.counted_bytes)
        if dense.counted_bytes > 0
        else None,
    }


def _sum(stages: Sequence[StageFinding], tensor: str) -> int:
    """Predicted reads of one tensor of equation (12), or of all others."""
    return sum(
        term.predicted_read_bytes
        for stage in stages
        for term in stage.terms
        if (term.tensor == tensor if tensor else not term.in_eq12)
    )

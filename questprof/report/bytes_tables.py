"""The tables of the bytes section: stages by length, terms, read ratios by page size and budget, the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from questprof.bytecheck.judgement import Finding, Judgement, Mode, StageFinding, percent
from questprof.bytecheck.pairs import pair_lines, pairs
from questprof.bytecheck.summary import LABELS, LARGE, verdict, where
from questprof.units import format_bytes, format_count, format_us

DASH: Final = "–"
MODES: Final[tuple[Mode, ...]] = ("isolated", "pipelined")
SERIES_BUDGET: Final = 2048
"""The budget of the series over page sizes, where it was counted."""

Table = dict[str, Any]
"""`title`, `heads` and `rows` of texts; the template escapes them."""


def stage_table(judgements: Sequence[Judgement]) -> Table:
    """Points that differ in length alone: counted and predicted reads and the residual of every stage."""
    present = {(stage.stage, stage.mode) for one in judgements for stage in one.stages}
    order = [*LARGE, "select", "append", "append_kv", "append_prefill"]
    names = [*order, *sorted({stage for stage, _ in present} - set(order))]
    keys = [(name, mode) for mode in MODES for name in names if (name, mode) in present]
    return {
        "groups": [name + ", in a chain" * (mode == "pipelined") for name, mode in keys],
        "rows": [
            {
                "length": format_count(one.point.seq_len),
                "cells": [cell for key in keys for cell in _cells(_of(one, *key), key[0] in one.refused)],
                "ratio": _ratio_cells(one),
                "verdict": verdict(one),
                "holds": one.holds is True,
            }
            for one in judgements
        ],
    }


def _of(judgement: Judgement, stage: str, mode: Mode) -> StageFinding | None:
    return next((s for s in judgement.stages if (s.stage, s.mode) == (stage, mode)), None)


def _cells(stage: StageFinding | None, refused: bool) -> list[dict[str, Any]]:
    """Counted, formula, residual; a dash with its reason for what is not there."""
    if stage is None:
        reason = "refused, see the alarms" if refused else "not counted at this point"
        return [{"text": DASH, "reason": reason, "off": False}] * 3
    read = stage.read
    share = DASH if read.residual_share is None else percent(read.residual_share)
    said = f"{read.residual_bytes:+d} B; tolerance {stage.tolerance}; {stage.sentence}"
    texts = (format_bytes(read.counted_bytes), format_bytes(read.predicted_bytes), share)
    reasons = (f"{read.counted_bytes} B", f"{read.predicted_bytes} B", said)
    return [
        {"text": text, "reason": reason, "off": stage.holds is False}
        for text, reason in zip(texts, reasons, strict=True)
    ]


def _ratio(judgement: Judgement) -> Finding | None:
    return next((f for f in judgement.findings if f.what == "read ratio"), None)


def _ratio_cells(judgement: Judgement) -> list[dict[str, Any]]:
    found = _ratio(judgement)
    if found is None or found.counted is None or found.predicted is None:
        return [{"text": DASH, "reason": "score, attend and dense were not all counted", "off": False}] * 2
    off = found.holds is False
    return [
        {"text": f"{value:.4f}", "reason": found.sentence, "off": off}
        for value in (found.counted, found.predicted)
    ]


def term_table(judgement: Judgement) -> Table:
    """Every line of the ledger at one point, with what a trace counted of it."""
    traced = any(term.read for stage in judgement.stages for term in stage.terms)
    rows = []
    for stage in judgement.stages:
        if stage.mode == "isolated":
            rows += [
                [
                    stage.stage,
                    term.tensor + ("*" if term.in_eq12 else ""),
                    str(term.predicted_read_bytes),
                    str(term.predicted_write_bytes),
                    *_traced(term.read.counted_bytes if term.read else None, traced),
                    *_traced(term.write.counted_bytes if term.write else None, traced),
                ]
                for term in stage.terms
            ]
    heads = ["stage", "tensor", "read, formula", "written, formula"]
    return {
        "title": where(judgement.point),
        "heads": heads + ["read, counted", "written, counted"] * traced,
        "rows": rows,
    }


def _traced(value: int | None, traced: bool) -> list[str]:
    return [DASH if value is None else str(value)] if traced else []


def ratio_tables(judgements: Sequence[Judgement]) -> Iterable[Table]:
    """Points of one setting but for length, page size and budget: the series over S, and the plane S x B.

    The series is at SERIES_BUDGET or else the middle budget; the plane at the longest length.
    """
    ratios = {
        (one.point.seq_len, one.point.page_size, one.point.token_budget): found
        for one in judgements
        if (found := _ratio(one))
    }
    lengths, sizes, budgets = (sorted({key[i] for key in ratios}) for i in range(3))
    if len(sizes) > 1:
        budget = SERIES_BUDGET if SERIES_BUDGET in budgets else budgets[len(budgets) // 2]
        yield {
            "title": f"Read ratio by length and page size, budget {budget}",
            "heads": ["length", *(f"S = {size}" for size in sizes)],
            "rows": [
                [format_count(n), *(_both(ratios.get((n, size, budget))) for size in sizes)] for n in lengths
            ],
        }
    if len(sizes) > 1 and len(budgets) > 1:
        longest = lengths[-1]
        yield {
            "title": f"Read ratio by page size and budget, length {format_count(longest)}",
            "heads": ["page size", *(f"B = {budget}" for budget in budgets)],
            "rows": [
                [str(size), *(_both(ratios.get((longest, size, budget))) for budget in budgets)]
                for size in sizes
            ],
        }


def _both(found: Finding | None) -> str:
    """`0.0938 (0.0938, +0.01 %)`: counted, by formula, and how far apart."""
    if found is None or found.counted is None or not found.predicted:
        return DASH
    share = percent(found.counted / found.predicted - 1)
    return f"{found.counted:.4f} ({found.predicted:.4f}, {share})" + " fails" * (found.holds is False)


def other_tables(judgements: Sequence[Judgement]) -> list[Table]:
    """Reuse between stages, both sources side by side, the gathered copy, the counter's error, the proofs."""
    tables = [
        _reuse(judgements),
        _pairs(judgements),
        _gather(judgements),
        _calibration(judgements),
        _proofs(judgements),
    ]
    return [table for table in tables if table["rows"]]


def _reuse(judgements: Sequence[Judgement]) -> Table:
    return {
        "title": "Reuse between stages: reads of score, select, attend alone and as they run",
        "heads": ["point", "source", "alone, cache flushed", "in a chain", "saved", "share"],
        "rows": [
            [
                where(one.point),
                LABELS[reuse.source],
                format_bytes(reuse.isolated_bytes),
                format_bytes(reuse.pipelined_bytes),
                format_bytes(reuse.saved_bytes),
                f"{100 * reuse.saved_share:.2f} %",
            ]
            for one in judgements
            for reuse in one.reuse
        ],
    }


def _pairs(judgements: Sequence[Judgement]) -> Table:
    rows = []
    for pair in pairs(judgements):
        variants = (pair.trace.variant or DASH, pair.hardware.variant or DASH)
        rows += [
            [
                where(pair.hardware.point),
                line.stage,
                variants[0],
                format_bytes(line.trace_vectors),
                f"{line.trace_residual:+g} B",
                variants[1],
                format_bytes(line.hardware_reads),
                f"{line.hardware_residual:+.0f} B",
            ]
            for line in pair_lines(pair)
        ]
    return {
        "title": "Both sources, bytes a KV head: address trace of one variant, hardware counters of another",
        "heads": [
            "point",
            "stage",
            "traced variant",
            "K, V, summary",
            "off the ledger",
            "variant on the GPU",
            "all reads",
            "off the ledger",
        ],
        "rows": rows,
    }


def _gather(judgements: Sequence[Judgement]) -> Table:
    return {
        "title": "Attention over a gathered copy: bytes read and written, time where a sweep has it",
        "heads": ["point", "source", "in place", "gathered", "x bytes", "in place, us", "gathered, us"],
        "rows": [
            [
                where(one.point),
                LABELS[cost.source],
                format_bytes(cost.attend_bytes),
                format_bytes(cost.gather_bytes),
                DASH if cost.x_attend is None else f"{cost.x_attend:.2f}x",
                DASH if cost.attend_us is None else format_us(cost.attend_us),
                DASH if cost.gather_us is None else format_us(cost.gather_us),
            ]
            for one in judgements
            for cost in one.gather
        ],
    }


def _calibration(judgements: Sequence[Judgement]) -> Table:
    """Each streaming read once: the points of one run share it."""
    errors = dict.fromkeys(error for one in judgements for error in one.calibration)
    return {
        "title": "The counter's own error: streaming reads of known size",
        "heads": ["source", "known", "counted", "error", "verdict"],
        "rows": [
            [
                LABELS[error.source],
                f"{error.known_bytes} B",
                f"{error.counted_bytes} B",
                DASH if error.error is None else f"{100 * error.error:+.3f} %",
                "ok" if error.holds else "inconclusive",
            ]
            for error in errors
        ],
    }


def _proofs(judgements: Sequence[Judgement]) -> Table:
    return {
        "title": "Proof on the device: attend over a pool whose unselected granules are unmapped",
        "heads": ["point", "granule", "unmapped", "unselected pages", "result"],
        "rows": [
            [
                where(one.point),
                format_bytes(one.proof.granule_bytes),
                format_bytes(one.proof.unmapped_bytes),
                str(one.proof.unselected_pages),
                "completed" if one.proof.completed else f"did not complete: {one.proof.reason or 'a fault'}",
            ]
            for one in judgements
            if one.proof
        ],
    }

"""What `bytes` shows in a terminal: a table of the points, lines that sum them up, what failed and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from questprof.bytecheck.judgement import Judgement, Mode, StageFinding, percent
from questprof.bytecheck.summary import LARGE, failures, label, summary_lines, verdict, where
from questprof.counts import Source
from questprof.terminal import plain_table, print_table
from questprof.units import format_bytes, format_count

__all__ = ["bytes_tables", "print_bytes", "summary_lines"]

FEW: Final = 3
"""Up to so many points of one source, every stage has a line of its own."""

Group = tuple[Source, str]


def print_bytes(console: Console, judgements: Sequence[Judgement]) -> None:
    """Tables at their natural width, then the summary lines and the sentences of what does not hold."""
    plain = not console.is_terminal
    for heading, table in bytes_tables(judgements):
        print_table(console, table, heading)
    console.print()
    for line in (*summary_lines(judgements), *failures(judgements)):
        console.print(line, highlight=False, markup=False, soft_wrap=plain)


def bytes_tables(judgements: Sequence[Judgement]) -> list[tuple[str, Table]]:
    """One table a shape, source and variant: a line a stage for few points, a line a point for many."""
    groups: dict[tuple[str, str, Source, str], list[Judgement]] = {}
    for one in judgements:
        shape = one.point.shape
        for source in one.sources:
            groups.setdefault((shape.name, shape.kv_dtype, source, one.variant), []).append(one)
    found = []
    for (name, dtype, source, variant), own in groups.items():
        heading = f"{name} ({dtype}), bytes a launch, {label(source, variant)}"
        tolerance = "; ".join(_tolerances(own, source))
        make = _stage_table if len(own) <= FEW else _point_table
        found.append((f"{heading}\ntolerance of reads: {tolerance}", make(own, source)))
    return found


def _tolerances(judgements: Sequence[Judgement], source: Source) -> list[str]:
    """`dense, score, attend: 1 % + 128 KiB a launch`."""
    by_text: dict[str, dict[str, None]] = {}
    for one in judgements:
        for stage in one.stages:
            if stage.source == source:
                by_text.setdefault(stage.tolerance, {})[stage.stage] = None
    if len(by_text) == 1:
        return list(by_text)
    return [f"{', '.join(stages)}: {text}" for text, stages in by_text.items()]


def _table(names: Sequence[str]) -> Table:
    table = plain_table(*names)
    table.columns[-1].justify = "left"
    return table


def _stage_table(judgements: Sequence[Judgement], source: Source) -> Table:
    """Reads and writes, counted and by formula, a line a stage."""
    counted = "measured" if source == "ncu" else "counted"
    table = _table(("point", "stage", f"read\n{counted}", "formula", "residual", "B", "written", "verdict"))
    for one in judgements:
        stages = [stage for stage in one.stages if stage.source == source]
        for i, stage in enumerate(stages):
            place = escape(where(one.point)) if i == 0 else ""
            table.add_row(
                place, _name(stage), *_reads(stage), format_bytes(stage.write.counted_bytes), _word(stage)
            )
        for finding in one.findings:
            if finding.what == "read ratio" and finding.source == source and finding.counted is not None:
                figures = (f"{finding.counted:.5f}", f"{finding.predicted:.5f}")
                share = percent(finding.counted / finding.predicted - 1) if finding.predicted else "-"
                table.add_row("", "ratio", *figures, share, "", "", _holds(finding.holds))
            elif finding.what != "read ratio":
                table.add_row("", finding.what, "", "", "", "", "", _holds(finding.holds))
    return table


def _reads(stage: StageFinding) -> tuple[str, str, str, str]:
    read = stage.read
    share = "-" if read.residual_share is None else percent(read.residual_share)
    return (
        format_bytes(read.counted_bytes),
        format_bytes(read.predicted_bytes),
        share,
        f"{read.residual_bytes:+d}",
    )


def _point_table(judgements: Sequence[Judgement], source: Source) -> Table:
    """Counted reads with their residual, a column a stage, and the read ratio beside its formula."""
    modes: tuple[Mode, ...] = ("isolated", "pipelined")
    stages = [
        (name, mode)
        for mode in modes
        for name in LARGE
        if any((s.stage, s.mode, s.source) == (name, mode, source) for one in judgements for s in one.stages)
    ]
    varying = [name for name, text in VARIES.items() if len(set(map(text, judgements))) > 1]
    heads = [name + "\nin a chain" * (mode == "pipelined") for name, mode in stages]
    table = _table(("L", "page", "budget", *varying, *heads, "ratio", "formula", "verdict"))
    for one in judgements:
        point = one.point
        own = {(s.stage, s.mode): s for s in one.stages if s.source == source}
        table.add_row(
            format_count(point.seq_len),
            str(point.page_size),
            format_count(point.token_budget),
            *(escape(VARIES[name](one)) for name in varying),
            *(_brief(own.get(key)) for key in stages),
            *_ratio(one, source),
            escape(verdict(one)),
        )
    return table


VARIES: Final[dict[str, Callable[[Judgement], str]]] = {
    "batch": lambda one: str(one.point.batch_size),
    "summary": lambda one: one.point.summary_layout,
    "policy": lambda one: one.point.policy,
    "kernels": lambda one: one.point.backend,
    "data": lambda one: one.point.data,
}
"""Columns that a table of points has only where they differ."""


def _brief(stage: StageFinding | None) -> str:
    """`64.02 MiB +0.05 %`, with a mark where it fails or is inconclusive."""
    if stage is None:
        return "-"
    read = stage.read
    exact = stage.source == "trace" and not any(
        t.read and t.read.residual_bytes for t in stage.terms if t.in_eq12
    )
    share = "exact" if exact else "-" if read.residual_share is None else percent(read.residual_share)
    mark = "" if stage.holds else " ?" if stage.holds is None else " !"
    return f"{format_bytes(read.counted_bytes)} {share}{mark}"


def _ratio(judgement: Judgement, source: Source) -> tuple[str, str]:
    for one in judgement.findings:
        if (one.what, one.source) == ("read ratio", source) and one.counted is not None:
            return f"{one.counted:.4f}", f"{one.predicted:.4f}"
    return "-", "-"


def _name(stage: StageFinding) -> str:
    return stage.stage + " in a chain" * (stage.mode == "pipelined")


def _word(stage: StageFinding) -> str:
    return _holds(stage.holds, stage.cause)


def _holds(holds: bool | None, cause: str = "") -> str:
    return "inconclusive" if holds is None else "ok" if holds else cause or "fails"

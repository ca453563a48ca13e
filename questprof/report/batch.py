"""Batches: what requests decoded together, of equal or of ragged lengths, make of the speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from questprof.crossover.tables import MEASURED, MODELLED
from questprof.model import Point, Profile
from questprof.points import setting
from questprof.report.curves import Curve, curves
from questprof.report.panels import Cell, Figure, Panel, block, number, table, times
from questprof.report.records import Lines
from questprof.report.scanned import rows_of
from questprof.report.section import Block, Context
from questprof.rows import Row
from questprof.scan import point_key
from questprof.units import format_count, format_ratio, format_us


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None where every point has the same batch size and requests of equal lengths."""
    groups: dict[bytes, list[Row]] = {}
    for row in rows_of(profile):
        free = {"seq_len": 0, "token_budget": 0, "batch_size": 1, "seq_lens": (), "token_budgets": ()}
        groups.setdefault(point_key(row.point, **free), []).append(row)
    told = [rows for rows in groups.values() if _varies(rows)]
    if not told:
        return None
    panels = [_panel(f"{prefix}-{i}", rows, page.lines) for i, rows in enumerate(told, start=1)]
    intro = (
        "Requests decoded together. Every request reads its own cache, so both sides grow with the batch, "
        "and launches and selection are shared by more work. A ragged batch has requests of different "
        "lengths; its length here is the longest."
    )
    return block(intro, panels)


def _varies(rows: Sequence[Row]) -> bool:
    return len({row.batch_size for row in rows}) > 1 or any(row.point.seq_lens for row in rows)


def requests(point: Point) -> str:
    """`8 x 32k`, or `8 ragged, 4k to 32k, 18k on average`."""
    lengths = point.lengths
    if not point.seq_lens:
        return f"{point.batch_size} x {format_count(point.seq_len)}"
    mean = sum(lengths) / len(lengths)
    ends = f"{format_count(min(lengths))} to {format_count(max(lengths))}"
    return f"{len(lengths)} ragged, {ends}, {mean / 1024:.3g}k on average"


def _panel(uid: str, rows: Sequence[Row], lines: Lines) -> Panel:
    told = setting(rows[0].point).replace(f", batch {rows[0].batch_size}", "")
    ordered = sorted(
        rows, key=lambda row: (row.token_budget, row.seq_len, bool(row.point.seq_lens), row.batch_size)
    )
    drawn = _curves(ordered)
    figures = []
    if drawn:
        spec = curves(drawn, "batch size, requests", "speed-up over the fastest dense baseline", log_y=False)
        label = "Speed-up of attention against batch size, a curve for each length and budget."
        figures = [Figure(spec, label, f"Speed-up: {MEASURED}.")]
    points = [row.point for row in rows]
    return Panel(uid, told, {"Setting": told}, figures, _table(ordered), lines.of_rows(points))


def _curves(rows: Sequence[Row]) -> list[Curve]:
    groups: dict[tuple[int, int, bool], list[Row]] = {}
    for row in rows:
        if row.usable:
            groups.setdefault((row.token_budget, row.seq_len, bool(row.point.seq_lens)), []).append(row)
    return [
        Curve(
            f"{'up to ' * ragged}{format_count(length)}, budget {budget}",
            [row.batch_size for row in found],
            [row.speed_up for row in found],
            [
                f"{requests(row.point)}, budget {budget}: {times(row.speed_up or 0)}, {MEASURED}"
                for row in found
            ],
        )
        for (budget, length, ragged), found in groups.items()
    ]


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    heads = [
        "requests",
        "budget",
        f"dense, us\n{MEASURED}",
        f"quest, us\n{MEASURED}",
        f"speed-up\n{MEASURED}",
    ]
    heads += [f"quest, us a request\n{MEASURED}", f"bytes over dense, eq. (12)\n{MODELLED}"]
    return table(heads, map(_row, rows))


def _row(row: Row) -> list[Cell]:
    each = row.quest_us / row.batch_size if row.quest_us else None
    return [
        Cell(requests(row.point)),
        Cell(str(row.token_budget), row.token_budget),
        number(row.dense_us, format_us, row.missing.get("dense_us", "")),
        number(row.quest_us, format_us, row.missing.get("quest_us", "")),
        number(row.speed_up, times, row.missing.get("speed_up", "")),
        number(each, format_us, row.missing.get("quest_us", "")),
        number(row.bytes_ratio, format_ratio, row.missing.get("bytes_ratio", "")),
    ]

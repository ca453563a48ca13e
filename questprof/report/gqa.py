"""Grouped-query attention: what heads that share keys cost, picking pages independently or the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from questprof.crossover.tables import MEASURED, MODELLED
from questprof.grid import NORMAL_DATA
from questprof.model import Profile
from questprof.points import setting
from questprof.report.curves import Curve, curves
from questprof.report.panels import Cell, Figure, Panel, block, number, table, times
from questprof.report.records import Lines
from questprof.report.scanned import rows_of
from questprof.report.section import Block, Context
from questprof.rows import Row
from questprof.scan import point_key
from questprof.units import format_count, format_ratio, format_us

PICKS: Final = {"independent": "independently", "shared": "the same pages"}


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None for a profile whose query heads have keys of their own."""
    groups: dict[bytes, list[Row]] = {}
    for row in rows_of(profile):
        if row.point.shape.group_size > 1 and row.data in NORMAL_DATA:
            key = point_key(row.point, seq_len=0, token_budget=0, data="independent")
            groups.setdefault(key, []).append(row)
    if not groups:
        return None
    panels = [_panel(f"{prefix}-{i}", rows, page.lines) for i, rows in enumerate(groups.values(), start=1)]
    intro = (
        "The query heads of a group share keys and values. Dense reads these once for all of them; Quest "
        "reads the union of the pages that its heads pick. union / K is that union over the pages of one "
        "head: 1 where all pick the same, the group size where none do. Real models lie between."
    )
    return block(intro, panels)


def _panel(uid: str, rows: Sequence[Row], lines: Lines) -> Panel:
    told = setting(rows[0].point, queries=False)
    ordered = sorted(rows, key=lambda row: (row.token_budget, row.data, row.seq_len))
    drawn = _curves(ordered)
    figures = []
    if drawn:
        spec = curves(
            drawn, "context length, tokens", "speed-up over the fastest dense baseline", log_y=False
        )
        label = (
            "Speed-up of attention against context length, by budget and by how the heads of a group pick."
        )
        figures = [
            Figure(spec, label, f"Speed-up: {MEASURED}. union / K: counted, from the page ids picked.")
        ]
    shape = rows[0].point.shape
    title = f"{told}, {shape.group_size} query heads a KV head"
    points = [row.point for row in rows]
    return Panel(uid, title, {"Setting": told}, figures, _table(ordered), lines.of_rows(points))


def _curves(rows: Sequence[Row]) -> list[Curve]:
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row.usable:
            groups.setdefault((row.token_budget, row.data), []).append(row)
    return [
        Curve(
            f"budget {budget}, {PICKS[data]}",
            [row.seq_len for row in found],
            [row.speed_up for row in found],
            [_hover(row) for row in found],
        )
        for (budget, data), found in groups.items()
    ]


def _hover(row: Row) -> str:
    union = f", union / K {row.union_ratio:.2f}" if row.union_ratio else ""
    place = f"{format_count(row.seq_len)}, budget {row.token_budget}"
    return f"{place}: {times(row.speed_up or 0)}{union}, {MEASURED}"


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    heads = ["length", "budget", "heads of a group pick", f"dense, us\n{MEASURED}", f"quest, us\n{MEASURED}"]
    heads += [f"attend, us\n{MEASURED}", f"speed-up\n{MEASURED}", "union / K\ncounted: page ids"]
    return table([*heads, f"bytes over dense, eq. (12)\n{MODELLED}"], map(_row, rows))


def _row(row: Row) -> list[Cell]:
    def cell(name: str) -> Cell:
        return number(getattr(row, name), format_us, row.missing.get(name, ""))

    def share(name: str) -> Cell:
        return number(getattr(row, name), format_ratio, row.missing.get(name, ""))

    return [
        Cell(format_count(row.seq_len), row.seq_len),
        Cell(str(row.token_budget), row.token_budget),
        Cell(PICKS[row.data]),
        cell("dense_us"),
        cell("quest_us"),
        cell("attend_us"),
        number(row.speed_up, times, row.missing.get("speed_up", "")),
        share("union_ratio"),
        share("bytes_ratio"),
    ]

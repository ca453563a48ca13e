"""The length scan section: one panel per setting, with its figure, its table, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from questprof.crossover.outlook import Outlook, outlook
from questprof.crossover.sentences import verdicts
from questprof.crossover.tables import MODELLED, NOTES, Table, overview, tables
from questprof.crossover.traffic import stored
from questprof.grid import NORMAL_DATA
from questprof.model import Point, Profile, Shape
from questprof.report.evidence import USUAL_BUDGET
from questprof.report.figure import UNITS, figure
from questprof.report.records import Lines
from questprof.report.scanned import rows_of
from questprof.report.section import Block, Context, Verdict, selectors
from questprof.report.table import table, why_no_tails
from questprof.report.verdict import told_first
from questprof.rows import ALL, Row, Series
from questprof.scan import series, setting_key
from questprof.units import format_bytes, format_count

PICKS: Final = {"independent": "independently", "shared": "the same pages"}
NO_GROUPS: Final = "no groups (MHA)"
_USUAL: Final = (
    ("Policy", "quest"),
    ("Kernels", "questprof"),
    ("Heads of a group pick", NO_GROUPS),
    ("Keys", "normal"),
    ("Page order", "shuffled"),
    ("Summary", "paired"),
    ("Seed", "0"),
)
"""Settings that a title leaves out."""


class Panel(NamedTuple):
    """Series that differ in their budget alone."""

    settings: dict[str, str]
    series: tuple[Series, ...]


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None for a profile without Quest points."""
    rows = rows_of(profile)
    if not rows:
        return None
    every = series(rows)
    panels, first = _panels(every), told_first(every)
    outlooks = [outlook(panel.series, tuple(stored().values())) for panel in panels]
    shown = [
        _panel(panel, found, f"{prefix}-{i}", page.lines)
        for i, (panel, found) in enumerate(zip(panels, outlooks, strict=True), start=1)
    ]
    context = {
        "panels": shown,
        "overview": _plain(overview(outlooks)) if len(panels) > 1 else None,
        "selectors": selectors([panel.settings for panel in panels]),
        "chosen": next(panel.settings for panel in panels if any(one is first for one in panel.series)),
        "units": [{"key": key, "name": name} for key, name, _, _ in UNITS],
        "not_ok": _not_ok(rows),
        "alarms": tuple(dict.fromkeys(alarm for row in rows for alarm in row.alarms)),
        "modelled": MODELLED,
        "budget_texts": {ALL: "all"},
        "notes": NOTES,
        "traffic": tuple(f"{one.name}: {one.about}. Source: {one.source}." for one in stored().values()),
        "has_floor": any(row.floor_us for row in rows),
    }
    return Block("length_scan.html", context, _verdicts(panels), num_figures=len(shown))


def shape_text(shape: Shape) -> str:
    """A shape with what its name may not say: heads, head_dim, dtypes."""
    summary = f", summary {shape.summary_dtype}" if shape.effective_summary_dtype != shape.kv_dtype else ""
    heads = f"{shape.num_qo_heads} query / {shape.num_kv_heads} KV heads of {shape.head_dim}"
    return f"{shape.name} ({heads}, {shape.kv_dtype}{summary})"


def _settings(point: Point) -> dict[str, str]:
    """What sets one panel apart from another, in the words of the selectors."""
    kernels = f"{point.backend} ({point.variant})" if point.variant else point.backend
    settings = {
        "Shape": shape_text(point.shape),
        "Batch": str(point.batch_size),
        "Page size": str(point.page_size),
        "Policy": point.policy,
        "Kernels": kernels,
        "Heads of a group pick": _pick(point),
        "Keys": "normal" if point.data in NORMAL_DATA else point.data,
        "Lengths": ", ".join(map(format_count, point.seq_lens)),
        "Budgets": ", ".join(map(str, point.token_budgets)),
        "Page order": point.page_order,
        "Pool": format_bytes(point.pool_bytes) if point.pool_bytes else "",
        "Summary": point.summary_layout,
        "Seed": str(point.seed),
        "Parameters": ", ".join(f"{key} {value}" for key, value in sorted(point.policy_params.items())),
    }
    return {name: value for name, value in settings.items() if value}


def _pick(point: Point) -> str:
    """How the heads of a group pick pages; adversarial keys leave them little choice, whatever they ask."""
    return PICKS.get(point.data, PICKS["independent"]) if point.shape.group_size > 1 else NO_GROUPS


def _panels(found: Iterable[Series]) -> tuple[Panel, ...]:
    groups: dict[bytes, list[Series]] = {}
    for one in found:
        groups.setdefault(setting_key(one.rows[0].point), []).append(one)
    return tuple(Panel(_settings(group[0].rows[0].point), tuple(group)) for group in groups.values())


def _title(settings: dict[str, str]) -> str:
    """The settings a reader needs to know what was measured; the selectors hold the rest."""
    text = f"{settings['Shape']}, batch {settings['Batch']}, page {settings['Page size']}"
    usual = {"Shape", "Batch", "Page size"} | {name for name, value in _USUAL if settings.get(name) == value}
    rest = [f"{name.lower()} {value}" for name, value in settings.items() if name not in usual]
    return ", ".join([text, *rest])


def _panel(panel: Panel, found: Outlook, uid: str, lines: Lines) -> dict[str, Any]:
    rows = [row for one in panel.series for row in one.rows]
    predicted = [answer.modelled.seq_len if answer.modelled else None for answer in found.answers]
    drawn = figure(panel.series, predicted)
    drawn["focus"] = _focus(panel.series, drawn["budgets"])
    ceilings = sorted({row.ceiling_gb_s for row in rows if row.ceiling_gb_s})
    return {
        "id": uid,
        "title": _title(panel.settings),
        "settings": panel.settings,
        "figure": drawn,
        "focus": drawn["focus"],
        "records": lines.of_rows([row.point for row in rows]),
        "sentences": verdicts(panel.series),
        "table": table(rows),
        "no_tails": why_no_tails(rows),
        "outlook": [_plain(one) for one in tables(found)],
        "ceilings": list(dict.fromkeys(f"{gb_s:.4g}" for gb_s in ceilings[:1] + ceilings[-1:])),
    }


def _plain(one: Table) -> dict[str, Any]:
    """A table for the template: heads as lines, cells as text."""
    return {
        "title": one.title,
        "heads": [head.split("\n") for head in one.heads],
        "rows": one.rows,
        "note": one.note,
    }


def _focus(found: Sequence[Series], drawn: Sequence[int]) -> int:
    """Budget whose stages are shown first, of those below some length: the usual, or the middle one."""
    there = [one for one in found if one.token_budget in drawn]
    useful = [one for one in there if not all(row.trivial for row in one.rows)] or there
    budgets = [one.token_budget for one in useful]
    return USUAL_BUDGET if USUAL_BUDGET in budgets else budgets[(len(budgets) - 1) // 2]


def _verdicts(panels: Sequence[Panel]) -> tuple[Verdict, ...]:
    """Sentences by setting; panels that differ in how heads pick share theirs."""
    groups: dict[str, list[Series]] = {}
    for panel in panels:
        settings = {name: value for name, value in panel.settings.items() if name != "Heads of a group pick"}
        groups.setdefault(_title(settings), []).extend(panel.series)
    return tuple(Verdict(title, verdicts(found)) for title, found in groups.items())


def _not_ok(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Points that are not ok: one entry per cause, with the lengths at each setting."""
    found: dict[tuple[str, str, str], dict[str, dict[str, None]]] = {}
    for row in rows:
        where = f"{row.shape}, batch {row.batch_size}, page {row.page_size}"
        causes = [(f"{row.policy}, budget {row.token_budget}", row.status, row.reason)]
        causes += [(f"dense ({b.name})", b.status, b.reason) for b in row.baselines]
        for cause in causes:
            if cause[1] != "ok":
                found.setdefault(cause, {}).setdefault(where, {})[format_count(row.seq_len)] = None
    return [
        {
            "what": what,
            "status": status,
            "reason": reason,
            "points": [f"{', '.join(lengths)} ({where})" for where, lengths in points.items()],
        }
        for (what, status, reason), points in found.items()
    ]

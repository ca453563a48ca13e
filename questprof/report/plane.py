"""Page size against budget at one length: speed-up, bytes over dense, and attention mass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from questprof.bytecheck.judge import judge_profile
from questprof.crossover.tables import MEASURED, MODELLED
from questprof.model import Profile
from questprof.points import setting
from questprof.report.evidence import USUAL_LENGTH, Evidence, counts_for
from questprof.report.panels import Cell, Figure, Panel, block, number, table, template, times
from questprof.report.records import Lines
from questprof.report.scanned import rows_of
from questprof.report.section import Block, Context
from questprof.rows import Row
from questprof.scan import point_key
from questprof.units import format_count, format_ratio, format_us, six_digits

MOST_CELLS: Final = 400
Place = tuple[int, int]
"""(page_size, token_budget)."""
Counted = Mapping[tuple[str, int, int, int], tuple[float, str]]


class Quantity(NamedTuple):
    """One heat map: what it shows, its source, how a value is written, and its values."""

    name: str
    source: str
    text: Callable[[float], str]
    values: Mapping[Place, float]


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None where fewer than two page sizes or two budgets were timed at one length.

    Counted bytes and attention mass come from every profile that the page joins with this one.
    """
    groups: dict[tuple[bytes, int], list[Row]] = {}
    for row in rows_of(profile):
        if not row.point.seq_lens and not row.trivial:
            key = point_key(row.point, seq_len=0, page_size=1, token_budget=0), row.seq_len
            groups.setdefault(key, []).append(row)
    planes = {key: rows for key, rows in groups.items() if _is_plane(rows)}
    if not planes:
        return None
    joined = next((one for one in page.evidence if one.times is profile), None)
    layouts = {rows[0].point.summary_layout for rows in planes.values()}
    ratios = {place: ratio for place, ratio in _counted(joined).items() if place[0] in layouts}
    masses = _masses(joined)
    panels = [
        _panel(f"{prefix}-{i}", rows, ratios, masses, page.lines)
        for i, (_, rows) in enumerate(sorted(planes.items(), key=lambda one: one[0]), start=1)
    ]
    intro = (
        "What page size (S) and budget (B) trade: time against the fastest dense baseline, bytes read over "
        "those of dense, and the attention mass that the picked pages keep. Lengths at or below the budget "
        "are left out."
    )
    usual = next((p for p in panels if p.settings["Length"] == format_count(USUAL_LENGTH)), panels[-1])
    return block(intro, panels, notes=_absent(joined, ratios, masses), first=usual)


def _is_plane(rows: Sequence[Row]) -> bool:
    sizes, budgets = {row.page_size for row in rows}, {row.token_budget for row in rows}
    return len(sizes) > 1 and len(budgets) > 1 and len(sizes) * len(budgets) <= MOST_CELLS


def _counted(joined: Evidence | None) -> Counted:
    """Counted read ratio and its source by (layout of the summary, length, page size, budget), of batch 1."""
    found: dict[tuple[str, int, int, int], tuple[float, str]] = {}
    for profile in joined.bytes if joined else ():
        for judgement in judge_profile(profile):
            point = judgement.point
            ratio = next((f for f in judgement.findings if f.what == "read ratio" and f.counted), None)
            if ratio and ratio.counted and joined and counts_for(point.shape, joined.shape):
                source = "measured: hardware counters" if ratio.source == "ncu" else "counted: address trace"
                if point.batch_size == 1 and point.policy == "quest":
                    place = point.summary_layout, point.seq_len, point.page_size, point.token_budget
                    found[place] = (ratio.counted, source)
    return found


def _masses(joined: Evidence | None) -> dict[Place, float]:
    """Attention mass of policy quest, mean over layers and heads, of the first trace."""
    if joined is None or not joined.recall:
        return {}
    from questprof.recall.answers.evaluation import evaluations

    for evaluation in evaluations(joined.recall[0]):
        return {
            (size, budget): mass
            for size, budget, policy in evaluation.cases
            if policy == evaluation.policy and (mass := evaluation.mass(size, budget)) is not None
        }
    return {}


def _panel(
    uid: str,
    rows: Sequence[Row],
    ratios: Counted,
    masses: Mapping[Place, float],
    lines: Lines,
) -> Panel:
    by_place = {(row.page_size, row.token_budget): row for row in rows}
    length, batch = rows[0].seq_len, rows[0].batch_size
    key = rows[0].point.summary_layout, length
    counted = {p: ratios[*key, *p] for p in by_place if (*key, *p) in ratios} if batch == 1 else {}
    kept = {place: masses[place] for place in by_place if place in masses}
    source = next((source for _, source in counted.values()), "")
    quantities = [
        Quantity(
            "speed-up", MEASURED, times, _of(by_place, lambda row: row.speed_up if row.usable else None)
        ),
        Quantity(
            "bytes over dense, eq. (12)", MODELLED, format_ratio, _of(by_place, lambda row: row.bytes_ratio)
        ),
        Quantity(
            "bytes over dense", source, format_ratio, {place: ratio for place, (ratio, _) in counted.items()}
        ),
        Quantity("attention mass", "counted: real queries", format_ratio, kept),
    ]
    shown = [one for one in quantities if one.values]
    if len(shown) > 3:
        shown.pop(1)  # where bytes were counted, the figure shows those; the table has both
    told = setting(rows[0].point).replace(f", page {rows[0].page_size}", "")
    return Panel(
        uid,
        f"{told}, length {format_count(length)}",
        {"Setting": told, "Length": format_count(length)},
        [_figure(one, sorted(by_place)) for one in shown],
        _table(by_place, quantities),
        lines.of_rows([row.point for row in rows]),
    )


def _of(rows: Mapping[Place, Row], value: Callable[[Row], float | None]) -> dict[Place, float]:
    return {place: found for place, row in rows.items() if (found := value(row)) is not None}


def _figure(one: Quantity, places: Sequence[Place]) -> Figure:
    sizes, budgets = (sorted({place[i] for place in places}) for i in (0, 1))
    cells = [[one.values.get((size, budget)) for budget in budgets] for size in sizes]
    texts = [[None if value is None else one.text(value) for value in row] for row in cells]
    trace = {
        "type": "heatmap",
        "name": one.name,
        "x": [str(budget) for budget in budgets],
        "y": [str(size) for size in sizes],
        "z": [[None if value is None else six_digits(value) for value in row] for row in cells],
        "text": texts,
        "texttemplate": "%{text}",
        "hovertemplate": template(f"S = %{{y}}, B = %{{x}}: %{{text}}, {one.name}, {one.source}"),
        "meta": {"role": "quest"},
    }
    axes: dict[str, Any] = {
        "xaxis": {"type": "category", "title": {"text": "budget B, tokens"}},
        "yaxis": {"type": "category", "title": {"text": "page size S"}},
    }
    label = f"Heat map of {one.name} by page size and budget."
    return Figure(
        {"data": [trace], "layout": axes}, label, f"{one.name[0].upper()}{one.name[1:]}: {one.source}."
    )


def _table(rows: Mapping[Place, Row], quantities: Sequence[Quantity]) -> dict[str, Any]:
    shown = [one for one in quantities if one.values]
    heads = ["page size", "budget", f"quest, us\n{MEASURED}", f"dense, us\n{MEASURED}"]
    heads += [f"{one.name}\n{one.source}" for one in shown]
    return table(
        heads, [[*_place(rows[place]), *_values(place, rows[place], shown)] for place in sorted(rows)]
    )


def _place(row: Row) -> list[Cell]:
    return [
        Cell(str(row.page_size), row.page_size),
        Cell(str(row.token_budget), row.token_budget),
        number(row.quest_us, format_us, row.missing.get("quest_us", "")),
        number(row.dense_us, format_us, row.missing.get("dense_us", "")),
    ]


def _values(place: Place, row: Row, shown: Sequence[Quantity]) -> list[Cell]:
    why = {"speed-up": row.missing.get("speed_up", "not for a verdict"), "attention mass": "not evaluated"}
    return [number(one.values.get(place), one.text, why.get(one.name, "not counted")) for one in shown]


def _absent(joined: Evidence | None, ratios: Mapping[Any, Any], masses: Mapping[Any, Any]) -> tuple[str, ...]:
    """What the plane could show beside time, and what fills it."""
    counts = "No counted bytes of this setting: questprof bytes counts them, at the same pages and budgets."
    said = () if ratios else (counts,)
    if joined is None or not joined.recall:
        return (*said, "No attention mass: questprof recall tells it, of a model of this shape.")
    return said if masses else (*said, "No attention mass at these page sizes and budgets.")

"""Two profiles on one page, stage by stage: what became faster or slower, as `questprof compare` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from questprof.compare.outcome import Comparison, Outcome
from questprof.compare.pairs import across
from questprof.compare.spread import format_share, spread_of
from questprof.compare.text import ORDER, headline, statements
from questprof.compare.verdicts import compare
from questprof.crossover.tables import MEASURED
from questprof.errors import QuestprofError
from questprof.model import Profile
from questprof.points import labels
from questprof.report.curves import Curve, curves
from questprof.report.panels import Cell, Figure, Panel, block, number, table
from questprof.report.records import Lines
from questprof.report.section import Block, Verdict
from questprof.units import count, format_us

MOST_ROWS: Final = 500
"""Comparisons in the table, those that differ first."""
LEAST_SHARED: Final = 2
"""Points that two profiles must share to be two runs of one grid, and half of those of either."""


def build(profiles: Sequence[Profile], prefix: str, lines: Lines) -> tuple[Block | None, str]:
    """The section for the first two profiles that timed the same points, and why there is none in words.

    The one given first is the base. Without two such profiles the reason is ''.
    """
    pair = _overlapping(profiles)
    if pair is None:
        return None, ""
    base, new = pair
    try:
        outcome = compare(across(base, new), spread_of([base]))
    except QuestprofError as error:
        return None, f"No comparison of {base.name or 'base'} and {new.name or 'new'}: {error.why}."
    if not outcome.comparisons:
        return None, f"No comparison: {headline(outcome)}."
    panel = _panel(f"{prefix}-1", outcome, lines)
    intro = (
        f"Base: {outcome.names[0]}. New: {outcome.names[1]}. A ratio above 1 is slower. An interval that "
        "reaches both sides of the limit leaves a stage undecided."
    )
    verdict = Verdict("Two runs compared", (f"{headline(outcome)}.",))
    more = len(outcome.comparisons) - MOST_ROWS
    cut = (f"{count(more, 'more row')}: questprof compare --all.",) if more > 0 else ()
    return block(intro, [panel], notes=(*statements(outcome), *cut), verdicts=(verdict,)), ""


def _overlapping(profiles: Sequence[Profile]) -> tuple[Profile, Profile] | None:
    timed = [({r.point_id for r in profile.records if r.kind == "sweep"}, profile) for profile in profiles]
    for i, (ours, base) in enumerate(timed):
        for theirs, new in timed[i + 1 :]:
            if len(ours & theirs) >= max(LEAST_SHARED, len(ours) / 2, len(theirs) / 2):
                return base, new
    return None


def _panel(uid: str, outcome: Outcome, lines: Lines) -> Panel:
    names = dict(
        zip(map(id, outcome.comparisons), labels([c.point for c in outcome.comparisons]), strict=True)
    )
    spec = curves(_curves(outcome.comparisons, names), "base, us", "new / base", log_y=False)
    label = "New over base time of every stage of every point, against the base time, with intervals."
    figure = Figure(spec, label, f"Times: {MEASURED}, medians. Bars: the interval of the ratio.")
    title = f"{outcome.names[1]} against {outcome.names[0]}"
    points = [one.point for one in outcome.comparisons]
    return Panel(uid, title, {}, [figure], _table(outcome.comparisons, names), lines.of_points(points))


def _curves(found: Sequence[Comparison], names: dict[int, str]) -> list[Curve]:
    stages: dict[str, list[Comparison]] = {}
    for one in sorted(found, key=lambda one: one.base_us):
        stages.setdefault(one.stage, []).append(one)
    return [
        Curve(
            stage,
            [one.base_us for one in own],
            [one.ratio for one in own],
            [f"{names[id(one)]}, {stage}: {one.ratio:.3f}x, {one.verdict}, {MEASURED}" for one in own],
            [(one.low, one.high) for one in own],
            joined=False,
            role=stage if stage in ("dense", "quest", "score", "select", "attend", "append") else "ink",
        )
        for stage, own in stages.items()
    ]


def _table(found: Sequence[Comparison], names: dict[int, str]) -> dict[str, Any]:
    ordered = sorted(found, key=lambda one: ORDER.index(one.verdict))[:MOST_ROWS]
    heads = [
        "point",
        "stage",
        f"base, us\n{MEASURED}",
        f"new, us\n{MEASURED}",
        "new / base",
        "interval",
        "limit",
        "verdict",
    ]
    return table([*heads, "why"], [_row(one, names[id(one)]) for one in ordered])


def _row(one: Comparison, name: str) -> list[Cell]:
    return [
        Cell(name),
        Cell(one.stage),
        number(one.base_us, format_us),
        number(one.new_us, format_us),
        number(one.ratio, lambda value: f"{value:.3f}x"),
        Cell(f"{one.low:.3f} to {one.high:.3f}"),
        Cell(format_share(one.beyond)),
        Cell(one.verdict),
        Cell(one.why),
    ]

"""Energy: joules a token of attention, dense beside Quest, and the power drawn while each stage ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from questprof.model import Point, Profile, Record
from questprof.points import kernels, setting
from questprof.report.curves import DASHES, Curve, curves
from questprof.report.panels import Cell, Figure, Panel, block, number, table
from questprof.report.records import Lines
from questprof.report.section import Block, Context
from questprof.scan import TIMED, point_key, verdict
from questprof.timing.energy import SOURCE, StageEnergy, stage_energies
from questprof.units import format_count

MEASURED: Final = "measured: NVML"
TOTALS: Final = ("dense", "quest")
"""Stages whose energy is that of a whole pass of attention."""
Pair = tuple[Point, StageEnergy]


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None for a profile without valid energy counts."""
    groups: dict[bytes, list[Pair]] = {}
    for record in profile.records:
        if record.energy and verdict(record)[0] in TIMED:
            groups.setdefault(_key(record.point), []).extend((record.point, one) for one in _valid(record))
    found = [pairs for pairs in groups.values() if pairs]
    if not found:
        return None
    panels = [_panel(f"{prefix}-{i}", pairs, page.lines) for i, pairs in enumerate(found, start=1)]
    return block(f"{SOURCE} A stage's energy holds what the board takes when idle.", panels)


def _key(point: Point) -> bytes:
    """What the records of one panel share: the cache, but for its length; not how it is read."""
    neutral = {"seq_len": 0, "token_budget": 0, "policy": "quest", "backend": "", "variant": ""}
    return point_key(point, **neutral, summary_layout="paired", data="independent", policy_params={})


def _valid(record: Record) -> list[StageEnergy]:
    """Counts that a clock and a meter can give: positive energy over positive time."""
    known = {stage for stage, one in record.energy.items() if min(one.joules, one.seconds, one.launches) > 0}
    return (
        [one for one in stage_energies([record]) if one.stage in known] if known == set(record.energy) else []
    )


def _panel(uid: str, pairs: Sequence[Pair], lines: Lines) -> Panel:
    cache = replace(pairs[0][0], policy="quest", backend="questprof", summary_layout="paired")
    told = setting(cache, queries=False)
    drawn = _curves(pairs)
    figures = []
    if drawn:
        spec = curves(drawn, "context length, tokens", "joules a token, attention of all layers")
        label = "Energy of attention a token against context length, dense beside Quest, both logarithmic."
        figures = [Figure(spec, label, f"Energy: {MEASURED}, the whole board.")]
    ordered = sorted(
        pairs, key=lambda pair: (pair[0].seq_len, pair[0].policy != "dense", pair[0].token_budget)
    )
    points = [point for point, _ in pairs]
    return Panel(uid, told, {"Setting": told}, figures, _table(ordered), lines.of_points(points))


def name_of(point: Point) -> str:
    """`dense, sdpa`, or `Quest, budget 2048`."""
    layout = f", {point.summary_layout}" if point.summary_layout != "paired" else ""
    if point.policy == "dense":
        return f"dense, {kernels(point)}{layout}"
    return f"Quest, budget {point.token_budget}{layout}"


def _curves(pairs: Sequence[Pair]) -> list[Curve]:
    groups: dict[str, dict[int, StageEnergy]] = {}
    for point, one in pairs:
        if one.stage in TOTALS:
            groups.setdefault(name_of(point), {})[point.seq_len] = one
    return [
        Curve(
            name,
            sorted(found),
            [found[length].joules_per_token for length in sorted(found)],
            [_hover(name, length, found[length]) for length in sorted(found)],
            role="dense" if name.startswith("dense") else "quest",
            dash=DASHES[number % len(DASHES)] if name.startswith("dense") else "",
        )
        for number, (name, found) in enumerate(groups.items())
    ]


def _hover(name: str, length: int, one: StageEnergy) -> str:
    said = f"{name}, {format_count(length)}: {one.joules_per_token:.4g} J a token"
    return f"{said}, {one.watts:.0f} W, {MEASURED}"


def _table(pairs: Sequence[Pair]) -> dict[str, Any]:
    heads = ["length", "what", "stage", f"J a launch\n{MEASURED}", f"J a token\n{MEASURED}", f"W\n{MEASURED}"]
    return table(heads, [_row(point, one) for point, one in pairs])


def _row(point: Point, one: StageEnergy) -> list[Cell]:
    return [
        Cell(format_count(point.seq_len), point.seq_len),
        Cell(name_of(point)),
        Cell(one.stage),
        number(one.joules_per_launch, lambda value: f"{value:.3g}"),
        number(one.joules_per_token, lambda value: f"{value:.3g}"),
        number(one.watts, lambda value: f"{value:.0f}"),
    ]

"""The whole decode step: stacked pictures, Amdahl's law beside the measurement, what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from questprof.amdahl.breakdown import Breakdown
from questprof.amdahl.check import CAUSES
from questprof.amdahl.finding import SOURCES, amdahl
from questprof.amdahl.pairs import title
from questprof.amdahl.sentences import check_sentence, is_told
from questprof.amdahl.tables import MAKERS, Table, breakdowns
from questprof.model import Point, Profile
from questprof.report.amdahl_figure import step_figure
from questprof.report.section import Block, Verdict, selectors

TITLE: Final = "The whole decode step"
MOST_ROWS: Final = 24
"""Of a table below the pictures that is shown at once; a longer one opens on a click."""


def build(profile: Profile, prefix: str) -> Block | None:
    """The section, or None for a profile without records of kind `amdahl` that can be shown."""
    found = amdahl(profile)
    if found is None or not found.all_steps:
        return None
    groups: dict[tuple[tuple[str, str], ...], list[Breakdown]] = {}
    for step in found.all_steps:
        groups.setdefault(tuple(_settings(step.point).items()), []).append(step)
    panels = [
        _panel(f"{prefix}-{number}", dict(settings), _ordered(steps))
        for number, (settings, steps) in enumerate(groups.items(), start=1)
    ]
    context = {
        "panels": panels,
        "selectors": selectors([panel["settings"] for panel in panels]),
        "tables": [_titled(table) for make in MAKERS if (table := make(found)).rows],
        "checks": [(title(p.point), check_sentence(p.check)) for p in found.pairs if p.check and is_told(p)],
        "causes": list(CAUSES.items()),
        "alarms": found.alarms,
        "notes": found.notes,
        "sources": SOURCES,
        "most_rows": MOST_ROWS,
    }
    verdicts = tuple(Verdict(f"{TITLE}: {name}", sentences) for name, sentences in found.headlines)
    figures = sum(bool(panel["figure"]) for panel in panels)
    return Block("amdahl.html", context, verdicts, num_figures=figures)


def _titled(table: Table) -> dict[str, Any]:
    """For the template, its title as a heading."""
    return table._asdict() | {"title": f"{table.title[:1].upper()}{table.title[1:]}"}


def _ordered(steps: Sequence[Breakdown]) -> list[Breakdown]:
    """By length, the dense steps of a length before its Quest steps by budget."""
    return sorted(steps, key=lambda s: (s.point.seq_len, s.point.policy != "dense", s.point.token_budget))


def _settings(point: Point) -> dict[str, str]:
    """What sets one panel apart from another, in the words of the selectors."""
    setup = point.decode
    shortest, longest = min(point.lengths), max(point.lengths)
    return {
        "Model": setup.model if setup else point.shape.name,
        "Weights": setup.weight_format if setup else "-",
        "Batch": str(point.batch_size),
        "Requests": "of one length" if shortest == longest else "ragged",
        "Page size": str(point.page_size),
    }


def _panel(uid: str, settings: dict[str, str], steps: Sequence[Breakdown]) -> dict[str, Any]:
    usual = {"Requests": "of one length", "Page size": "16"}
    bare = ("Model",)
    words = [
        value if name in bare else f"{name.lower()} {value}"
        for name, value in settings.items()
        if usual.get(name) != value
    ]
    return {
        "id": uid,
        "title": ", ".join(words),
        "settings": settings,
        "figure": step_figure(steps),
        "table": _titled(breakdowns(steps)),
    }

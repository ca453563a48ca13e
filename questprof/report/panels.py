"""Panels: one setting each, with its figures, its table and the records behind them, for panels.html."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from questprof.report.section import Block, Verdict, selectors
from questprof.units import six_digits

DASH: Final = "–"


class Cell(NamedTuple):
    """One cell: what is written, the raw number where it is one, and why it is a dash."""

    text: str
    value: float | None = None
    reason: str = ""


class Figure(NamedTuple):
    """`spec` for page.js; `label` says what it shows to those who do not see it; `caption` its sources."""

    spec: dict[str, Any]
    label: str
    caption: str


class Panel(NamedTuple):
    """One setting: `settings` are the words of the selectors."""

    id: str
    title: str
    settings: Mapping[str, str]
    figures: Sequence[Figure]
    table: Mapping[str, Any]
    records: str = ""


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell | str]], note: str = "") -> dict[str, Any]:
    """A table of cells; a bare string is a cell of words."""
    return {
        "heads": list(heads),
        "rows": [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows],
        "note": note,
    }


def template(text: str) -> str:
    """Hover text of all points of a trace, with plotly's `%{x}`, `%{y}` and `%{z}` for what differs.

    `text` holds no words of a profile, which could name a variable of plotly's.
    """
    return f"{text}<extra></extra>"


def number(value: float | None, text: Callable[[float], str], reason: str = "") -> Cell:
    """A cell of a number, or a dash with the reason."""
    return Cell(DASH, None, reason) if value is None else Cell(text(value), six_digits(value))


def block(
    intro: str,
    panels: Sequence[Panel],
    *,
    facts: Sequence[str] = (),
    notes: Sequence[str] = (),
    verdicts: tuple[Verdict, ...] = (),
    first: Panel | None = None,
) -> Block:
    """The panels as a section, with a selector for each setting they differ in; `first` is shown first."""
    context = {
        "intro": intro,
        "facts": facts,
        "panels": panels,
        "notes": notes,
        "chosen": first.settings if first else {},
        "selectors": selectors([panel.settings for panel in panels]),
    }
    num_figures = sum(len(panel.figures) for panel in panels)
    return Block("panels.html", context, verdicts, num_figures=num_figures)


def times(value: float) -> str:
    """`0.95x`, `6.2x`, `14x`."""
    return f"{value:.2f}x" if value < 2 else f"{value:.1f}x" if value < 9.95 else f"{value:.0f}x"

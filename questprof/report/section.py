"""What a section of the page is: a builder that returns a Block, or None where its data do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from questprof.model import Kind, Profile
from questprof.report.evidence import Evidence
from questprof.report.records import Lines


class Verdict(NamedTuple):
    """Sentences that answer the profile's question for one setting; they open the page."""

    setting: str
    sentences: tuple[str, ...]


class Block(NamedTuple):
    """One section ready for its template; everything in `context` is plain text, the template escapes it."""

    template: str
    context: dict[str, Any]
    verdicts: tuple[Verdict, ...] = ()
    num_figures: int = 0


def selectors(panels: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """One selector per setting that takes several values: numbers ascending, words in the panels' order.

    `panels` are the settings of each; one that a panel lacks is `-`.
    """
    names = dict.fromkeys(name for settings in panels for name in settings)
    values = {name: dict.fromkeys(settings.get(name, "-") for settings in panels) for name in names}
    return [{"name": name, "values": _in_order(found)} for name, found in values.items() if len(found) > 1]


def _in_order(values: Iterable[str]) -> list[str]:
    return sorted(values, key=lambda value: (0, int(value)) if value.isdecimal() else (1, 0))


class Section(NamedTuple):
    """A kind of section; `builder` takes the profile and a prefix for the ids of its elements.

    With `asks` it takes a Context too: what the other profiles of the page say, and where records stand.
    `kinds` are the kinds of record it shows, where its panels do not name their own.
    """

    id: str
    title: str
    builder: Callable[..., Block | None]
    asks: bool = False
    kinds: tuple[Kind, ...] = ()


class Context(NamedTuple):
    """What a section may know beyond its own profile."""

    evidence: Sequence[Evidence]
    lines: Lines
    members: Sequence[Profile]
    """The profiles that were joined to the section's own, as they were read."""

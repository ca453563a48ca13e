"""What a section of the page is: a builder that returns a Block, or None where its data do not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from questprof.model import Profile


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


class Section(NamedTuple):
    """A kind of section; `builder` takes the profile and a prefix for the ids of its elements."""

    id: str
    title: str
    builder: Callable[[Profile, str], Block | None]

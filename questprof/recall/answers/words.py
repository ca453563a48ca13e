"""Words that the sentences share: shares, counts, lists of names cut where they are long. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from questprof.printable import printable

NAMED = 8
"""Names that a sentence lists one by one."""


def one_line(name: str) -> str:
    """A name that others gave, as of a model or a text, on one line and without what steers a terminal."""
    return " ".join(printable(name).split())


def points(share: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * share:.1f} points"


def fold(ratio: float) -> str:
    """How many times less: `2.9-fold`."""
    return "to nothing" if ratio == float("inf") else f"{ratio:.1f}-fold"


def share_text(share: float) -> str:
    """A share in words: none, or percent."""
    return "none" if share == 0 else f"{share:.0%}" if share >= 0.005 else f"{share:.1%}"


def named(names: Sequence[str]) -> str:
    """The first NAMED names and how many more there are."""
    more = len(names) - NAMED
    return listed(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def listed(names: Iterable[str]) -> str:
    """Names with commas."""
    return ", ".join(names)

"""The one exception users see, and the exit statuses."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

UPDATE: Final = "Update the checkout of questprof and install it again: git pull && pip install -e ."
"""What brings a newer questprof: it is on no package index."""
IN_CHECKOUT: Final = "in the checkout of questprof"


def install(extra: str) -> str:
    """The command that brings `extra` of pyproject.toml, to be typed IN_CHECKOUT."""
    return f"pip install -e '.[{extra}]'"


class Exit(IntEnum):
    """Exit statuses of every command; 130 and 141 as a shell tells of SIGINT and SIGPIPE."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    MACHINE = 3
    INCONCLUSIVE = 4
    INTERRUPTED = 130
    READER_GONE = 141


class QuestprofError(Exception):
    """An error that says what happened, why, and how to fix it; caught once, in `cli.main`."""

    def __init__(self, what: str, why: str, fix: str, status: Exit = Exit.USAGE) -> None:
        super().__init__(f"{what}: {why}. {fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.status = status

"""How a command that measured ends: one exit status from the statuses of its points."""

from __future__ import annotations

from collections.abc import Collection

from questprof.errors import Exit


def exit_status(statuses: Collection[str], inconclusive: bool = False) -> Exit:
    """1 a point is wrong, 3 none could run, 4 one is unstable or the whole is `inconclusive`, else 0."""
    if "wrong" in statuses:
        return Exit.CHECK_FAILED
    if statuses and set(statuses) <= {"oom", "unavailable"}:
        return Exit.MACHINE
    return Exit.INCONCLUSIVE if inconclusive or "unstable" in statuses else Exit.OK

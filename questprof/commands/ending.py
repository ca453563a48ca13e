"""How a command that measured ends: an exit status from its points' statuses, or what an interrupt says."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from questprof.errors import Exit


def exit_status(statuses: Collection[str], inconclusive: bool = False) -> Exit:
    """1 a point is wrong, 3 none could run, 4 one is unstable or the whole is `inconclusive`, else 0."""
    if "wrong" in statuses:
        return Exit.CHECK_FAILED
    if statuses and set(statuses) <= {"oom", "unavailable"}:
        return Exit.MACHINE
    return Exit.INCONCLUSIVE if inconclusive or "unstable" in statuses else Exit.OK


def interrupted(output: Path, *, begun: bool, where: str = "is in") -> str:
    """What an interrupted command says of what `-o output` names; `begun`: something was measured."""
    if not begun:
        return "interrupted before anything was measured"
    return f"interrupted; what was measured {where} {output}: repeat the command with -o {output} --resume"

"""The doctor on a terminal and as one JSON document."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from questprof.doctor.findings import Diagnosis, Finding
from questprof.terminal import print_prose
from questprof.units import count

STYLES = {"ok": "green", "warning": "yellow", "fix": "red"}
BREAK = " \\"
"""At the end of a line of a command that goes on."""


def show(found: Diagnosis, console: Console) -> None:
    """A line a finding, what to do below it, whether the main job can run, and the next command."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found.findings:
        table.add_row(
            Text(finding.level, style=STYLES[finding.level]), Text(finding.name), Text(_said(finding))
        )
    console.print(table)
    console.print()
    print_prose(console, summary(found))
    width = console.width if console.is_terminal else None
    for line in (*_command("Next: ", found.next_command, width), *_reason(found.next_reason, width)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _command(lead: str, command: str, width: int | None) -> list[str]:
    """`command` behind `lead`, in lines that a shell takes as one where it is wider than the terminal."""
    lines, indent = [lead], len(lead)
    try:
        words = shlex.split(command, posix=False)
    except ValueError:  # a quote of its own, within a word: no place to break it is safe
        words = [command]
    for word in words:
        if width and len(lines[-1]) > indent and len(lines[-1]) + len(word) + len(BREAK) > width:
            lines[-1] = lines[-1].rstrip() + BREAK
            lines.append(" " * indent)
        lines[-1] += word + " "
    return [line.rstrip() for line in lines]


def _reason(text: str, width: int | None) -> list[str]:
    """`text` in brackets below the command, later lines below the first word."""
    if width is None:
        return [f"      ({text})"]
    return textwrap.wrap(
        f"({text})", max(width, 20), initial_indent=" " * 6, subsequent_indent=" " * 7, break_on_hyphens=False
    )


def _said(finding: Finding) -> str:
    todo = " ".join(filter(None, (finding.fix, finding.command and f"`{finding.command}`")))
    return finding.detail + (f"\n-> {todo}" if todo else "")


def summary(found: Diagnosis) -> str:
    """Whether the main job can run here, in one sentence."""
    if not found.ready:
        names = ", ".join(finding.name for finding in found.findings if finding.blocks)
        return f"Nothing can be measured here yet: {names}."
    where = "this GPU" if found.device == "cuda" else "this CPU (CPU figures: a GPU has others)"
    open_points = [f"{found.count('fix')} to fix"] if found.count("fix") else []
    warnings = found.count("warning")
    open_points += [count(warnings, "warning")] if warnings else []
    return f"Ready to measure on {where}" + (f"; {', '.join(open_points)} above." if open_points else ".")


def document(found: Diagnosis) -> dict[str, Any]:
    """For JSON."""
    return {
        "ready": found.ready,
        "device": found.device,
        "summary": summary(found),
        "next": found.next_command,
        "next_reason": found.next_reason,
        "findings": [dataclasses.asdict(finding) for finding in found.findings],
    }

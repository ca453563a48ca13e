"""The doctor on a terminal and as one JSON document."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from questprof.doctor.findings import Diagnosis, Finding

STYLES = {"ok": "green", "warning": "yellow", "fix": "red"}


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
    console.print(summary(found), highlight=False, markup=False, soft_wrap=True)
    console.print(f"Next: {found.next_command}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"      ({found.next_reason})", highlight=False, markup=False, soft_wrap=True)


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
    open_points += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
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

"""One line of the doctor, and all of them together. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "fix"]
"""ok: nothing to do. warning: figures are poorer or some are missing. fix: something is broken; do this."""


@dataclass(frozen=True)
class Finding:
    """What was looked for, how it stands, what was seen, and what to do about it."""

    name: str
    level: Level
    detail: str
    fix: str = ""
    command: str = ""
    """What to type for it, where one line does it."""
    blocks: bool = False
    """Whether nothing can be measured before it is done."""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, whether the main job can run, where, and what to type next."""

    findings: tuple[Finding, ...]
    device: Literal["cpu", "cuda"]
    next_command: str
    next_reason: str

    @property
    def ready(self) -> bool:
        """Whether something can be measured here."""
        return not any(finding.blocks for finding in self.findings)

    def count(self, level: Level) -> int:
        """How many findings have this level."""
        return sum(finding.level == level for finding in self.findings)

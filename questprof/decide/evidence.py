"""What the parts of a decision gave: profiles, and why a part gave none. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from questprof.decide.request import Question
from questprof.model import Environment, Profile

PartName = Literal["sweep", "bytes", "steps"]


@dataclass(frozen=True)
class Findings:
    """The profiles of one decision."""

    asked: Question
    environment: Environment
    sweep: Profile | None = None
    bytes: Profile | None = None
    steps: Profile | None = None
    missing: dict[PartName, str] = field(default_factory=dict)
    """Why a part gave nothing, or less than was wanted, in words."""
    dropped: tuple[str, ...] = ()
    """What time did not allow."""
    warnings: tuple[str, ...] = ()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those that hold a record, for the page."""
        return tuple(one for one in (self.sweep, self.bytes, self.steps) if one and one.records)

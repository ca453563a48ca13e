"""What a record of counted bytes proves: amounts beside their predictions, verdicts, probable causes.

Pure data, made by `bytecheck.judge`; the table, the report and `--json` are built from it alone.
"""

from __future__ import annotations

from typing import Literal

from questprof.counts import Source, UnmappedProof
from questprof.model import Point, Status
from questprof.structs import Struct

Cause = Literal[
    "",
    "summary not read",
    "half of the summary read",
    "K without V",
    "V without K",
    "gather through a temporary",
    "whole cache read",
    "unselected page touched",
    "tile larger than page",
    "read twice",
    "cache hits",
    "duplicate ids",
    "unnamed",
]
"""Why counted bytes are not those predicted; empty where they are."""
Mode = Literal["isolated", "pipelined"]
FindingSource = Literal["ncu", "trace", "formula", "proof"]
"""Where a finding comes from: a Source of counts, or the proof by unmapped pages, which counts nothing."""


class Amount(Struct, frozen=True):
    """Bytes of one launch: predicted, counted, and how far below and above the prediction they may lie."""

    predicted_bytes: int
    counted_bytes: int
    residual_bytes: int
    residual_share: float | None
    """Residual over the prediction; None where nothing was predicted."""
    below_bytes: int
    above_bytes: int

    @property
    def holds(self) -> bool:
        """Whether the count is within its tolerance."""
        return -self.below_bytes <= self.residual_bytes <= self.above_bytes


def amount(predicted: int, counted: int, below: int = 0, above: int = 0) -> Amount:
    """An Amount with its residual worked out; all in bytes."""
    share = (counted - predicted) / predicted if predicted else None
    return Amount(predicted, counted, counted - predicted, share, below, above)


def percent(share: float) -> str:
    """A share with its sign: 0.0005 -> `+0.05 %`; what rounds to nothing has neither."""
    text = f"{100 * share:+.2f} %"
    return "0.00 %" if text[1:] == "0.00 %" else text


class Term(Struct, frozen=True):
    """One tensor of a stage: its line of the ledger, and what an address trace counted of it."""

    tensor: str
    in_eq12: bool
    predicted_read_bytes: int
    predicted_write_bytes: int
    read: Amount | None = None
    write: Amount | None = None
    repeat_read_bytes: int | None = None


class StageFinding(Struct, frozen=True):
    """One stage as one source counted it. `holds` None: inconclusive, or nothing to compare with."""

    stage: str
    source: Source
    mode: Mode
    variant: str
    read: Amount
    write: Amount
    holds: bool | None
    cause: Cause
    tolerance: str
    sentence: str
    terms: tuple[Term, ...] = ()
    repeat_share: float | None = None
    """Reads of sectors already read, over the distinct ones of K, V and summary; from a trace."""
    x_l2: float | None = None
    """Bytes read from the L2 cache over those read from memory; from hardware, where the chip tells."""


class Finding(Struct, frozen=True):
    """One check that is not a stage's: the read ratio, unselected pages, page ids, stages not counted."""

    what: Literal["read ratio", "unselected pages", "unmapped pages", "page ids", "record", "stages"]
    source: FindingSource
    holds: bool | None
    cause: Cause
    sentence: str
    predicted: float | None = None
    counted: float | None = None
    tolerance: float | None = None


class CounterError(Struct, frozen=True):
    """A streaming read of known size inside the counting run: counted over known, less 1."""

    source: Source
    known_bytes: int
    counted_bytes: int
    error: float | None
    """None where nothing of known size was read."""
    holds: bool


class Reuse(Struct, frozen=True):
    """Reads that the stages of `quest` save by following each other; negative when they cost more."""

    source: Source
    isolated_bytes: int
    pipelined_bytes: int
    saved_bytes: int
    saved_share: float


class GatherCost(Struct, frozen=True):
    """Attention over a gathered copy, beside attention in place: read + write of a launch, and its time."""

    source: Source
    attend_bytes: int
    gather_bytes: int
    x_attend: float | None
    attend_us: float | None = None
    gather_us: float | None = None


class Judgement(Struct, frozen=True):
    """Everything one record of kind `bytes` says. `holds` None: inconclusive, or nothing was counted."""

    point: Point
    point_id: str
    env_id: str
    variant: str
    status: Status
    reason: str
    sources: tuple[Source, ...]
    """What counted; empty: nothing did."""
    holds: bool | None
    stages: tuple[StageFinding, ...]
    findings: tuple[Finding, ...]
    calibration: tuple[CounterError, ...]
    alarms: tuple[str, ...]
    """Values that cannot be; the figures they touch are refused."""
    refused: tuple[str, ...]
    """Stages whose figures are not shown because of an alarm."""
    sentences: tuple[str, ...]
    """The verdict: what failed and why, or one sentence that all holds."""
    reuse: tuple[Reuse, ...] = ()
    gather: tuple[GatherCost, ...] = ()
    proof: UnmappedProof | None = None

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes, each once; `unnamed` comes last."""
        found = (*(stage.cause for stage in self.stages), *(finding.cause for finding in self.findings))
        return tuple(sorted(dict.fromkeys(filter(None, found)), key=lambda cause: cause == "unnamed"))

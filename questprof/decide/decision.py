"""The answer over all batch sizes, with its status. Pure: findings in, a Decision out; nothing is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from questprof.decide.case import Case
from questprof.decide.cases import cases
from questprof.decide.checked import BytesFact, bytes_fact, has_points, unstable_points, wrong_points
from questprof.decide.evidence import Findings, PartName
from questprof.errors import Exit

Answer = Literal["yes", "no", "only above", "only between", "partly", "not proven", "undecided"]
GAINING = ("yes", "only above", "only between", "partly")


@dataclass(frozen=True)
class Decision:
    """Everything that a page, a summary and a document say."""

    answer: Answer
    """partly: batches differ. not proven: it would be a yes, but a check failed."""
    seq_len: float | None
    """only above: the length from which Quest is faster at every batch."""
    cases: tuple[Case, ...]
    bytes: BytesFact
    wrong: tuple[str, ...]
    unstable: tuple[str, ...]
    missing: dict[PartName, str]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    status: Exit
    found: Findings
    """What it rests on."""


def decide(found: Findings) -> Decision:
    """The decision that the findings allow."""
    made = cases(found)
    checked, wrong, unstable = bytes_fact(found), wrong_points(found), unstable_points(found)
    answer = together([case.answer for case in made])
    if answer in GAINING and (checked.verdict == "failed" or wrong):
        answer = "not proven"
    lengths = [case.seq_len for case in made if case.seq_len]
    missing = dict(found.missing)
    if checked.verdict == "not run":
        missing["bytes"] = checked.why
    return Decision(
        answer=answer,
        seq_len=max(lengths) if answer == "only above" else None,
        cases=made,
        bytes=checked,
        wrong=wrong,
        unstable=unstable,
        missing=missing,
        dropped=found.dropped,
        warnings=found.warnings,
        status=_status(found, answer, checked, bool(wrong), bool(unstable)),
        found=found,
    )


def together(answers: Sequence[str]) -> Answer:
    """One answer for several batches."""
    kinds = set(answers)
    if not kinds:
        return "undecided"
    if len(kinds) == 1:
        only: Answer = answers[0]  # type: ignore[assignment]
        return only
    if kinds <= {"yes", "only above"}:
        return "only above"
    return "undecided" if kinds <= {"no", "undecided"} else "partly"


def _status(found: Findings, answer: Answer, checked: BytesFact, wrong: bool, unstable: bool) -> Exit:
    """1 a check failed, 3 nothing could be measured, 4 inconclusive or unstable, else 0, a no included."""
    if wrong or checked.verdict == "failed":
        return Exit.CHECK_FAILED
    if not has_points(found.sweep):
        timed = found.sweep is not None and not found.sweep.records
        return Exit.INCONCLUSIVE if timed else Exit.MACHINE
    if unstable or checked.verdict == "inconclusive" or answer == "undecided":
        return Exit.INCONCLUSIVE
    return Exit.INCONCLUSIVE if any(case.answer == "undecided" for case in _tried(found)) else Exit.OK


def _tried(found: Findings) -> Sequence[Case]:
    """Cases of which a point could run: one that memory refused is told and no doubt about the others."""
    sweep = found.sweep
    ran = {
        record.point.batch_size
        for record in (sweep.records if sweep else ())
        if record.status in ("ok", "unstable")
    }
    return [case for case in cases(found) if case.batch_size in ran]

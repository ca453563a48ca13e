"""The verdict over one record in sentences: every failure with its cause, and what is inconclusive. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from questprof.bytecheck.judgement import CounterError, Finding, StageFinding, percent
from questprof.bytecheck.tolerance import ABSOLUTE_STAGES
from questprof.model import Record

COUNTER_SHARE: Final = 0.01
"""Error of the counter itself beyond which its figures prove nothing."""


def sentences(
    record: Record,
    stages: Sequence[StageFinding],
    findings: Sequence[Finding],
    calibration: Sequence[CounterError],
    alarms: Sequence[str],
) -> tuple[str, ...]:
    """Failures first, then what was refused or is inconclusive; one sentence alone where all holds."""
    checks: tuple[StageFinding | Finding, ...] = (*stages, *findings)
    said = [f"Fails: {one.sentence}." for one in checks if one.holds is False]
    said += [f"Refused: {alarm}" for alarm in alarms]
    said += [_off(error) for error in calibration if not error.holds]
    broken = {error.source for error in calibration if not error.holds}
    unsure = [one for one in checks if one.holds is None and one.source not in broken]
    said += [f"Inconclusive: {one.sentence}." for one in unsure]
    if said:
        return tuple(said)
    if not stages:
        reason = ": ".join(filter(None, (record.status, record.reason)))
        return (f"Nothing was counted ({reason}).",)
    return (_all_holds(stages, findings),)


def _off(error: CounterError) -> str:
    off = "read nothing of known size" if error.error is None else f"is off by {percent(error.error)}"
    return f"Inconclusive: the {error.source} counter {off}, more than {100 * COUNTER_SHARE:g} %."


def _all_holds(stages: Sequence[StageFinding], findings: Sequence[Finding]) -> str:
    """`Holds: score, attend, dense; the worst read is score's, +0.05 %; read ratio; unselected pages.`"""
    names = ", ".join(dict.fromkeys(stage.stage for stage in stages))
    vectors = [term.read for stage in stages for term in stage.terms if term.in_eq12 and term.read]
    if vectors and all(stage.source == "trace" for stage in stages):
        off = max(vectors, key=lambda read: abs(read.residual_bytes)).residual_bytes
        text = f"K, V and summary {'to the byte' if not off else f'within {abs(off)} B'}"
    else:
        alone = [stage for stage in stages if stage.mode == "isolated"] or list(stages)
        large = [stage for stage in alone if stage.stage not in ABSOLUTE_STAGES] or alone
        worst = max(large, key=lambda stage: abs(stage.read.residual_share or 0))
        text = f"the worst read is {worst.stage}'s, {percent(worst.read.residual_share or 0)}"
    return "; ".join((f"Holds: {names}", text, *(finding.what for finding in findings))) + "."

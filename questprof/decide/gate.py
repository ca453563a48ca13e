"""The gate of a CI job on a decision: against a stored baseline (a trend), or inside one run. Pure.

Inside one run both sides are timed in one loop, and small differences count. Between two runs lies a spread
that the samples of one do not show: less than it never fails. What cannot be compared is inconclusive.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from questprof.compare.outcome import Outcome
from questprof.compare.pairs import Pairs, across, within
from questprof.compare.spread import spread_of
from questprof.compare.text import document as outcome_document
from questprof.compare.text import headline, markdown
from questprof.compare.verdicts import compare
from questprof.decide.decision import Decision
from questprof.decide.sentences import sentence
from questprof.errors import Exit, QuestprofError
from questprof.model import Profile, Record

Verdict = Literal["pass", "fail", "cannot run", "inconclusive"]
VERDICTS: dict[Exit, Verdict] = {
    Exit.OK: "pass",
    Exit.CHECK_FAILED: "fail",
    Exit.MACHINE: "cannot run",
    Exit.INCONCLUSIVE: "inconclusive",
}
NO_COMPARISON = "Nothing was compared: the checks of the run itself are the gate."


@dataclass(frozen=True)
class Gate:
    """One comparison; `outcome` is None for the reason `why`."""

    name: str
    outcome: Outcome | None
    why: str = ""

    @property
    def status(self) -> Exit:
        """0 the same or faster, 1 slower or newly wrong, 4 undecided or not comparable."""
        return Exit(self.outcome.exit_status()) if self.outcome else Exit.INCONCLUSIVE

    @property
    def text(self) -> str:
        """What it found, in a sentence."""
        return headline(self.outcome) if self.outcome else f"not comparable: {self.why}"


def against_baseline(
    baselines: Sequence[Profile], new: Profile, asked_for: Collection[str], threshold: float
) -> Gate:
    """The run against the first of `baselines`; from three on their own spread is the bound.

    Of a baseline only the points in `asked_for` (ids) count: what this run did not plan is no loss of it.
    """
    name = f"against {baselines[0].name or 'the baseline'}"
    wanted = [replace(one, records=_wanted(one, asked_for)) for one in baselines]
    try:
        return _compared(name, across(wanted[0], new), baselines, threshold)
    except QuestprofError as error:
        return Gate(name, None, f"{error.what}: {error.why}")


def _wanted(one: Profile, asked_for: Collection[str]) -> tuple[Record, ...]:
    return tuple(r for r in one.records if r.kind == "sweep" and r.point_id in asked_for)


def inside_run(new: Profile, base: str, name: str, threshold: float) -> Gate:
    """Backend `name` against backend `base` of one run, round by round."""
    title = f"{name} against {base}, in one run"
    try:
        return _compared(title, within(new, base, name), [new], threshold)
    except QuestprofError as error:
        return Gate(title, None, f"{error.what}: {error.why}")


def _compared(name: str, pairs: Pairs, baselines: Sequence[Profile], threshold: float) -> Gate:
    return Gate(name, compare(pairs, spread_of(baselines), threshold))


def status(made: Decision, gates: Sequence[Gate]) -> Exit:
    """1 where a check or a gate fails, then 3, then 4, else 0; an answer of no fails nothing."""
    found = {made.status, *(gate.status for gate in gates)}
    return next(
        (one for one in (Exit.CHECK_FAILED, Exit.MACHINE, Exit.INCONCLUSIVE) if one in found), Exit.OK
    )


def next_baseline(made: Decision, gates: Sequence[Gate]) -> bool:
    """Whether the run may be the next stored baseline: its checks hold, and what could be compared passes.

    A baseline that cannot be compared with, after a new driver, is no reason to keep that one for ever.
    """
    return status(made, [gate for gate in gates if gate.outcome]) == Exit.OK


def gate_sentence(made: Decision, gates: Sequence[Gate]) -> str:
    """The one sentence of the decision, after why the gate fails or does not conclude, where that is so."""
    why, own = reason(made, gates), sentence(made.found, made)
    return f"{why} {own}" if why else own


def reason(made: Decision, gates: Sequence[Gate]) -> str:
    """`Fail: new against base: slower; of 9 comparisons 1 slower, 8 same.`; '' where a run passes.

    Comparisons come first, then the checks of the run itself.
    """
    found = status(made, gates)
    if found not in (Exit.CHECK_FAILED, Exit.INCONCLUSIVE):
        return ""
    said = [
        gate.text if gate.outcome else f"{gate.name} {gate.text}" for gate in gates if gate.status == found
    ]
    said += _own_reasons(made) if made.status == found else []
    verdict = VERDICTS[found]
    return f"{verdict.capitalize()}: {'; '.join(text.rstrip('.') for text in said)}." if said else ""


def _own_reasons(made: Decision) -> list[str]:
    """Why the run itself fails or does not conclude, in short: its sentence says the rest."""
    if made.status == Exit.CHECK_FAILED:
        return ["wrong results"] * bool(made.wrong) + ["bytes check failed"] * (
            made.bytes.verdict == "failed"
        )
    unsure = made.bytes.verdict == "inconclusive"
    return ["samples that would not settle"] * bool(made.unstable) + ["bytes check inconclusive"] * unsure


def gate_document(made: Decision, gates: Sequence[Gate]) -> dict[str, object]:
    """The verdict for JSON, to stand over the decision: its sentence takes the place of the decision's."""
    found = status(made, gates)
    return {
        "verdict": VERDICTS[found],
        "status": int(found),
        "sentence": gate_sentence(made, gates),
        "next_baseline": next_baseline(made, gates),
        "gates": [
            {
                "name": gate.name,
                "status": int(gate.status),
                "text": gate.text,
                "outcome": outcome_document(gate.outcome) if gate.outcome else None,
            }
            for gate in gates
        ],
    }


def refusal(error: QuestprofError) -> dict[str, object]:
    """The document of a run that came to no decision; `verdict` is null where it was asked wrongly."""
    return {
        "verdict": VERDICTS.get(error.status),
        "status": int(error.status),
        "next_baseline": False,
        "sentence": str(error),
    }


def gate_markdown(made: Decision, gates: Sequence[Gate]) -> str:
    """The gates for a CI summary: the verdict, then each comparison."""
    from questprof.decide.document import escape

    lines = [f"## questprof ci: {VERDICTS[status(made, gates)]}", ""]
    if why := reason(made, gates):
        lines += [escape(why), ""]
    if not gates:
        lines += [NO_COMPARISON, ""]
    for gate in gates:
        lines += [markdown(gate.outcome) if gate.outcome else f"- {escape(f'{gate.name}: {gate.text}')}", ""]
    return "\n".join(lines)

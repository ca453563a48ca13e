"""What must be read with a decision: what was dropped, doubts, conditions, what would decide more. Pure."""

from __future__ import annotations

from questprof.decide.checked import some
from questprof.decide.decision import Decision


def remarks(made: Decision) -> tuple[str, ...]:
    """What must be read with the sentence: what was dropped, doubts, conditions; missing parts it names."""
    said = []
    if made.dropped:
        said.append(f"left out for want of time: {some(made.dropped, 6)}")
    if made.unstable:
        said.append(f"unstable, and in no verdict: {some(made.unstable)}")
    for case in made.cases:
        if case.warm_steps:
            warm = f"whole steps are warm {case.warm_steps}: times of a cache, not of memory"
            said.append(f"batch {case.batch_size}: {warm}")
        if case.answer != "undecided":  # there the sentence has them
            said += [f"batch {case.batch_size}: {note}" for note in case.notes]
            said += [f"batch {case.batch_size}, left out: {case.left_out}"] if case.left_out else []
    return tuple(text[0].upper() + text[1:] for text in (*said, *made.warnings, *_advice(made)))


def _advice(made: Decision) -> list[str]:
    """What would decide more, where something is open."""
    said = []
    if made.dropped:
        said.append("repeated with -o, --resume and more --time the command measures what was left out")
    if made.unstable:
        said.append("on an idle machine, with --force, samples lie closer together")
    return [f"To decide more: {'; '.join(said)}."] if said else []

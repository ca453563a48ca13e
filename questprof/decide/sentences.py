"""A decision in words: the one sentence, and one a batch where there are several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from questprof.crossover.sentences import format_length
from questprof.decide.case import Case
from questprof.decide.case_words import NO_LIMIT, case_parts, percent, range_text, reach, saving
from questprof.decide.checked import BytesFact, some
from questprof.decide.decision import Decision
from questprof.decide.evidence import Findings
from questprof.units import count

HEADS = {
    "yes": "Yes",
    "no": "No",
    "partly": "It depends on the batch",
    "not proven": "Not proven",
    "undecided": "Undecided",
}


def sentence(found: Findings, made: Decision) -> str:
    """The one sentence: answer, where, share of requests, gain per token, what limits it, what is missing.

    A check that fails comes before all of them.
    """
    asked = found.asked
    device = found.environment.device_name + " (CPU figures)" * (asked.device == "cpu")
    whose = "" if asked.backend == "questprof" else f" with kernels {asked.backend}"
    place = f"on {device}, {asked.shape.name}{whose}, budget {asked.budget}, {_batches(made.cases)}"
    if len(made.cases) == 1:
        parts = case_parts(made.cases[0])
    else:
        parts = [_reaches(made.cases), _shares(made.cases), _gains(made.cases), _limits(made.cases)]
    wrong, checked = f"wrong results: {some(made.wrong)}" if made.wrong else "", _bytes(made.bytes)
    parts = [checked, *parts] if made.bytes.verdict == "failed" else [*parts, checked]
    return f"{head(made)}: {place}: {'; '.join(filter(None, (wrong, *parts)))}."


def by_batch(made: Decision) -> tuple[str, ...]:
    """A sentence a batch, where there are several."""
    if len(made.cases) == 1:
        return ()
    return tuple(
        f"Batch {case.batch_size}: {'; '.join(filter(None, case_parts(case)))}." for case in made.cases
    )


def head(made: Decision) -> str:
    """`Yes`, `Only above 9.2k tokens`."""
    if made.answer == "only above":
        return f"Only above {format_length(made.seq_len or 0)} tokens"
    if made.answer == "only between":
        ranges = dict.fromkeys(range_text(case) for case in made.cases)
        return f"Only {next(iter(ranges))}" if len(ranges) == 1 else "Only at some lengths"
    return HEADS[made.answer]


def _batches(made: Sequence[Case]) -> str:
    return f"batch {_and([case.batch_size for case in made])}"


def _and(numbers: Sequence[int]) -> str:
    """`1, 8 and 32`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _reaches(made: Sequence[Case]) -> str:
    """Where Quest is faster, batches that share an answer together."""
    groups: dict[str, list[int]] = {}
    for case in made:
        groups.setdefault(reach(case), []).append(case.batch_size)
    if len(groups) == 1:
        return f"Quest is {next(iter(groups))}"
    said = (f"{text} at batch {_and(batches)}" for text, batches in groups.items())
    return f"Quest is {', '.join(said)}"


def _shares(made: Sequence[Case]) -> str:
    shares = {case.batch_size: case.share for case in made if case.share and case.share.covered}
    if not shares:
        return ""
    first = next(iter(shares.values()))
    groups: dict[str, list[int]] = {}
    for batch, share in shares.items():
        groups.setdefault(percent(share.faster), []).append(batch)
    everywhere = len(groups) == 1 and len(shares) == len(made)
    said = [text + ("" if everywhere else f" (batch {_and(batches)})") for text, batches in groups.items()]
    return (
        f"it is faster for {', '.join(said)} of the {count(first.num_requests, 'request')} of {first.traffic}"
    )


def _gains(made: Sequence[Case]) -> str:
    """The range of what a token saves; which batches were not measured, and why."""
    told = [(case.batch_size, case.gain) for case in made if case.gain]
    said = [f"a token takes {saving(gain)} at batch {batch}" for batch, gain in told]
    untold: dict[str, list[int]] = {}
    for case in made:
        if not case.gain and case.no_gain:
            untold.setdefault(case.no_gain, []).append(case.batch_size)
    for why, batches in untold.items():
        where = "" if len(batches) == len(made) else f" at batch {_and(batches)}"
        said.append(f"gain per token not measured{where}: {why}")
    return ", ".join(said)


def _limits(made: Sequence[Case]) -> str:
    groups: dict[str, list[int]] = {}
    for case in made:
        if case.limit:
            groups.setdefault(case.limit.part, []).append(case.batch_size)
    if not groups:
        return NO_LIMIT
    if len(groups) == 1 and all(case.limit for case in made):
        return f"limited by {next(iter(groups))}"
    said = (f"{part} at batch {_and(batches)}" for part, batches in groups.items())
    return f"limited by {', '.join(said)}"


def _bytes(one: BytesFact) -> str:
    if one.verdict == "not run":
        return f"bytes not checked: {one.why}"
    why = f" ({one.why.rstrip('.')})" if one.why else ""
    return f"bytes check {one.verdict}{why}, {one.source}"

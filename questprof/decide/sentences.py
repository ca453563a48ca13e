"""A decision in words: the one sentence, one a batch where there are several, what did not run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from questprof.crossover.crossing import Crossover
from questprof.crossover.sentences import format_length, format_speed_up
from questprof.decide.case import Case, Gain, Share
from questprof.decide.checked import BytesFact, some
from questprof.decide.decision import Decision
from questprof.decide.evidence import Findings
from questprof.units import count, format_count

HEADS = {
    "yes": "Yes",
    "no": "No",
    "partly": "It depends on the batch",
    "not proven": "Not proven",
    "undecided": "Undecided",
}
NO_LIMIT = "what limits it is not known"


def sentence(found: Findings, made: Decision) -> str:
    """The one sentence: answer, where, share of requests, gain per token, what limits it, what is missing.

    A check that fails comes before all of them.
    """
    asked = found.asked
    device = found.environment.device_name + " (CPU figures)" * (asked.device == "cpu")
    whose = "" if asked.backend == "questprof" else f" with kernels {asked.backend}"
    place = f"on {device}, {asked.shape.name}{whose}, budget {asked.budget}, {_batches(made.cases)}"
    if len(made.cases) == 1:
        parts = _of_case(made.cases[0])
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
        f"Batch {case.batch_size}: {'; '.join(filter(None, _of_case(case)))}." for case in made.cases
    )


def _of_case(case: Case) -> list[str]:
    limit = (
        f"limited by {case.limit.part}, {percent(case.limit.share)} of {case.limit.of}"
        if case.limit
        else NO_LIMIT
    )
    share = share_text(case.share) if case.share and case.share.covered else ""
    return [f"Quest is {reach(case)}", share, _gain(case), limit]


def head(made: Decision) -> str:
    """`Yes`, `Only above 9.2k tokens`."""
    if made.answer == "only above":
        return f"Only above {format_length(made.seq_len or 0)} tokens"
    if made.answer == "only between":
        ranges = dict.fromkeys(_range(case) for case in made.cases)
        return f"Only {next(iter(ranges))}" if len(ranges) == 1 else "Only at some lengths"
    return HEADS[made.answer]


def _range(case: Case) -> str:
    """`between 2k and 8k tokens`."""
    until = format_length(case.until or 0)
    return (
        f"between {format_length(case.seq_len)} and {until} tokens"
        if case.seq_len
        else f"up to {until} tokens"
    )


def _batches(made: Sequence[Case]) -> str:
    return f"batch {_and([case.batch_size for case in made])}"


def _and(numbers: Sequence[int]) -> str:
    """`1, 8 and 32`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def reach(case: Case) -> str:
    """Where Quest is faster at one batch, to follow "Quest is", and where its times are of a cache."""
    return _reach(case) + (f", {case.warm} (times of a cache, not of memory)" if case.warm else "")


def _reach(case: Case) -> str:
    span, agree = _span(case.lengths), _agreeing(case.agreeing, case)
    if case.answer == "yes":
        return f"faster {_everywhere(case, 'every')}, {span}{agree}"
    if case.answer == "only above":
        return f"faster from {format_length(case.seq_len or 0)} tokens on{agree}"
    if case.answer == "only between":
        return f"faster only {_range(case)}{agree}"
    if case.answer == "no":
        if not span:
            return "no faster, as the budget covers every length measured"
        return f"not faster {_everywhere(case, 'any')}, {span}{agree}"
    outside = _uncovered(case.share) if case.share and not case.share.covered else ""
    why = "; ".join(filter(None, (outside, *case.notes, case.left_out))) or "no valid pair of figures"
    return f"neither proven faster nor slower ({why})"


def _everywhere(case: Case, word: str) -> str:
    one = len(case.lengths) == 1
    return f"at {'the only' if one else word} length measured above the budget"


def _span(lengths: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(format_count(lengths[i]) for i in (0, -1))) if lengths else ""


def _agreeing(found: Crossover | None, case: Case) -> str:
    """The other end of the range where query heads share KV heads: they may pick the same pages."""
    if found is None or not found.lengths or (found.kind == "always" and case.answer == "yes"):
        return ""
    same = "if the query heads of a group pick the same pages"
    if found.kind == "always":
        return f" (at every one {same})"
    if found.kind == "length" and found.seq_len:
        return f" (from {format_length(found.seq_len)} {same})"
    return "" if found.kind == "never in range" else f" (up to {format_length(found.until or 0)} {same})"


def share_text(share: Share) -> str:
    """`it is faster for 62 % of the 1000 requests of lengths.csv`, and which of them no length covers."""
    whose = f"the {count(share.num_requests, 'request')} of {share.traffic}"
    said = f"it is faster for {percent(share.faster)} of {whose}"
    return said + (f" ({_outside(share)}, where nothing valid was measured)" if share.outside > 0 else "")


def _outside(share: Share) -> str:
    """`25 % are shorter than 1k and 50 % are longer than 8k`."""
    sides = ((share.shorter, "shorter", share.first), (share.longer, "longer", share.last))
    return " and ".join(
        f"{percent(part)} are {word} than {format_count(end)}" for part, word, end in sides if part > 0
    )


def _uncovered(share: Share) -> str:
    """`75 % of the 4 requests of lengths.csv lie where nothing valid was measured: ...`."""
    whose = f"{percent(share.outside)} of the {count(share.num_requests, 'request')} of {share.traffic}"
    return f"{whose} lie where nothing valid was measured: {_outside(share)}"


def percent(share: float) -> str:
    """`62 %`; a share that is not 0 or 1 never reads as either."""
    if 0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def _gain(case: Case) -> str:
    if case.gain:
        return gain_text(case.gain)
    attention = ""
    if case.attention:
        attention = (
            f" (attention alone: {format_speed_up(case.attention[1])} at {format_count(case.attention[0])})"
        )
    return f"gain per token not measured{attention}: {case.no_gain}" if case.no_gain else ""


def gain_text(gain: Gain) -> str:
    """`at 32k a token takes 7.1 ms instead of 8.05 ms, 0.95 ms or 12 % less`, and whether that is warm."""
    saved, word = gain.saved_ms, "less" if gain.saved_ms >= 0 else "more"
    modelled = "" if gain.measured else " (modelled from measured steps)"
    warm = ", warm (times of a cache, not of memory)" * gain.warm
    contrary = f" ({gain.contrary})" if gain.contrary else ""
    return (
        f"{gain.where} a token takes {ms(gain.quest_ms)} ms instead of {ms(gain.dense_ms)} ms, "
        f"{ms(abs(saved))} ms or {_percent(gain)} {word}{modelled}{warm}{contrary}"
    )


def _percent(gain: Gain) -> str:
    share = 100 * abs(gain.saved_share)
    return f"{share:.1f} %" if share < 9.95 else f"{share:.0f} %"


def ms(value: float) -> str:
    """Milliseconds, three significant digits; below a hundredth there are none to tell."""
    if 0 < value < 0.01:
        return "less than 0.01"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


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
    said = [f"a token takes {_saving(gain)} at batch {batch}" for batch, gain in told]
    untold: dict[str, list[int]] = {}
    for case in made:
        if not case.gain and case.no_gain:
            untold.setdefault(case.no_gain, []).append(case.batch_size)
    for why, batches in untold.items():
        where = "" if len(batches) == len(made) else f" at batch {_and(batches)}"
        said.append(f"gain per token not measured{where}: {why}")
    return ", ".join(said)


def _saving(gain: Gain) -> str:
    """`0.95 ms (12 %) less at 32k`."""
    word = "less" if gain.saved_ms >= 0 else "more"
    saved, contrary = ms(abs(gain.saved_ms)), f" ({gain.contrary})" if gain.contrary else ""
    return f"{saved} ms ({_percent(gain)}) {word} {gain.where}{' (warm)' * gain.warm}{contrary}"


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

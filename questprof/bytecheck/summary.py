"""Judgements of many points in a few lines: what holds, the worst residuals, reuse, proofs, both sources.

Pure; the terminal and the report say the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from questprof.bytecheck.judgement import FindingSource, GatherCost, Judgement, StageFinding, percent
from questprof.bytecheck.pairs import pair_lines, pairs
from questprof.bytecheck.sentences import COUNTER_SHARE
from questprof.counts import Source
from questprof.model import Point
from questprof.units import count, format_bytes, format_count

LABELS: Final[dict[FindingSource, str]] = {
    "ncu": "measured: hardware counters",
    "trace": "counted: address trace",
    "proof": "proof on the device",
    "formula": "modelled: formula",
}
"""What a source's figures are called, everywhere."""
LARGE: Final = ("dense", "score", "attend", "quest")
"""Stages whose residuals are worth a share; the others have few bytes."""
MAX_FAILURES: Final = 20


def where(point: Point) -> str:
    """`4k, page 16, budget 1024`, and what is not usual."""
    text = f"{format_count(point.seq_len)}, page {point.page_size}"
    text += f", budget {format_count(point.token_budget)}" * bool(point.token_budget)
    text += f", batch {point.batch_size}" * (point.batch_size > 1)
    text += f", {point.summary_layout}" * (point.summary_layout != "paired")
    text += f", {point.policy}" * (point.policy not in ("quest", "dense"))
    text += f", data {point.data}" * (point.data != "independent")
    return text + f", {point.backend}" * (point.backend != "questprof")


def label(source: Source, variant: str) -> str:
    """`measured: hardware counters (cuda)`."""
    return LABELS[source] + (f" ({variant})" if variant else "")


def verdict(judgement: Judgement) -> str:
    """One or two words: `ok`, the causes, `refused`, `inconclusive`, or the status of the uncounted."""
    if judgement.holds is False:
        return ", ".join(judgement.causes) or "fails"
    if judgement.refused:
        return "refused"
    if not judgement.sources:
        return judgement.status
    return "ok" if judgement.holds else "inconclusive"


def summary_lines(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """What all points together say, one line a subject; subjects without data are left out."""
    groups: dict[tuple[Source, str], list[Judgement]] = {}
    for one in judgements:
        for source in one.sources:
            groups.setdefault((source, one.variant), []).append(one)
    lines = [_holding(*key, found) for key, found in groups.items()]
    lines += [_worst(*key, found) for key, found in groups.items() if key[0] == "ncu"]
    lines += [
        *_unselected(judgements),
        *_reuse(judgements),
        *_calibration(judgements),
        *_gather(judgements),
        *_both(judgements),
    ]
    return tuple(lines) + tuple(_not_counted(judgements))


def failures(judgements: Sequence[Judgement], most: int = MAX_FAILURES) -> tuple[str, ...]:
    """The sentences of every point that does not hold, the point's place first; at most `most` of them."""
    found = [
        f"{where(one.point)}: {sentence}"
        for one in judgements
        if one.sources and not one.holds
        for sentence in one.sentences
    ]
    rest = len(found) - most
    return (*found[:most], *([f"and {rest} more, in the JSON and the report."] if rest > 0 else []))


def _large(found: Iterable[Judgement], source: Source) -> list[tuple[Judgement, StageFinding, float]]:
    """Stages with a residual share, of one source; pipelined ones too."""
    return [
        (one, stage, stage.read.residual_share)
        for one in found
        for stage in one.stages
        if stage.source == source and stage.stage in LARGE and stage.read.residual_share is not None
    ]


def _holding(source: Source, variant: str, found: Sequence[Judgement]) -> str:
    """`63 of 63 points hold, measured: hardware counters (cuda): score within 0.05 % or 32 KiB, ...`."""
    holding = [one for one in found if one.holds]
    within = _exactness(holding) if source == "trace" else _shares(holding, source)
    text = f"{len(holding)} of {len(found)} points hold, {label(source, variant)}" + f": {within}" * bool(
        within
    )
    failing = [one for one in found if one.holds is False]
    causes = ", ".join(dict.fromkeys(cause for one in failing for cause in one.causes)) or "see the reasons"
    unsure = len(found) - len(holding) - len(failing)
    text += f". {len(failing)} fail: {causes}" * bool(failing) + f". {unsure} inconclusive" * bool(unsure)
    return text + "."


def _exactness(found: Iterable[Judgement]) -> str:
    reads = [
        abs(term.read.residual_bytes)
        for one in found
        for stage in one.stages
        for term in stage.terms
        if term.in_eq12 and term.read
    ]
    if not reads:
        return ""
    return f"K, V and summary within {max(reads)} B" if any(reads) else "K, V and summary to the byte"


def _shares(found: Iterable[Judgement], source: Source) -> str:
    """The largest residual of every stage, as a share and in bytes; both may be of different points."""
    worst: dict[str, tuple[float, int]] = {}
    for _, stage, share in _large(found, source):
        name = stage.stage + " in a chain" * (stage.mode == "pipelined")
        old = worst.get(name, (0.0, 0))
        worst[name] = max(old[0], abs(share)), max(old[1], abs(stage.read.residual_bytes))
    return ", ".join(
        f"{name} within {100 * share:.2f} % or {format_bytes(size)}" for name, (share, size) in worst.items()
    )


def _worst(source: Source, variant: str, found: Sequence[Judgement]) -> str:
    """The three largest residuals of stages alone, with their places."""
    alone = [one for one in _large(found, source) if one[1].mode == "isolated"]
    stages = sorted(alone, key=lambda one: -abs(one[2]))[:3]
    named = [
        f"{stage.stage} {percent(share)} ({stage.read.residual_bytes:+d} B) at {where(one.point)}"
        for one, stage, share in stages
    ]
    return f"Largest residuals, {label(source, variant)}: {'; '.join(named) or 'none'}."


def _unselected(judgements: Sequence[Judgement]) -> Iterable[str]:
    said = {
        "unselected pages": "no byte of an unselected page was read, counted: address trace",
        "unmapped pages": "attend completed with unselected pages unmapped, a proof on the device",
    }
    for what, text in said.items():
        found = [f for one in judgements for f in one.findings if f.what == what]
        tried = [f for f in found if f.holds is not None]
        if tried:
            yield f"At {sum(f.holds is True for f in tried)} of {len(tried)} points {text}."
        if len(tried) < len(found):
            why = "; ".join(dict.fromkeys(f.sentence for f in found if f.holds is None))
            yield f"At {count(len(found) - len(tried), 'point')}: {why}."


def _reuse(judgements: Sequence[Judgement]) -> Iterable[str]:
    found = [(reuse.saved_share, reuse.saved_bytes, one) for one in judgements for reuse in one.reuse]
    if found:
        shares = [share for share, _, _ in found]
        _, saved, most = max(found, key=lambda one: one[1])
        yield (
            f"Reuse between stages: a chain reads {100 * min(shares):.2f} % to {100 * max(shares):.2f} % "
            f"less than its stages alone, most {format_bytes(saved)} at {where(most.point)}."
        )


def _calibration(judgements: Sequence[Judgement]) -> Iterable[str]:
    errors = [error for one in judgements for error in one.calibration]
    known = [abs(error.error) for error in errors if error.error is not None]
    if errors:
        off = f"at most {100 * max(known):.3f} %" if known else "unknown: nothing of known size was read"
        yield (
            f"Counter error over {len(errors)} streaming reads of known size: {off} "
            f"(above {100 * COUNTER_SHARE:g} % nothing is concluded)."
        )


def _gather(judgements: Sequence[Judgement]) -> Iterable[str]:
    """What a gathered temporary costs: its traffic, and its time where a sweep has it."""
    costs: dict[str, list[GatherCost]] = {}
    for one in judgements:
        for cost in one.gather:
            costs.setdefault(label(cost.source, one.variant), []).append(cost)
    for text, found in costs.items():
        moved = _range([cost.x_attend for cost in found if cost.x_attend is not None])
        took = _range([c.gather_us / c.attend_us for c in found if c.gather_us and c.attend_us])
        line = f"A gathered copy at {len(found)} points moves {moved or '?'} the bytes of attention in place"
        line += f", {text}"
        yield line + (f"; it takes {took} the time (measured: clock)." if took else ".")


def _range(values: Sequence[float]) -> str:
    """`3.01x`, `2.9x to 3.1x`, '' of nothing."""
    texts = [f"{pick(values):.2f}x" for pick in (min, max)] if values else []
    return " to ".join(dict.fromkeys(texts))


def _both(judgements: Sequence[Judgement]) -> Iterable[str]:
    """Where a trace and hardware counted the same point: what each departs by, each of its own variant."""
    found = [(pair, lines) for pair in pairs(judgements) if (lines := pair_lines(pair))]
    if not found:
        return
    names = [", ".join(dict.fromkeys(one[0][i].variant or "?" for one in found)) for i in (0, 1)]
    every = [line for _, own in found for line in own]
    traced = max(abs(line.trace_residual) for line in every)
    share = max((abs(x.hardware_residual / x.hardware_reads) for x in every if x.hardware_reads), default=0)
    yield (
        f"Both sources at {len(found)} points: K, V and summary of a KV head are within {traced:g} B of the "
        f"ledger by trace ({names[0]}), all its reads within {100 * share:.2f} % by hardware ({names[1]})."
    )


def _not_counted(judgements: Sequence[Judgement]) -> Iterable[str]:
    reasons: dict[str, list[str]] = {}
    for one in judgements:
        if not one.sources:
            reason = ": ".join(filter(None, (one.status, one.reason)))
            reasons.setdefault(reason, []).append(where(one.point))
    for reason, places in reasons.items():
        rest = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"Not counted: {reason} ({'; '.join(places[:3])}{rest})."

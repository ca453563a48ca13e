"""Same, within spread, faster, slower, undecided: every stage of every pair of records, from raw samples.

Pure. Two sides timed in turn in one loop are compared round by round, by the median of the ratios, the sign
test and Student's t; rounds that resemble the ones before count as fewer. Two runs are compared by the ratio
of their medians and the Mann-Whitney test; between two runs of one code lies a difference that the samples
within a run do not show, so only what exceeds it counts.

Levels: an interval holds its ratio with 95 %, each by itself. `faster` and `slower` are controlled over the
whole comparison (Holm): where nothing has changed, any is called in at most 5 % of comparisons, provided
that the likeness of rounds fades with every round as it does with the first (autocorrelation rho ** lag),
or that two runs differ by less than their spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec

from questprof.compare.evidence import Evidence, paired, unpaired
from questprof.compare.likeness import Rounds, likenesses
from questprof.compare.outcome import ERROR_RATE, Comparison, Outcome, Overall, Skipped, Verdict
from questprof.compare.pairs import Pair, Pairs, Unclear
from questprof.compare.spread import Spread, format_share
from questprof.model import Record
from questprof.samples import LEVEL, holm
from questprof.units import count

DEFAULT_THRESHOLD: Final = 0.02
"""In two runs of one grid on one card (profiles/h200/grid.jsonl, grid-again.jsonl) every stage of 10 us and
more agrees to 1.3 %: a smaller threshold would call differences that do not repeat."""
FEWER: Final = 0.75
"""Share of the rounds below which it is said that they count as fewer."""
COMPARED: Final = ("ok", "unstable")
"""Statuses whose samples are looked at; an unstable point is never decided."""


def compare(pairs: Pairs, spread: Spread, threshold: float = DEFAULT_THRESHOLD) -> Outcome:
    """Judge every stage that both records of a pair have. `threshold` 0.02: within 2 % is the same."""
    unfit = [_unfit(pair) for pair in pairs.pairs]
    fit = [pair for pair, skipped in zip(pairs.pairs, unfit, strict=True) if not skipped]
    alike = _alike(fit) if pairs.one_run else {}
    judged = [one for pair in fit for one in _stages(pair, alike, spread, threshold)]
    comparisons = tuple(_controlled(judged))
    return Outcome(
        names=pairs.names,
        comparisons=comparisons,
        skipped=(*_lost(pairs), *filter(None, unfit)),
        only_base=tuple(record.point for record in pairs.only_base),
        only_new=tuple(record.point for record in pairs.only_new),
        threshold=threshold,
        spread=None if all(one.paired for one in comparisons) else spread,
        notes=pairs.notes,
    )


def fails_check(record: Record) -> bool:
    """Whether a record's figures are of a wrong result: no figure without a passed check."""
    return record.status == "wrong" or any(not check.holds for check in record.checks)


def _lost(pairs: Pairs) -> Iterator[Skipped]:
    """What base has and new lacks, points and stages of a point: nobody knows what became of it."""
    for unclear in pairs.unclear:
        why = _which(unclear, pairs.names)
        yield from (Skipped(record.point, why, "undecided") for record in unclear.base)
    for record in pairs.only_base:
        yield Skipped(record.point, f"{pairs.names[1]} lacks it", "undecided")
    for pair in pairs.pairs:
        stages = [
            stage
            for stage, samples in pair.base.times_us.items()
            if samples and not pair.new.times_us.get(stage)
        ]
        if stages and not _unfit(pair):
            yield Skipped(pair.base.point, f"{pairs.names[1]} lacks {', '.join(stages)}", "undecided")


def _which(unclear: Unclear, names: tuple[str, str]) -> str:
    counts = (
        f"{name} has {len(side)}" for name, side in zip(names, (unclear.base, unclear.new), strict=True)
    )
    return f"{' and '.join(counts)} that match but for what is set aside, and nothing says which to compare"


def _unfit(pair: Pair) -> Skipped | None:
    """Why a pair is not compared; what base has and new has not counts against new."""
    base, new = _trouble(pair.base), _trouble(pair.new)
    if not (base or new):
        return None
    sides = (f"{name} {why}" for name, why in (("base", base), ("new", new)) if why)
    lost: Overall = "wrong" if fails_check(pair.new) else "undecided"
    return Skipped(pair.base.point, "; ".join(sides), "same" if base else lost)


def _trouble(record: Record) -> str:
    if fails_check(record):
        return "wrong: its result fails its check"
    if record.status not in COMPARED:
        return record.status + f": {record.reason}" * bool(record.reason)
    if any(min(samples, default=1.0) <= 0 for samples in record.times_us.values()):
        return "holds a sample that is no time"
    return ""


def _alike(fit: Sequence[Pair]) -> dict[tuple[int, str], float]:
    """By pair and stage, of those timed in turn: how much a round resembles the one before."""
    found = {
        (id(pair), stage): Rounds(pair.base.timing[stage].loop_id, stage, base, pair.new.times_us[stage])
        for pair in fit
        for stage, base in pair.base.times_us.items()
        if base and pair.new.times_us.get(stage) and _same_loop(pair, stage)
    }
    return dict(zip(found, likenesses(list(found.values())), strict=True))


def _stages(
    pair: Pair, alike: Mapping[tuple[int, str], float], spread: Spread, threshold: float
) -> list[Comparison]:
    """Comparisons of every stage timed on both sides; p not yet adjusted. `alike`: those timed in turn."""
    machine, found = _machine(pair), []
    for stage, base in pair.base.times_us.items():
        new = pair.new.times_us.get(stage)
        if not (base and new):
            continue
        if (rho := alike.get((id(pair), stage))) is not None:
            one = paired(base, new, threshold, rho)
            found.append(_comparison(pair, stage, one, _Limits(threshold, threshold), True))
        else:
            margin = max(threshold, spread.margin(stage, median(base)))
            limits = _Limits(threshold, margin, spread)
            found.append(_comparison(pair, stage, unpaired(base, new, margin, machine), limits, False))
    return found


class _Limits(NamedTuple):
    """Relative differences: up to which a stage is the same, and up to which runs of one code lie apart."""

    threshold: float
    margin: float
    spread: Spread | None = None
    """Where the margin comes from; None inside one loop."""


def _comparison(pair: Pair, stage: str, found: Evidence, limits: _Limits, in_one_loop: bool) -> Comparison:
    side, margin = found.side(limits.threshold, limits.margin), limits.margin
    why = _state(pair, stage) or found.doubt() or ("" if side else _neither(found, margin))
    verdict: Verdict = "undecided" if why or not side else side
    if verdict == "within spread" and limits.spread:
        why = f"within the spread between runs, {limits.spread.describe(stage, median(found.base))}"
    timing = pair.new.timing.get(stage)
    return Comparison(
        point=pair.base.point,
        stage=stage,
        base_us=median(found.base),
        new_us=median(found.new),
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        coverage=found.coverage,
        margin=margin,
        beyond=found.beyond,
        paired=in_one_loop,
        num_samples=(len(found.base), len(found.new)),
        verdict=verdict,
        p=1.0 if verdict == "undecided" else found.p,
        independent=found.independent if in_one_loop else None,
        machine=found.machine,
        why=why,
        cache_state=timing.cache_state if timing else "unknown",
    )


def _state(pair: Pair, stage: str) -> str:
    """What of the two records themselves forbids a verdict."""
    if "unstable" in (pair.base.status, pair.new.status):
        return "unstable: " + (pair.new.reason or pair.base.reason or "its samples drifted")
    states = [record.timing[stage].cache_state for record in (pair.base, pair.new) if stage in record.timing]
    return f"base is {states[0]}, new is {states[1]}" if len(set(states)) > 1 else ""


def _neither(found: Evidence, margin: float) -> str:
    """Why samples that nothing speaks against say neither the same nor different."""
    if found.beyond > margin:
        apart = f"beyond the {format_share(found.beyond)} that its samples lie apart"
        return f"neither within {format_share(margin)} nor {apart}"
    if found.coverage < LEVEL:
        return f"too few to call it the same, {_counted(len(found.base), found.independent)}"
    return f"its interval reaches both sides of {format_share(margin)}"


def _counted(rounds: int, independent: float) -> str:
    return f"its {rounds} rounds count as {count(math.floor(independent), 'independent one')}"


def _controlled(judged: Sequence[Comparison]) -> list[Comparison]:
    """Holm over all of them: what chance would call now and then among so many is undecided."""
    adjusted = holm([one.p for one in judged])
    return [
        one if one.p == p else _with_p(one, p, len(judged)) for one, p in zip(judged, adjusted, strict=True)
    ]


def _with_p(one: Comparison, p: float, number: int) -> Comparison:
    if one.verdict not in ("faster", "slower") or p <= ERROR_RATE:
        return msgspec.structs.replace(one, p=p)
    why = f"not beyond chance among {count(number, 'comparison')} (p = {p:.2g})"
    if one.independent is not None and one.independent < FEWER * one.num_samples[0]:
        why += f": {_counted(one.num_samples[0], one.independent)}"
    return msgspec.structs.replace(one, p=p, verdict="undecided", why=why)


def _same_loop(pair: Pair, stage: str) -> bool:
    """Whether both sides were timed in turn, sample by sample."""
    base, new = pair.base.timing.get(stage), pair.new.timing.get(stage)
    together = base is not None and new is not None and base.loop_id == new.loop_id != ""
    return together and len(pair.base.times_us[stage]) == len(pair.new.times_us[stage])


def _machine(pair: Pair) -> float:
    """New over base time of the streaming reads taken in the two loops; 1 where there are none."""
    rates = [
        max((median(c.samples_gb_s) for c in record.calibration if c.samples_gb_s), default=0.0)
        for record in (pair.base, pair.new)
    ]
    return rates[0] / rates[1] if min(rates) > 0 else 1.0

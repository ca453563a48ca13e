"""Same, faster, slower or undecided: every stage of every pair of records, from their raw samples.

Pure. Two sides timed in turn in one loop are compared round by round, by the median of the ratios and the
sign test. Two runs are compared by the ratio of their medians and the Mann-Whitney test; between two runs
of one code lies a difference that the samples within a run do not show, so only what exceeds it counts.

Levels: an interval holds its ratio with 95 %, each by itself. `faster` and `slower` are controlled over the
whole comparison (Holm): where nothing has changed, any is called in at most 5 % of comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from questprof.compare.evidence import Evidence, paired, unpaired
from questprof.compare.pairs import Pair, Pairs
from questprof.compare.spread import Spread
from questprof.errors import Exit
from questprof.model import Point, Record
from questprof.samples import LEVEL, holm

Verdict = Literal["same", "faster", "slower", "undecided"]
ERROR_RATE: Final = 1 - LEVEL
DEFAULT_THRESHOLD: Final = 0.02
COMPARED: Final = ("ok", "unstable")
"""Statuses whose samples are looked at; an unstable point is never decided."""


class Comparison(msgspec.Struct, frozen=True):
    """One stage of one point. Times in us; `ratio` is new over base, above 1 slower."""

    point: Point
    stage: str
    base_us: float
    new_us: float
    """Medians."""
    ratio: float
    """Paired: the median of the rounds' ratios; otherwise the ratio of the medians."""
    low: float
    high: float
    """Order-statistic interval of the ratio; unpaired it spans the raw ratio and the one over `machine`."""
    coverage: float
    """Exact probability with which the interval holds the ratio, for independent samples."""
    margin: float
    """Relative difference up to which two figures are the same."""
    beyond: float
    """Relative difference from which they differ: the margin, in two runs at least their samples' spread."""
    paired: bool
    num_samples: tuple[int, int]
    verdict: Verdict
    p: float = 1.0
    """Holm's adjusted p-value that the difference exceeds the margin."""
    machine: float = 1.0
    """How much longer the streaming read of the new loop took than that of the base loop."""
    why: str = ""
    """Why it is undecided."""
    cache_state: str = "cold"


class Skipped(msgspec.Struct, frozen=True):
    """A pair that is not compared, and why."""

    point: Point
    why: str
    counts_as: Verdict
    """For the overall verdict: slower where new turned wrong, undecided where only base was measured."""


class Outcome(msgspec.Struct, frozen=True):
    """The whole comparison: what the table, the document and the exit status are made from."""

    names: tuple[str, str]
    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    only_base: tuple[Point, ...]
    only_new: tuple[Point, ...]
    threshold: float
    spread: Spread | None
    """Between runs; None where every stage was compared inside one loop."""
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Slower where any stage is or a point turned wrong, then undecided, then faster, then same."""
        found = {one.verdict for one in self.comparisons} | {one.counts_as for one in self.skipped}
        order: tuple[Verdict, ...] = ("slower", "undecided", "faster")
        return next(
            (verdict for verdict in order if verdict in found), "same" if self.comparisons else "undecided"
        )

    def exit_status(self, undecided: int = Exit.INCONCLUSIVE) -> int:
        """0 same or faster, 1 slower or wrong, `undecided` otherwise."""
        return {"slower": int(Exit.CHECK_FAILED), "undecided": undecided}.get(self.verdict, int(Exit.OK))


def compare(pairs: Pairs, spread: Spread, threshold: float = DEFAULT_THRESHOLD) -> Outcome:
    """Judge every stage that both records of a pair have. `threshold` 0.02: below 2 % is the same."""
    unfit = [_unfit(pair) for pair in pairs.pairs]
    fit = (pair for pair, skipped in zip(pairs.pairs, unfit, strict=True) if not skipped)
    judged = [one for pair in fit for one in _stages(pair, pairs.one_run, spread, threshold)]
    comparisons = tuple(_controlled(judged))
    return Outcome(
        names=pairs.names,
        comparisons=comparisons,
        skipped=(*filter(None, unfit), *_lost(pairs)),
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


def _unfit(pair: Pair) -> Skipped | None:
    """Why a pair is not compared; what base has and new has not counts against new."""
    base, new = _trouble(pair.base), _trouble(pair.new)
    if not (base or new):
        return None
    sides = (f"{name} {why}" for name, why in (("base", base), ("new", new)) if why)
    lost: Verdict = "slower" if fails_check(pair.new) else "undecided"
    return Skipped(pair.base.point, "; ".join(sides), "same" if base else lost)


def _trouble(record: Record) -> str:
    if fails_check(record):
        return "wrong: its result fails its check"
    if record.status not in COMPARED:
        return record.status + f": {record.reason}" * bool(record.reason)
    if any(min(samples, default=1.0) <= 0 for samples in record.times_us.values()):
        return "holds a sample that is no time"
    return ""


def _stages(pair: Pair, one_run: bool, spread: Spread, threshold: float) -> list[Comparison]:
    """Comparisons of every stage timed on both sides; p not yet adjusted."""
    machine, found = _machine(pair), []
    for stage, base in pair.base.times_us.items():
        new = pair.new.times_us.get(stage)
        if not (base and new):
            continue
        if one_run and _same_loop(pair, stage):
            found.append(_comparison(pair, stage, paired(base, new, threshold), threshold, True))
        else:
            margin = max(threshold, spread.margin(stage, median(base)))
            found.append(_comparison(pair, stage, unpaired(base, new, margin, machine), margin, False))
    return found


def _comparison(pair: Pair, stage: str, found: Evidence, margin: float, in_one_loop: bool) -> Comparison:
    side = found.side(margin)
    why = _state(pair, stage) or found.doubt() or ("" if side else _straddles(margin, found.beyond))
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
        verdict="undecided" if why or not side else side,
        p=1.0 if why else found.p,
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


def _straddles(margin: float, beyond: float) -> str:
    if beyond > margin:
        apart = f"beyond the {format_share(beyond)} that its samples lie apart"
        return f"neither within {format_share(margin)} nor {apart}"
    return f"its interval reaches both sides of {format_share(margin)}"


def format_share(value: float) -> str:
    """A relative difference in two digits: 0.02 -> `2%`, 0.3 -> `30%`."""
    return f"{100 * value:.2g}%" if value < 1 else f"{100 * value:.0f}%"


def _controlled(judged: Sequence[Comparison]) -> list[Comparison]:
    """Holm over all of them: what chance would call now and then among so many is undecided."""
    adjusted = holm([one.p for one in judged])
    return [
        one if one.p == p else _with_p(one, p, len(judged)) for one, p in zip(judged, adjusted, strict=True)
    ]


def _with_p(one: Comparison, p: float, count: int) -> Comparison:
    if one.verdict not in ("faster", "slower") or p <= ERROR_RATE:
        return msgspec.structs.replace(one, p=p)
    why = f"not beyond chance among {count} comparisons (p = {p:.2g})"
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

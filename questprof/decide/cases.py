"""Every batch size of a decision, from attention's length scan and the whole steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from questprof.amdahl.pairs import Pair, steps_of
from questprof.crossover.coverage import cover
from questprof.crossover.crossing import crossover
from questprof.crossover.sentences import left_out_text, warm_text
from questprof.crossover.traffic import Traffic
from questprof.decide.case import Answer, Case, Limit, Share, largest, told_at
from questprof.decide.evidence import Findings
from questprof.decide.whole_step import with_steps
from questprof.rows import Row, Series
from questprof.scan import scan_rows, series
from questprof.units import format_count

ANSWERS: Final[dict[str, Answer]] = {
    "always": "yes",
    "length": "only above",
    "only between": "only between",
    "never in range": "no",
    "trivial": "no",
    "no valid point": "undecided",
}
STAGES: Final = ("score", "select", "attend")


def cases(found: Findings) -> tuple[Case, ...]:
    """One a batch size, in the order asked for."""
    rows = scan_rows(found.sweep) if found.sweep else ()
    pairs = steps_of(found.steps).pairs if found.steps else ()
    return tuple(_case(found, batch, rows, pairs) for batch in found.asked.batch_sizes)


def _case(found: Findings, batch: int, rows: Sequence[Row], pairs: Sequence[Pair]) -> Case:
    asked = found.asked
    own = {one.data: one for one in series(rows) if _is_asked(found, one, batch)}
    main = own.get("independent")
    measured = sorted((p for p in pairs if _is_step(found, p, batch)), key=lambda pair: pair.point.seq_len)
    mine = [pair for pair in measured if pair.dense.step.steady and pair.quest.step.steady]
    no_gain = "" if mine else _no_gain(found, batch, bool(measured))
    if main is None:
        why = found.missing.get("sweep", "time or memory allowed no point of this batch")
        return Case(batch, "undecided", None, None, (), None, None, None, no_gain, None, left_out=why)
    crossing = crossover(main)
    case = Case(
        batch_size=batch,
        answer=ANSWERS[crossing.kind],
        seq_len=crossing.seq_len,
        until=crossing.until,
        lengths=crossing.lengths,
        attention=None,
        share=_share(main, asked.traffic) if asked.traffic else None,
        gain=None,
        no_gain=no_gain,
        limit=None,
        agreeing=crossover(own["shared"]) if "shared" in own else None,
        left_out=left_out_text(crossing.left_out),
        warm=warm_text(crossing),
        notes=()
        if crossing.steady
        else ("the speed-up crosses 1 more than once; the last crossing is told",),
    )
    case = _covered(case)
    case = replace(
        case,
        attention=_attention(main, case, asked.reference),
        limit=_attention_limit(main, case, asked.reference),
    )
    if warm := [format_count(pair.point.seq_len) for pair in mine if pair.warm]:
        where = "every length" if len(warm) == len(mine) else ", ".join(warm)
        case = replace(case, warm_steps=f"at {where}")
    return with_steps(case, mine, asked.reference, asked.traffic) if mine else case


def _no_gain(found: Findings, batch: int, measured: bool) -> str:
    """Why no time per token is told: not measured, refused by memory, or steps that would not settle."""
    if measured:
        return "the samples of every whole step are too few or too far apart"
    refused = [
        record.reason or record.status
        for record in (found.steps.records if found.steps else ())
        if record.point.batch_size == batch and record.status in ("oom", "unavailable")
    ]
    if refused:
        return f"no memory for a whole step ({refused[0]})"
    return found.missing.get("steps", "no decode step of this batch was measured")


def _is_asked(found: Findings, one: Series, batch: int) -> bool:
    point, asked = one.rows[0].point, found.asked
    return (
        (one.batch_size, one.page_size, one.token_budget) == (batch, asked.page_size, asked.budget)
        and one.policy == "quest"
        and point.backend == asked.backend
        and not point.seq_lens
    )


def _is_step(found: Findings, pair: Pair, batch: int) -> bool:
    point, asked = pair.point, found.asked
    return not point.seq_lens and (point.batch_size, point.page_size, point.token_budget) == (
        batch, asked.page_size, asked.budget,
    )  # fmt: skip


def _usable(one: Series) -> dict[int, Row]:
    """Rows above the budget that are evidence, by length."""
    return {row.seq_len: row for row in one.rows if row.usable and not row.trivial and row.speed_up}


def _attention(one: Series, case: Case, reference: int) -> tuple[int, float] | None:
    usable = _usable(one)
    if not usable:
        return None
    at = told_at(case, tuple(usable), reference)
    return at, usable[at].speed_up or 0.0


def _share(one: Series, traffic: Traffic) -> Share | None:
    """Shares of the requests; None where nothing valid was measured."""
    curve = [row.seq_len for row in one.rows if row.usable and row.dense_us and row.quest_us]
    if not curve:
        return None
    first, last = min(curve), max(curve)
    number = len(traffic.lengths)
    shorter, longer = (
        sum(at < first for at in traffic.lengths) / number,
        sum(at > last for at in traffic.lengths) / number,
    )
    inside = max(0.0, 1 - shorter - longer)
    faster = (cover(one.rows, traffic).faster_requests or 0.0) * inside
    return Share(traffic.name, number, faster, inside - faster, shorter, longer, first, last)


def _covered(case: Case) -> Case:
    """Undecided where most requests lie outside the lengths measured: nothing is known of them."""
    if case.share is None or case.share.covered:
        return case
    return replace(case, answer="undecided", seq_len=None, until=None)


def _attention_limit(one: Series, case: Case, reference: int) -> Limit | None:
    """The longest of Quest's stages at the length nearest to the reference."""
    usable = _usable(one)
    if not usable:
        return None
    stats = usable[told_at(case, tuple(usable), reference)].stats
    times = {stage: stats[stage].median for stage in STAGES if stage in stats}
    return largest({f"Quest's {stage}": us for stage, us in times.items()}, "Quest's attention")

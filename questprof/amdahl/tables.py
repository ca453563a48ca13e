"""Tables of the finding as heads and rows of text, for the terminal and the page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from questprof.amdahl.breakdown import QUEST_PARTS, UNEXPLAINED, Breakdown, Part
from questprof.amdahl.check import CAUSES, Check
from questprof.amdahl.finding import Amdahl
from questprof.amdahl.pairs import step_title, title
from questprof.amdahl.sentences import causes
from questprof.amdahl.whatif import MEASURED, WhatIf
from questprof.decode.records import PARTS
from questprof.units import format_count, format_us

NONE = "–"


class Table(NamedTuple):
    """A table of text; the first column names its rows. `source` says what its figures are."""

    title: str
    source: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(found: Amdahl) -> tuple[Table, ...]:
    """All tables with a row, in reading order."""
    made = (breakdowns(found.all_steps), *(make(found) for make in MAKERS))
    return tuple(table for table in made if table.rows)


def breakdowns(steps: Sequence[Breakdown]) -> Table:
    """A row a step: the unprofiled time, then each part's us and share, and what is left."""
    timed = [step for step in steps if step.parts]
    lines = [{name: (us, share) for name, us, share in step.lines()} for step in timed]
    names = [name for name in (*PARTS, UNEXPLAINED) if any(name in one for one in lines)]
    rows = tuple(
        (
            step_title(step.point),
            format_us(step.us),
            *(_cell(one.get(name)) for name in names),
            _methods(step),
        )
        for step, one in zip(timed, lines, strict=True)
    )
    heads = ("step", "us, unprofiled", *names, "parts timed by")
    return Table("where a step's time goes, us and share of the step", "measured", heads, rows)


def _methods(step: Breakdown) -> str:
    return ", ".join(dict.fromkeys(part.method for part in step.parts))


def _cell(line: tuple[float, float] | None) -> str:
    return f"{_us(line[0])} {line[1]:.1%}" if line else NONE


def _us(us: float) -> str:
    return f"-{format_us(-us)}" if us < 0 else format_us(us)


def speedups(found: Amdahl) -> Table:
    """A row a pair: both steps, their spread, the speed-up with its interval, launch overhead."""
    heads = (
        "step", "dense ms", "dense by", "Quest ms", "Quest p95", "speed-up", "95 %", "launches, dense ms",
        "Quest ms", "weights GB/s (of read)", "small parts ms",
    )  # fmt: skip
    rows = [
        (
            title(pair.point),
            _ms(pair.dense.us),
            pair.dense.point.decode.dense_backend if pair.dense.point.decode else NONE,
            _ms(pair.quest.us),
            _ms(pair.quest.step.p95),
            f"{pair.speedup:.2f}x" + _mark(bool(pair.doubts)),
            f"{pair.interval[0]:.2f}–{pair.interval[1]:.2f}",
            _ms(pair.dense.launch_overhead_us),
            _ms(pair.quest.launch_overhead_us),
            _rate(pair.quest.projection_gb_s, pair.quest.ceiling_gb_s),
            _ms(pair.quest.small_us if pair.quest.parts else None),
        )
        for pair in found.pairs
    ]
    source = "measured: clock; launches: launched one by one less as used"
    doubts = _legend(bool(pair.doubts) for pair in found.pairs)
    return Table("whole steps", source + doubts, heads, tuple(rows))


def _mark(doubtful: bool) -> str:
    """What follows a figure that compares steps in doubt."""
    return " ?" * doubtful


def _legend(doubtful: Iterable[bool]) -> str:
    return "; ?: not for a verdict" * any(doubtful)


def _ms(us: float | None) -> str:
    return NONE if us is None else f"{us / 1e3:.3g}"


def _rate(gb_s: float | None, ceiling_gb_s: float | None) -> str:
    """GB/s, with its share of the largest streaming read where one was measured."""
    if gb_s is None:
        return NONE
    return f"{gb_s:.4g}" + (f" ({gb_s / ceiling_gb_s:.0%})" if ceiling_gb_s else "")


def checks(found: Amdahl) -> Table:
    """Amdahl's law beside the measurement, a row a pair."""
    heads: tuple[str, ...] = (
        "step", "attention share", "served share f", "attention s", "s with append", "(13) speed-up",
        "measured", "at most", "residual us", "of the step",
    )  # fmt: skip
    heads += ("s alone", "(13) with it") if found.isolated else ()
    rows = []
    for pair in found.pairs:
        if pair.check:
            alone = found.isolated.get(pair.point.point_id)
            more = (
                (_times(alone.attention_speedup), _times(alone.predicted_speedup)) if alone else (NONE, NONE)
            )
            rows.append(
                (
                    title(pair.point),
                    *_check_cells(pair.check, _mark(bool(pair.doubts))),
                    *(more if found.isolated else ()),
                )
            )
    source = "modelled from measured parts; measured" + "; s alone: measured by sweep" * bool(found.isolated)
    source += _legend(bool(pair.doubts) for pair in found.pairs if pair.check)
    return Table("Amdahl's law, eq. (13), beside the measurement", source, heads, tuple(rows))


def _check_cells(check: Check, mark: str) -> tuple[str, ...]:
    return (
        f"{check.attention_share:.1%}",
        f"{check.served_share:.1%}",
        _times(check.attention_speedup),
        _times(check.with_append),
        _times(check.predicted_speedup) + mark,
        _times(check.speedup) + mark,
        _times(check.most_speedup) + mark,
        f"{check.residual_us:+.1f}" + mark,
        f"{check.residual:+.1%}" + mark,
    )


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def residuals(found: Amdahl) -> Table:
    """The residual of each pair by cause; a row's causes add up to it."""
    checked = [(pair, pair.check) for pair in found.pairs if pair.check]
    sums = [dict(causes(check)) for _, check in checked]
    names = [cause for cause in CAUSES if any(cause in one for one in sums)]
    rows = tuple(
        (
            title(pair.point),
            *(f"{one[cause]:+.1f}" if cause in one else NONE for cause in names),
            f"{check.residual_us:+.1f}" + _mark(bool(pair.doubts)),
        )
        for (pair, check), one in zip(checked, sums, strict=True)
    )
    heads = ("step", *names, "residual")
    source = "measured" + _legend(bool(pair.doubts) for pair, _ in checked)
    return Table("measured less predicted Quest step, us, by cause", source, heads, rows)


def what_if(found: Amdahl) -> Table:
    """Speed-ups of the whole step, a row a pair and a column a question; a star where it was measured."""
    whats = dict.fromkeys(answer.what for _, answers in found.what_ifs for answer in answers)
    rows = []
    for pair, answers in found.what_ifs:
        by_what = {answer.what: answer for answer in answers}
        rows.append(
            (
                title(pair.point),
                _times(pair.speedup) + _mark(bool(pair.doubts)),
                *(_answer(by_what.get(what)) for what in whats),
            )
        )
    source = "speed-ups; modelled: measured parts (4 bits: bytes of the weights); *: measured"
    source += _legend(answer.doubtful for _, answers in found.what_ifs for answer in answers)
    return Table("what if", source, ("step", "as it is", *whats), tuple(rows))


def _answer(answer: WhatIf | None) -> str:
    if answer is None:
        return NONE
    return _times(answer.speedup) + "*" * (answer.source == MEASURED) + _mark(answer.doubtful)


def batches(found: Amdahl) -> Table:
    """A row a step: tokens a second, latency a token, tokens in the cache and attended, attention's share."""
    heads = (
        "step", "policy", "active tokens a step", "cached tokens", "attended tokens", "tokens/s",
        "ms a token p50", "p95", "attention share",
    )  # fmt: skip
    rows = tuple(
        (
            title(one.point),
            one.point.policy,
            str(one.requests),
            format_count(one.cached_tokens),
            format_count(round(one.attended_tokens)),
            f"{one.tokens_s:.4g}",
            f"{one.ms_a_token:.3g}",
            f"{one.p95_ms:.3g}" if one.p95_ms else NONE,
            NONE if one.attention_share is None else f"{one.attention_share:.1%}",
        )
        for one in found.served
    )
    return Table(
        "batches and concurrency", "measured: clock; attended tokens: counted, mean over layers", heads, rows
    )


def forecast(found: Amdahl) -> Table:
    """Steps at lengths that were not run."""
    heads = ("step", "length", "dense ms", "Quest ms", "speed-up", "error left out", "from lengths")
    rows = tuple(
        (
            one.setting,
            format_count(one.seq_len) + ("" if one.inside else " (beyond)"),
            _ms(one.dense_us),
            _ms(one.quest_us),
            _times(one.speedup),
            NONE if one.error is None else f"{one.error:.1%}",
            ", ".join(map(format_count, one.lengths)),
        )
        for one in found.forecasts
    )
    return Table("lengths that were not run", "modelled: a line through the measured steps", heads, rows)


def paper(found: Amdahl) -> Table:
    """The paper's own table, and this run beside it."""
    if found.paper is None:
        return Table("", "", (), ())
    heads = ("weights", "length", "budget", "paper, ms", "speed-up", "here, ms", "speed-up")
    rows = tuple(
        (
            cell.label,
            format_count(cell.seq_len),
            str(cell.token_budget) if cell.token_budget else "full",
            f"{cell.paper_ms:.1f}",
            _times(cell.paper_speedup),
            NONE if cell.ms is None else f"{cell.ms:.3g}",
            _times(cell.speedup) + _mark(cell.doubtful),
        )
        for cell in found.paper.cells
    )
    name = f"beside the paper's own table ({found.paper.device}, {found.paper.unit})"
    source = f"the paper's: {found.paper.source}; here: measured: clock"
    source += _legend(cell.doubtful for cell in found.paper.cells)
    return Table(name, source, heads, rows)


def overlaps(found: Amdahl) -> Table:
    """Whether Quest's stages, and parts at all, ran beside the kernel before them, as a trace saw it."""
    rows = []
    for step in found.all_steps:
        if step.overlap_us is not None:
            parts = {part.part: part for part in step.parts}
            early = sum(part.overlapped or 0 for part in step.parts)
            cells = [_early(parts.get(name)) for name in QUEST_PARTS]
            share = step.overlap_us / step.us
            rows.append(
                (step_title(step.point), *cells, str(early), format_us(step.overlap_us), f"{share:.1%}")
            )
    heads = ("step", *QUEST_PARTS, "any part", "us at once", "of the step")
    title = "launches that began before the kernel before them had ended, of all"
    return Table(title, "measured: trace", heads, tuple(rows))


def _early(part: Part | None) -> str:
    return NONE if part is None or part.overlapped is None else f"{part.overlapped} of {part.launches}"


def linears(found: Amdahl) -> Table:
    """Which implementation multiplies by which matrix, once a weight format."""
    chosen: dict[tuple[str, int], Sequence[str]] = {}
    for one in found.all_steps:
        if one.linears and one.point.decode:
            chosen.setdefault((one.point.decode.weight_format, one.point.batch_size), one.linears)
    rows = tuple((f"{name}, batch {size}", "; ".join(said)) for (name, size), said in chosen.items())
    return Table(
        "matrix products",
        "measured: clock, each behind a small kernel",
        ("weights", "matrix: chosen kernel, its rate"),
        rows,
    )


MAKERS: Final = (speedups, checks, residuals, what_if, batches, overlaps, forecast, paper, linears)
"""Tables beside the breakdown, in reading order."""

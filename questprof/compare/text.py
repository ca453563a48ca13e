"""A comparison as a table, as Markdown for a CI summary, and as one JSON document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from questprof import terminal
from questprof.compare.outcome import ERROR_RATE, Comparison, Outcome, Verdict
from questprof.compare.spread import format_share
from questprof.compare.verdicts import FEWER
from questprof.model import Point
from questprof.points import labels
from questprof.samples import LEVEL
from questprof.units import count, format_us

ORDER: Final[tuple[Verdict, ...]] = ("slower", "faster", "undecided", "within spread", "same")
STYLES: Final[dict[Verdict, str]] = {"slower": "red", "faster": "green", "undecided": "yellow"}
COLUMNS: Final = (
    "point", "stage", "base us", "new us", "new / base", f"{LEVEL:.0%} interval", "limit", "verdict", "why",
)  # fmt: skip
"""Columns that no row exceeds; `limit` is what a difference must exceed to be called one."""
NUMBERS: Final = range(2, 7)
VERDICT: Final = 7
LONG_US: Final = 10.0
"""Stages from this length on are counted where the agreement of two runs is stated: those of
profiles/h200/grid.jsonl and grid-again.jsonl agree to 1.3 % from there on, shorter ones to 10 %."""
TABLE_ROWS: Final = 40
MARKDOWN_ROWS: Final = 15
NAMED: Final = 5
"""Points that are named in a sentence; of more, their number."""


def headline(outcome: Outcome) -> str:
    """The overall verdict and the counts, `new against base: slower; of 9 comparisons 1 slower, 8 same`."""
    counts = Counter(one.verdict for one in outcome.comparisons)
    parts = [f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]]
    fell = [f"of {count(len(outcome.comparisons), 'comparison')} {', '.join(parts)}"] if parts else []
    for verdict, says in (("wrong", "turned wrong"), ("undecided", "measured in base and not all in new")):
        lost = len({s.point.point_id for s in outcome.skipped if s.counts_as == verdict})
        fell += [f"{count(lost, 'point')} {says}"] if lost else []
    said = "; ".join(fell) or "nothing was comparable"
    return plain(f"{outcome.names[1]} against {outcome.names[0]}: {outcome.verdict}; {said}")


def statements(outcome: Outcome) -> list[str]:
    """What must be read with the figures: levels, spread between runs, what was left out, what is warm."""
    said = [*outcome.notes, _levels(outcome), *_alike(outcome)]
    said += [_spread(outcome), *_scattered(outcome), *_agreement(outcome)] if outcome.spread else []
    by_why: dict[str, list[Point]] = {}
    for skipped in outcome.skipped:
        by_why.setdefault(skipped.why, []).append(skipped.point)
    reasons = [f"not compared, {why}: {_named(points)}" for why, points in by_why.items()]
    said += reasons[:NAMED]
    said += [f"not compared for {len(reasons) - NAMED} more reasons"] if len(reasons) > NAMED else []
    if outcome.only_new:  # what base alone has is among the skipped
        said += [f"only in {outcome.names[1]}: {_named(outcome.only_new)}"]
    warm = Counter(one.stage for one in outcome.comparisons if one.cache_state == "warm")
    stages = ", ".join(f"{stage} at {count(number, 'point')}" for stage, number in warm.items())
    said += [f"warm, not cold (these times are of a cache): {stages}"] if warm else []
    return [plain(text) for text in said]


def plain(text: str) -> str:
    """One line without control characters: names come from a profile, which nobody vouches for."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _levels(outcome: Outcome) -> str:
    paired, total = sum(one.paired for one in outcome.comparisons), len(outcome.comparisons)
    if not total:
        return "no stage was timed on both sides"
    how = "round by round in one loop" if paired == total else f"{paired} of {total} stages in one loop"
    how = how if paired else "not taken in turn, in two runs or two loops"
    of_rounds, of_medians = "the median of the rounds' ratios", "the ratio of the medians"
    ratio = (
        of_rounds
        if paired == total
        else f"{of_rounds} there, elsewhere {of_medians}"
        if paired
        else of_medians
    )
    apart = "; past that, up to the spread between runs: within spread" if outcome.spread else ""
    return (
        f"samples {how}; new / base: {ratio}; "
        f"same: the whole interval lies within {format_share(outcome.threshold)}{apart}; "
        f"where nothing has changed, at most {ERROR_RATE:.0%} of such comparisons call any of "
        f"their {count(total, 'stage')} faster or slower (Holm){_assumed(outcome)}"
    )


def _assumed(outcome: Outcome) -> str:
    """What the stated rate of false alarms rests on; '' where it rests on nothing but the rounds."""
    if not outcome.spread:
        return ""
    spread = "as the baselines do" if outcome.spread.by_stage else "by less than the stated spread"
    return f", if runs differ {spread}"


def _alike(outcome: Outcome) -> list[str]:
    """That rounds count as fewer, where that weighs."""
    counted = [(one.independent, one.num_samples[0]) for one in outcome.comparisons if one.independent]
    rounds, taken = (math.fsum(column) for column in zip(*counted, strict=True)) if counted else (0.0, 0.0)
    if rounds >= FEWER * taken:
        return []
    return [
        "rounds that resemble the ones before them, as when a neighbour comes and stays, or that are too few "
        f"to show that they do not, count as fewer: {taken:.0f} as {rounds:.0f} (more rounds decide more)"
    ]


def _spread(outcome: Outcome) -> str:
    spread = outcome.spread
    assert spread is not None
    if spread.by_stage:
        each = ", ".join(f"{stage} {format_share(value)}" for stage, value in spread.by_stage.items())
        return f"between runs, measured from {spread.num_runs} baselines: {each}; less is not told from none"
    floor = f" + {spread.floor_us:g} us" if spread.floor_us else ""
    return (
        f"between runs, stated: {format_share(spread.stated)}{floor}; less is not told from none "
        "(three or more baselines, by --also or ci --baseline, measure it; one run of both sides needs none)"
    )


def _scattered(outcome: Outcome) -> list[str]:
    """Where the limit of a row is more than the spread between runs: the samples of one run say no more."""
    wider = sum(one.beyond > one.margin for one in outcome.comparisons)
    return [
        f"limit: the spread between runs, or how far the samples of either run lie apart (90th over 10th "
        f"percentile) where that is more, as in {count(wider, 'stage')}"
    ] * (wider > 0)


def _agreement(outcome: Outcome) -> list[str]:
    """How many medians agree within the threshold, of stages long enough for a clock."""
    ratios = [one.ratio for one in outcome.comparisons if one.base_us >= LONG_US]
    if not ratios:
        return []
    low, high = 1 / (1 + outcome.threshold), 1 + outcome.threshold
    share = sum(low <= ratio <= high for ratio in ratios) / len(ratios)
    return [
        f"medians within {format_share(outcome.threshold)} in {share:.1%} of the "
        f"{count(len(ratios), 'stage')} of {LONG_US:g} us and more"
    ]


def _named(points: Sequence[Point]) -> str:
    unique = list({point.point_id: point for point in points}.values())
    if len(unique) > NAMED:
        return f"{', '.join(_labels(unique)[:NAMED])} and {len(unique) - NAMED} more"
    return ", ".join(_labels(unique))


def _labels(points: Sequence[Point]) -> list[str]:
    """Labels that hold the policy even where it does not vary: a sentence has no table around it."""
    return [
        label if point.policy in label.split() else f"{label} {point.policy}"
        for point, label in zip(points, labels(points), strict=True)
    ]


def _rows(outcome: Outcome, most: int | None) -> tuple[list[tuple[Comparison, tuple[str, ...]]], int]:
    """The comparisons with their cells, those that differ first; and how many were left out."""
    names = labels([one.point for one in outcome.comparisons])
    both = sorted(zip(outcome.comparisons, names, strict=True), key=lambda pair: ORDER.index(pair[0].verdict))
    shown = both[:most]
    return [(one, _cells(one, name)) for one, name in shown], len(both) - len(shown)


def _cells(one: Comparison, name: str) -> tuple[str, ...]:
    return (
        plain(name),
        plain(one.stage),
        format_us(one.base_us),
        format_us(one.new_us),
        f"{one.ratio:.3f}x",
        f"{one.low:.3f} to {one.high:.3f}",
        format_share(one.beyond),
        one.verdict,
        plain(one.why),
    )


def table(outcome: Outcome, *, everything: bool = False) -> tuple[Table, str]:
    """A table of at most TABLE_ROWS rows unless `everything`, and a line on what it leaves out."""
    rows, more = _rows(outcome, None if everything else TABLE_ROWS)
    found = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for index, column in enumerate(COLUMNS):
        found.add_column(column, justify="right" if index in NUMBERS else "left", no_wrap=True)
    for one, cells in rows:
        found.add_row(
            *(Text(cell, style=STYLES.get(one.verdict, "") * (i == VERDICT)) for i, cell in enumerate(cells))
        )
    return found, f"{count(more, 'more row')} with --all" if more else ""


def print_table(console: Console, outcome: Outcome, *, everything: bool = False) -> None:
    """Print the table at its natural width (a terminal may wrap, nothing cuts a figure), then sentences."""
    found, more = table(outcome, everything=everything)
    if outcome.comparisons:
        terminal.print_table(console, found)
    for line in filter(None, (more, *statements(outcome), headline(outcome))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def markdown(outcome: Outcome, *, everything: bool = False) -> str:
    """One screen for a CI summary: the verdict, the rows that differ, and what must be read with them."""
    rows, more = _rows(outcome, None if everything else MARKDOWN_ROWS)
    lines = [f"### questprof compare: {outcome.verdict}", "", _escape(headline(outcome)), ""]
    if rows:
        lines += [_line(COLUMNS), "|---|---|---:|---:|---:|---:|---:|---|---|"]
        lines += [_line([_escape(cell) for cell in cells]) for _, cells in rows]
    lines += ["", f"{count(more, 'more row')}."] if more else []
    lines += ["", *(f"- {_escape(text)}" for text in statements(outcome))]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text of a profile as text: no markup and no cell of its own."""
    clean = text
    for mark in "\\|`*_[]<>#":
        clean = clean.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return clean


def document(outcome: Outcome) -> dict[str, Any]:
    """Everything, for `--format json`."""
    return {
        "verdict": outcome.verdict,
        "headline": headline(outcome),
        "counts": {verdict: sum(one.verdict == verdict for one in outcome.comparisons) for verdict in ORDER},
        "statements": statements(outcome),
        "false_alarm_rate": ERROR_RATE,
        "level": LEVEL,
        **msgspec.structs.asdict(outcome),
    }

"""What `recall` shows in a terminal of each trace: sentences, then tables of means over layers and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final, TypeVar

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from questprof.model import Profile, Record
from questprof.recall.ablations import ablations, mean_mass
from questprof.recall.answers.words import one_line
from questprof.recall.rows import (
    SHARES,
    HeadRow,
    PageRow,
    RecallRows,
    TraceInfo,
    page_rows,
    recall_records,
    trace_id,
)
from questprof.terminal import folded, print_prose, print_table
from questprof.units import count, format_count

Row = TypeVar("Row", HeadRow, PageRow)
MADE_UP: Final = "Made-up queries and keys: no statement about any real model."
NOTES: Final = (
    "Mass: dense softmax weight inside the picked pages. Means over queries, then over layers and heads, "
    "which weigh equally; the profile holds every layer and head.",
    "Slack, tau and regret in scaled logits. Ablations, one thing away at a time: query-aware (fixed pages "
    "for quest), summary (true maxima for the boxes of quest-open), tail rule (quest-open for quest), kernel "
    "(a gathered copy: largest difference of outputs; `sweep --backends questprof,gather` times it).",
)


def print_recall(console: Console, profile: Profile) -> None:
    """Sentences and tables of a recall profile, trace by trace."""
    traces = by_trace(profile)
    for one in traces:
        for line in summary_lines(one):
            print_prose(console, line)
        for heading, table, keys in tables(one):
            for number, part in enumerate(folded(console, table, keys)):
                print_table(console, part, heading + ", continued" * (number > 0))
        console.print()
    for note in NOTES if traces else ():
        print_prose(console, note, "dim")


def by_trace(profile: Profile) -> list[Profile]:
    """`profile` cut into one a trace, in the order of its records."""
    found: dict[str, list[Record]] = {}
    for record in recall_records(profile):
        found.setdefault(trace_id(record), []).append(record)
    return [replace(profile, records=tuple(records), joined=()) for records in found.values()]


def summary_lines(profile: Profile) -> list[str]:
    """What was evaluated of one trace, and whether everything checked held."""
    infos = _traces(profile)[:1]
    made_up = [MADE_UP for info in infos if info.synthetic]
    return [*made_up, *map(_evaluated, infos), checked(profile)]


def _traces(profile: Profile) -> list[TraceInfo]:
    return [rows.trace for rows in page_rows(profile).values() if rows.trace]


def _evaluated(info: TraceInfo) -> str:
    text = f" of {one_line(info.text)}" if info.text else ""
    positions = info.query_positions
    return (
        f"{one_line(info.model)}: {info.num_tokens} tokens{text}, "
        f"{count(len(positions), 'query', 'queries')} at {_span(positions)}, "
        f"{count(len(info.layers), 'layer')} x {count(len(info.heads), 'head')}."
    )


def _span(positions: Sequence[int]) -> str:
    one = positions[0] == positions[-1]
    return f"position {positions[0]}" if one else f"positions {positions[0]} to {positions[-1]}"


def checked(profile: Profile) -> str:
    """Whether the bounds hold and the paths agree, with the worst errors."""
    errors: dict[str, float] = {}
    records = recall_records(profile)
    for check in (check for record in records for check in record.checks):
        error = float("inf") if check.max_rel_err is None else check.max_rel_err
        errors[check.stage] = max(errors.get(check.stage, 0.0), error)
    broken = [stage for stage in ("bound (4)", "bound (7)") if _broken(records, stage)]
    said = (
        f"Broken: {' and '.join(broken)}." if broken else "Bounds (4) and (7) hold for every page and query."
    )
    if "score" not in errors:
        reason = next((info.why_float64 for info in _traces(profile)), "")
        return f"{said} Only float64 ran: {reason}."
    paths = {info.path for info in _traces(profile)}
    disagree = [s for s in ("score", "select", "mass", "output", "gather") if _broken(records, s)]
    ties = sum(record.rows.near_ties for record in records if record.rows)
    agreed = f"differ in {', '.join(disagree)}" if disagree else "agree"
    mass = f": mass within {errors['mass']:.1g}" if "mass" in errors else ", attention not compared"
    return (
        f"{said} The {', '.join(sorted(paths))} stages and float64 {agreed}{mass}, "
        f"picks equal but for {count(ties, 'near tie')}."
    )


def _broken(records: Sequence[Record], stage: str) -> bool:
    return any(check.stage == stage and not check.holds for record in records for check in record.checks)


def _heads(record: Record) -> Sequence[HeadRow]:
    return record.rows.heads if record.rows else ()


def tables(profile: Profile) -> list[tuple[str, Table, int]]:
    """(heading, table, columns that say what a row is of): mass by policy, ranking, slack, ablations.

    Of a trace whose profile was cut short before any policy's record, the slack alone.
    """
    slack = "Slack of the boxes, and the budget that a share of the mass needs", _slack_table(profile), 1
    if not _by_size_and_budget(profile):
        return [slack]
    return [
        ("Mass recall", _mass_table(profile), 2),
        ("Ranking of the pages", _ranking_table(profile), 3),
        slack,
        ("Ablations", _ablation_table(profile), 2),
    ]


def _table(names: Sequence[str]) -> Table:
    table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _by_size_and_budget(profile: Profile) -> dict[tuple[int, int], dict[str, Record]]:
    found: dict[tuple[int, int], dict[str, Record]] = {}
    for record in recall_records(profile):
        if record.point.policy != "dense":
            key = record.point.page_size, record.point.token_budget
            found.setdefault(key, {})[record.point.policy] = record
    return found


def _mass_table(profile: Profile) -> Table:
    cells = _by_size_and_budget(profile)
    policies = list(dict.fromkeys(name for by_policy in cells.values() for name in by_policy))
    first = policies[0]
    top = next((info.top_tokens for info in _traces(profile)), 0)
    own = (f"{first}:\nworst head", f"top-{top}\nrecall", "output\nerror", "union\n/ K", "tail\ntaken")
    table = _table(("page", "budget", "pages\nread", *policies, *own))
    for (page_size, budget), by_policy in cells.items():
        heads = _heads(by_policy[first])
        worst = min(heads, key=lambda row: row.mass_recall)
        table.add_row(
            str(page_size),
            format_count(budget),
            f"{_mean(heads, lambda row: row.pages_read):.4g}",
            *(f"{mean_mass(by_policy[name]):.4f}" if name in by_policy else "-" for name in policies),
            f"{worst.mass_recall:.4f}",
            f"{_mean(heads, lambda row: row.top_recall):.4f}",
            f"{_mean(heads, lambda row: row.output_rel_err):.4f}",
            f"{_mean(heads, lambda row: row.union_ratio):.2f}",
            f"{_mean(heads, lambda row: row.tail_taken):.3f}",
        )
    return table


def _ranking_table(profile: Profile) -> Table:
    """Regret of the policies that rank by bounds."""
    table = _table(
        (
            *("page", "budget", "policy", "missed\npages", "share\nof K", "regret", "tau_U", "tau_s"),
            *("slack of\nmissed", "slack of\nfalse", "pages more\nfor all"),
        )
    )
    for (page_size, budget), by_policy in _by_size_and_budget(profile).items():
        for name in ("quest", "quest-open"):
            if name in by_policy:
                heads = _heads(by_policy[name])
                missed, read = (_mean(heads, of) for of in (lambda r: r.missed_pages, lambda r: r.pages_read))
                table.add_row(
                    str(page_size),
                    format_count(budget),
                    name,
                    f"{missed:.1f}",
                    f"{missed / read:.0%}",
                    f"{_mean(heads, lambda row: row.regret):.3f}",
                    f"{_mean(heads, lambda row: row.tau_bound):.2f}",
                    f"{_mean(heads, lambda row: row.tau_true):.2f}",
                    _some(heads, lambda row: row.missed_slack),
                    _some(heads, lambda row: row.false_slack),
                    _some(heads, lambda row: row.swallowed_pages),
                )
    return table


def _slack_table(profile: Profile) -> Table:
    shares = [f"{share:.2f} mass\nquest | oracle" for share in SHARES]
    table = _table(("page", "slack", "p10", "p50", "p90", "p99", "of tails", "before RoPE", *shares))
    for (_, page_size), rows in page_rows(profile).items():
        pages = rows.pages
        table.add_row(
            str(page_size),
            *(
                f"{fmean(getattr(row, name) for row in pages):.2f}"
                for name in ("slack", "slack_p10", "slack_p50", "slack_p90", "slack_p99", "slack_tail")
            ),
            _some(pages, lambda row: row.slack_pre_rope),
            *(_needed(rows, number, page_size) for number in range(len(SHARES))),
        )
    return table


def _needed(rows: RecallRows, share: int, page_size: int) -> str:
    """Median tokens over layers, heads and queries, in quest's order and in the oracle's."""
    quest, oracle = (
        median(pages for row in rows.pages for pages in getattr(row, name)[share]) * page_size
        for name in ("needed_quest", "needed_oracle")
    )
    return f"{quest:.0f} | {oracle:.0f}"


def _ablation_table(profile: Profile) -> Table:
    table = _table(
        (
            "page",
            "budget",
            "quest",
            "query-aware\noff",
            "summary\ntight",
            "tail rule\noff",
            "kernel off\noutput",
        )
    )
    for row in ablations(profile):
        table.add_row(
            str(row.page_size),
            format_count(row.token_budget),
            "-" if row.quest is None else f"{row.quest:.4f}",
            _signed(None if row.query_aware is None else -row.query_aware),
            _signed(row.summary),
            _signed(None if row.tail_rule is None else -row.tail_rule),
            "-" if row.gather_error is None else f"{row.gather_error:.1g}",
        )
    return table


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _mean(heads: Sequence[HeadRow], of: Callable[[HeadRow], float]) -> float:
    return fmean(map(of, heads))


def _some(rows: Sequence[Row], of: Callable[[Row], float | None]) -> str:
    there = [value for value in map(of, rows) if value is not None]
    return f"{fmean(there):.2f}" if there else "-"

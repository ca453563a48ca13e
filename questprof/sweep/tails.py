"""What single steps took, in a terminal: p50, p95 and p99 of dense and Quest, and how they were timed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from questprof.model import Profile
from questprof.rows import Row, Stat
from questprof.sweep.display import by_setting
from questprof.terminal import plain_table, print_table
from questprof.timing.steps_source import steps_source
from questprof.units import format_count, format_us


def print_tails(console: Console, profile: Profile, rows: Sequence[Row]) -> None:
    """Print what is known of single steps, and how; nothing where no p95 is."""
    tables = [
        (heading, _tail_table(group))
        for heading, group in by_setting(rows).items()
        if any(stat and stat.p95 for row in group for stat in _sides(row))
    ]
    for heading, table in tables:
        print_table(console, table, ", ".join(filter(None, ("single steps, us", heading))))
    if tables:
        console.print(steps_source(profile.records), highlight=False, soft_wrap=True)


def _sides(row: Row) -> tuple[Stat | None, Stat | None]:
    return (row.fastest.stat if row.fastest else None, row.stats.get("quest"))


def _tail_table(rows: Sequence[Row]) -> Table:
    names = [f"{side} {share}" for side in ("dense", "quest") for share in ("p50", "p95", "p99")]
    table = plain_table("L", "budget", *names)
    for row in rows:
        cells = [cell for stat in _sides(row) for cell in _tail_cells(stat)]
        table.add_row(format_count(row.seq_len), format_count(row.token_budget), *cells)
    return table


def _tail_cells(stat: Stat | None) -> list[str]:
    if stat is None or stat.p95 is None:
        return ["-", "-", "-"]
    return [
        format_us(stat.median if stat.p50 is None else stat.p50),
        format_us(stat.p95),
        "-" if stat.p99 is None else format_us(stat.p99),
    ]

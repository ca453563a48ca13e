"""Source `formula`: the ledger of points that nobody counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from questprof import ledger
from questprof.bytecheck.grid import Asked, plan_points
from questprof.counts import Entry
from questprof.model import Point
from questprof.structs import Struct
from questprof.terminal import plain_table
from questprof.units import format_bytes, format_count

NUM_WORKERS = 132
"""Multiprocessors that the splits are planned for, as in `questprof formula`."""
STAGES = ("append", "score", "select", "attend", "quest", "dense")


class FormulaRow(Struct, frozen=True):
    """The ledger of one point; `read_ratio` is equation (12) with tiles, tails, unions and dtypes."""

    point: Point
    num_workers: int
    read_ratio: float
    ledger: tuple[Entry, ...]


def formula_rows(asked: Asked) -> tuple[FormulaRow, ...]:
    """A row a point of `asked` on a GPU."""
    return tuple(_row(point) for point in plan_points(asked, "cuda"))


def _row(point: Point) -> FormulaRow:
    entries = ledger.entries(point, NUM_WORKERS)
    return FormulaRow(point, NUM_WORKERS, ledger.read_ratio(entries), entries)


def formula_table(rows: Sequence[FormulaRow]) -> Table:
    """Reads of every stage and the read ratio, a row a point."""
    names = ("shape", "batch", "L", "S", "budget", "summary", *STAGES, "x read")
    table = plain_table(*names, left=("shape", "summary"))
    for row in rows:
        point, reads = row.point, ledger.stage_bytes(row.ledger)
        sizes = (len(point.lengths), *map(format_count, (point.seq_len, point.page_size, point.token_budget)))
        totals = (format_bytes(reads[stage].read) for stage in STAGES)
        cells = (point.shape.name, *map(str, sizes), point.summary_layout, *totals, f"{row.read_ratio:.5f}")
        table.add_row(*cells)
    return table

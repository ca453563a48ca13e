"""What a sweep shows in a terminal: rows as they come, then the closing table and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from questprof.grid import Grid
from questprof.model import Profile, Record
from questprof.rows import Row
from questprof.scan import scan_rows
from questprof.units import format_count, format_us

COLUMNS = (
    "L",
    "budget",
    "dense us\n(x floor)",
    "score",
    "select",
    "attend",
    "quest us\n(x floor)",
    "speed-up",
    "bytes\nratio",
    "check",
)
LIVE_ROWS = 12
WIDE = 160


class SweepDisplay:
    """Progress with time left and the newest rows; plain lines when there is no terminal."""

    def __init__(self, console: Console, total_weight: float) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=total_weight)
        self._profile: Profile | None = None
        # Refreshed between blocks only: a thread that draws would run beside the timed stages.
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._render)

    def __enter__(self) -> SweepDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, title: str) -> None:
        """Say which block is being measured."""
        self._progress.update(self._task, description=title)
        if self._console.is_terminal:
            self._live.refresh()
        else:
            self._console.print(title, highlight=False)

    def advance(self, weight: float, profile: Profile) -> None:
        """One block is done; `profile` holds everything so far."""
        self._profile = profile
        self._progress.advance(self._task, weight)
        if self._console.is_terminal:
            self._live.refresh()

    def _render(self) -> Group:
        rows = scan_rows(self._profile)[-LIVE_ROWS:] if self._profile else ()
        tables = [part for heading, table in scan_tables(rows) for part in (heading, table) if part]
        return Group(*tables, self._progress)


def scan_tables(rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """One table per shape, batch, page size, policy and data, with a heading that names what varies."""
    varying = [name for name in ("shape", "batch", "page", "policy", "data") if _varies(rows, name)]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        heading = ", ".join(f"{name} {_title(row, name)}" for name in varying)
        groups.setdefault(heading, []).append(row)
    return [(heading, scan_table(group)) for heading, group in groups.items()]


def scan_table(rows: Sequence[Row]) -> Table:
    """Rows that differ in length and budget alone."""
    table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    """Print every table at its natural width: a terminal may wrap a line, nothing cuts a figure."""
    for heading, table in scan_tables(rows):
        if heading:
            console.print(f"\n{heading}", style="bold", highlight=False)
        unlimited = console.options.update(width=WIDE)
        width = max(console.width, console.measure(table, options=unlimited).maximum)
        console.print(table, width=width, crop=False, soft_wrap=False)


def _title(row: Row, name: str) -> str:
    values = {
        "shape": row.shape,
        "batch": str(row.batch_size),
        "page": str(row.page_size),
        "policy": row.policy,
        "data": row.data,
    }
    return values[name]


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({_title(row, name) for row in rows}) > 1


def _cells(row: Row) -> tuple[str, ...]:
    check = row.check if row.status in ("ok", "wrong") else row.status
    return (
        format_count(row.seq_len),
        format_count(row.token_budget),
        _time(row.dense_us, row.dense_x_floor),
        _time(row.score_us),
        _time(row.select_us),
        _time(row.attend_us),
        _time(row.quest_us, row.quest_x_floor),
        "-" if row.speed_up is None else f"{row.speed_up:.2f}x{'' if row.usable else ' ?'}",
        "-" if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}",
        check,
    )


def _time(value: float | None, x_floor: float | None = None) -> str:
    if value is None:
        return "-"
    return format_us(value) + (f" ({x_floor:.2f})" if x_floor is not None else "")


def problems(records: Sequence[Record]) -> list[str]:
    """One line for every reason why points are not ok, and for points that are warm where cold was wanted."""
    found: dict[str, list[str]] = {}
    for record in records:
        point = record.point
        budget = f" budget {format_count(point.token_budget)}" if point.token_budget else ""
        where = f"{point.policy} {point.backend} length {format_count(point.seq_len)}{budget}"
        if record.status != "ok":
            found.setdefault(f"{record.status}: {record.reason}", []).append(where)
        for stage in ("dense", "quest"):
            if stage in record.timing and record.timing[stage].cache_state == "warm":
                found.setdefault(f"warm, not cold: {stage} touches too few bytes", []).append(where)
    return [f"{reason} ({', '.join(dict.fromkeys(places))})" for reason, places in found.items()]


SOURCES = (
    "Times: measured, clock, medians; dense is the fastest baseline. Floor: modelled, bytes of eq. (12) over "
    "the largest streaming read. Bytes ratio: modelled. ?: not for a verdict."
)


def advice(grid: Grid) -> str:
    """What to type for one's own case."""
    shape = "llama-3.1-8b" if grid.shapes[0].name == "llama-2-7b" else "llama-2-7b"
    return f"Your own case: questprof sweep --shape {shape} --batch 1,8,32 (or --shape path/to/config.json)"


def plain_console(*, stderr: bool = False) -> Console:
    """A console that does not cut tables when its output goes to a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)

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
        self._live = Live(console=console, auto_refresh=True, transient=True, get_renderable=self._render)

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
        if not self._console.is_terminal:
            self._console.print(title, highlight=False)

    def advance(self, weight: float, profile: Profile) -> None:
        """One block is done; `profile` holds everything so far."""
        self._profile = profile
        self._progress.advance(self._task, weight)

    def _render(self) -> Group:
        rows = scan_rows(self._profile)[-LIVE_ROWS:] if self._profile else ()
        return Group(scan_table(rows), self._progress)


def scan_table(rows: Sequence[Row]) -> Table:
    """The closing table; points that differ in more than length and budget get leading columns."""
    titles = [name for name in ("shape", "batch", "page", "policy", "data") if _varies(rows, name)]
    table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for name in (*titles, *COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_title(row, name) for name in titles), *_cells(row))
    return table


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
    """One line for every point that is not ok."""
    return [
        f"{r.status}: {r.point.policy} {r.point.backend} length {format_count(r.point.seq_len)}"
        f"{f' budget {format_count(r.point.token_budget)}' if r.point.token_budget else ''}: {r.reason}"
        for r in records
        if r.status != "ok"
    ]


def advice(grid: Grid) -> str:
    """What to type for one's own case."""
    shape = "llama-3.1-8b" if grid.shapes[0].name == "llama-2-7b" else "llama-2-7b"
    return f"Your own case: questprof sweep --shape {shape} --batch 1,8,32 (or --shape path/to/config.json)"


def plain_console(*, stderr: bool = False) -> Console:
    """A console that does not cut tables when its output goes to a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)

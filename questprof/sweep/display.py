"""What a sweep shows in a terminal: rows as they come, then the closing table and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from questprof.grid import NORMAL_DATA, Grid
from questprof.model import Profile, Record
from questprof.rows import Baseline, Row
from questprof.scan import scan_rows
from questprof.terminal import plain_table, print_table
from questprof.timing.energy import SOURCE, stage_energies
from questprof.units import format_bytes, format_count, format_us

COLUMNS = (
    "L",
    "budget",
    "dense us\n(x floor)",
    "x\nread",
    "score",
    "select",
    "attend",
    "quest us\n(x floor)",
    "speed-up\nof at most",
    "check",
)
LIVE_ROWS = 12


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
    """One table per setting other than length and budget, with a heading that names what varies."""
    return [(heading, scan_table(group)) for heading, group in by_setting(rows).items()]


def by_setting(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in length and budget alone, by a heading that names what else varies."""
    varying = [name for name in TITLES if _varies(rows, name)]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        heading = ", ".join(f"{name} {TITLES[name](row)}" for name in varying)
        groups.setdefault(heading, []).append(row)
    return groups


def scan_table(rows: Sequence[Row]) -> Table:
    """Rows that differ in length and budget alone."""
    table = plain_table(*COLUMNS)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    """Print every table at its natural width: a terminal may wrap a line, nothing cuts a figure."""
    for heading, table in [*scan_tables(rows), *baseline_tables(rows)]:
        print_table(console, table, heading)


def baseline_tables(rows: Sequence[Row]) -> list[tuple[str, Table]]:
    """Every dense baseline by length, in us with its `x read`, one table a cache; none where one is all.

    A star marks the fastest, which the speed-ups are over.
    """
    if all(len(row.baselines) < 2 for row in rows):
        return []
    varying = [name for name, title in CACHE_TITLES.items() if len(set(map(title, rows))) > 1]
    groups: dict[str, dict[int, Row]] = {}
    for row in rows:
        heading = ", ".join(
            ["every dense baseline", *(f"{name} {CACHE_TITLES[name](row)}" for name in varying)]
        )
        groups.setdefault(heading, {})[row.seq_len] = row
    return [
        (f"{heading}: us (x read)\n{_variants(group.values())}".rstrip(), _baseline_table(group))
        for heading, group in groups.items()
    ]


def _variants(rows: Iterable[Row]) -> str:
    """What ran for each baseline: `questprof cpu, sdpa torch-2.13.0`."""
    found = {b.name: b.variant for row in rows for b in row.baselines if b.variant not in b.name}
    return ", ".join(f"{name} {variant}" for name, variant in found.items())


def _baseline_table(rows: Mapping[int, Row]) -> Table:
    names = dict.fromkeys(b.name for row in rows.values() for b in row.baselines)
    table = plain_table("L", *names)
    for length, row in sorted(rows.items()):
        found = {baseline.name: baseline for baseline in row.baselines}
        table.add_row(format_count(length), *(_baseline(found.get(name), row) for name in names))
    return table


def _baseline(baseline: Baseline | None, row: Row) -> str:
    if baseline is None or baseline.stat is None:
        return baseline.status if baseline else "-"
    star = "*" if baseline is row.fastest else " "
    return _time(baseline.stat.median, baseline.x_read) + star


def print_energy(console: Console, records: Sequence[Record]) -> None:
    """Print what energy was counted, and how; nothing where none was."""
    if table := energy_table(records):
        print_table(console, table, "energy")
        console.print(SOURCE, highlight=False, soft_wrap=True)


def energy_table(records: Sequence[Record]) -> Table | None:
    """Energy a launch and a token and mean power, one line a stage; None where none was counted."""
    energies = stage_energies(records)
    if not energies:
        return None
    table = plain_table("L", "budget", "backend", "stage", "mJ a launch", "mJ a token", "W")
    for energy in energies:
        table.add_row(
            format_count(energy.seq_len),
            format_count(energy.token_budget) if energy.token_budget else "-",
            energy.backend,
            energy.stage,
            f"{1e3 * energy.joules_per_launch:.3g}",
            f"{1e3 * energy.joules_per_token:.4g}",
            f"{energy.watts:.0f}",
        )
    return table


TITLES: dict[str, Callable[[Row], str]] = {
    "shape": lambda row: row.shape,
    "batch": lambda row: str(row.batch_size),
    "page": lambda row: str(row.page_size),
    "policy": lambda row: row.policy,
    "kernels": lambda row: row.point.backend,
    "summary": lambda row: row.point.summary_layout,
    "pages": lambda row: row.point.page_order,
    "data": lambda row: row.data,
}
"""What sets a table apart from another, by the word in its heading."""
CACHE_TITLES = {name: TITLES[name] for name in ("shape", "batch", "page", "summary", "pages")} | {
    "keys": lambda row: "normal" if row.data in NORMAL_DATA else row.data
}
"""What sets a cache apart, and so what dense read."""


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({TITLES[name](row) for row in rows}) > 1


def _cells(row: Row) -> tuple[str, ...]:
    check = row.check if row.status in ("ok", "wrong") else row.status
    return (
        format_count(row.seq_len),
        format_count(row.token_budget),
        _time(row.dense_us, row.dense_x_floor),
        "-" if row.dense_x_read is None else f"{row.dense_x_read:.2f}",
        _time(row.score_us),
        _time(row.select_us),
        _time(row.attend_us),
        _time(row.quest_us, row.quest_x_floor),
        _speed_up(row),
        check,
    )


def _speed_up(row: Row) -> str:
    """`3.77x of 8.00x`, the second what the bytes allow; a question mark where it is not for a verdict."""
    if row.speed_up is None:
        return "-"
    most = f" of {row.most_speed_up:.2f}x" if row.most_speed_up else ""
    return f"{row.speed_up:.2f}x{most}{'' if row.usable else ' ?'}"


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
        where += f" {point.summary_layout}" * (point.summary_layout != "paired")
        if record.status != "ok":
            found.setdefault(f"{record.status}: {record.reason}", []).append(where)
        if record.pool_bytes and record.pool_bytes < point.pool_bytes:
            short = f"a pool of {format_bytes(record.pool_bytes)}, not {format_bytes(point.pool_bytes)}"
            found.setdefault(f"memory allowed {short}", []).append(where)
        for check in record.checks:
            if check.approximate and check.max_rel_err is not None:
                off = f"{where}: {check.max_rel_err:.2g}"
                found.setdefault(APPROXIMATE, []).append(off)
        for stage in ("dense", "quest"):
            if stage in record.timing and record.timing[stage].cache_state == "warm":
                found.setdefault(f"warm, not cold: {stage} touches too few bytes", []).append(where)
    return [f"{reason} ({', '.join(dict.fromkeys(places))})" for reason, places in found.items()]


APPROXIMATE = (
    "approximate: a decode that reports no page_ids is checked against nothing; its error against dense "
    "attention, the worst row's, is its quality"
)
SOURCES = (
    "Times: measured, clock, medians; dense is the fastest baseline. Floor: modelled, bytes of eq. (12) over "
    "the largest streaming read. x read: measured, dense over a streaming read of its bytes in its loop. "
    "At most: modelled, 1/rho of eq. (12). ?: not for a verdict."
)


def sources(rows: Sequence[Row]) -> str:
    """SOURCES where a row shows a time, otherwise ''."""
    return SOURCES if any(row.quest_us is not None or row.dense_us is not None for row in rows) else ""


def advice(grid: Grid) -> str:
    """What to type for one's own case."""
    shape = "llama-3.1-8b" if grid.shapes[0].name == "llama-2-7b" else "llama-2-7b"
    return f"Your own case: questprof sweep --shape {shape} --batch 1,8,32 (or --shape path/to/config.json)"

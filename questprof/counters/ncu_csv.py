"""Nsight Compute's raw page as CSV: one row a kernel (or range), columns found by name, units checked."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable

from questprof.errors import Exit, QuestprofError
from questprof.structs import Struct

KERNEL = "Kernel Name"
LABELS = "Push/Pop_Range"
"""Part of the name of the column with a row's open push/pop ranges: `thread  "domain:name:..."  ...`."""
ABSENT = ("", "n/a", "nan", "no data")

UNITS = {
    "byte": ("bytes", 1.0),
    "Kbyte": ("bytes", 1e3),
    "Mbyte": ("bytes", 1e6),
    "Gbyte": ("bytes", 1e9),
    "Tbyte": ("bytes", 1e12),
    "sector": ("sectors", 1.0),
    "Ksector": ("sectors", 1e3),
    "Msector": ("sectors", 1e6),
    "ns": ("time", 1.0),
    "nsecond": ("time", 1.0),
    "us": ("time", 1e3),
    "usecond": ("time", 1e3),
    "ms": ("time", 1e6),
    "msecond": ("time", 1e6),
    "s": ("time", 1e9),
    "second": ("time", 1e9),
}
"""Unit as printed -> what it measures and its size in base units (bytes, sectors, nanoseconds)."""

FIX = "Use the Nsight Compute that belongs to this CUDA, or report its version and this line."


class Row(Struct, frozen=True):
    """One profiled kernel or range."""

    kernel: str
    ranges: tuple[str, ...]
    """Names of the open ranges of the asked domain; empty where the report carries none."""
    metrics: dict[str, float]
    """In base units; a metric that the chip lacks is absent."""


def parse_raw(text: str, metrics: Iterable[str], domain: str) -> list[Row]:
    """Rows of `--csv --page raw` output, in launch order, with the wanted `metrics` and labels of `domain`.

    Raises QuestprofError (status 3) for output without a table, a unit that is unknown or measures something
    else than the metric's name says, and a value that is no number.
    """
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise _error("no table", 'the output has no line that begins with "ID"')
    header, *rest = csv.reader(lines[start:])
    if KERNEL not in header or not rest:
        raise _error("no table", f"the header lacks {KERNEL!r}, or no line of units follows it")
    units = dict(zip(header, rest[0], strict=False))
    if units[KERNEL]:
        raise _error("no units", "the line behind the header is a kernel's already")
    factors = {name: _factor(name, units[name]) for name in metrics if name in units}
    rows = [dict(zip(header, cells, strict=False)) for cells in rest[1:] if len(cells) == len(header)]
    return [
        Row(
            row[KERNEL],
            _labels(row, domain),
            {n: v * f for n, f in factors.items() if (v := _value(n, row[n])) is not None},
        )
        for row in rows
    ]


def _factor(metric: str, unit: str) -> float:
    """Size of `unit` in base units; a unit must fit the metric's name."""
    kind, factor = UNITS.get(unit, ("", 0.0))
    wanted = next((known for known in ("bytes", "sectors", "time") if f"__{known}" in metric.lower()), None)
    wanted = wanted or ("sectors" if "_sectors" in metric else kind)
    if not kind:
        raise _error(f"unit {unit!r} of {metric}", "it is unknown, and guessing would scale the figure")
    if kind != wanted:
        raise _error(f"unit {unit!r} of {metric}", f"it does not measure {wanted}")
    return factor


def _value(metric: str, cell: str) -> float | None:
    text = cell.replace(",", "").strip()
    if text.lower().removeprefix("(!)").strip() in ABSENT:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise _error(f"value {cell!r} of {metric}", "it is no number") from error
    if not math.isfinite(value) or value < 0:
        raise _error(f"value {cell!r} of {metric}", "a counter is neither negative nor infinite")
    return value


def _labels(row: dict[str, str], domain: str) -> tuple[str, ...]:
    cells = (cell for name, cell in row.items() if LABELS in name)
    found = (re.findall(rf'\b{re.escape(domain)}:([^:"]+)', cell) for cell in cells)
    return tuple(dict.fromkeys(name for names in found for name in names))


def _error(what: str, why: str) -> QuestprofError:
    return QuestprofError(f"Nsight Compute's report: {what}", why, FIX, Exit.MACHINE)

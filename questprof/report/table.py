"""The table under the length-scan figure: every column of the rows, a dash and its reason for the missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from questprof.crossover.tables import MEASURED, MODELLED
from questprof.rows import Row, Stat
from questprof.scan import EXTRA_STAGES, TIMED
from questprof.units import format_bytes, format_count, format_ratio, format_us


class Column(NamedTuple):
    """One column: where its value comes from, its head, its source, and how it is written."""

    field: str
    head: str
    source: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str]


def _field(field: str, head: str, source: str, text: Callable[[Any], str]) -> Column:
    return Column(field, head, source, lambda row: getattr(row, field), text)


def _times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x" if value < 100 else f"{value:.0f}x"


def _interval(value: tuple[float, float]) -> str:
    return f"{format_us(value[0])}–{format_us(value[1])}"


def _caches(row: Row) -> str | None:
    """`cold`, or which side is not."""
    warm = [f"{stage} {state}" for stage, state in row.cache_states.items() if state != "cold"]
    return ", ".join(warm) or ("cold" if row.cache_states else None)


_POINT: Final = "point"
_TIMES: Final = f"{MEASURED}, times in us"
_OVER_READ: Final = f"{MEASURED}, over a read of the same bytes"
_OVER_FLOOR: Final = f"{MEASURED} / {MODELLED}"
_HEAD: Final = (
    _field("seq_len", "length", _POINT, format_count),
    _field("token_budget", "budget", _POINT, str),
    _field("dense_us", "dense", _TIMES, format_us),
    _field("dense_backend", "fastest by", _TIMES, str),
    _field("quest_us", "quest", _TIMES, format_us),
    _field("speed_up", "speed-up", _TIMES, _times),
    *(
        _field(f"{stage}_us", stage, _TIMES, format_us)
        for stage in ("score", "select", "attend", "append", "append_kv")
    ),
)
_SPREAD: Final = (
    _field("dense_spread_us", "dense p10–p90", _TIMES, _interval),
    _field("quest_spread_us", "quest p10–p90", _TIMES, _interval),
)
_TAIL: Final = (
    _field("dense_x_floor", "dense / floor", _OVER_FLOOR, _times),
    _field("quest_x_floor", "quest / floor", _OVER_FLOOR, _times),
    _field("bytes_ratio", "bytes, eq. (12)", MODELLED, format_ratio),
    _field("most_speed_up", "speed-up at most", MODELLED, _times),
)
_READ: Final = _field("dense_x_read", "dense / read", _OVER_READ, _times)
_UNION: Final = _field("union_ratio", "union / K", "counted: page ids", format_ratio)
_CHECK: Final = Column(
    "check_ratio", "error / tolerance", "check", lambda row: row.check_ratio, lambda value: f"{value:.2g}"
)
_CACHES: Final = Column("cache_states", "caches", "check", _caches, str)
_STATUS: Final = _field("status", "status", "check", str)


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """Heads grouped by source and cells row by row, for the template.

    A cell is {field, text, raw (a number that its text rounds), reason, alarm}; notes end each row.
    """
    columns = _columns(rows)
    starts = [i == 0 or rows[i - 1].token_budget != row.token_budget for i, row in enumerate(rows)]
    groups: list[dict[str, Any]] = []
    for column in columns:
        if not groups or groups[-1]["source"] != column.source:
            groups.append({"source": column.source, "span": 0})
        groups[-1]["span"] += 1
    return {
        "groups": groups,
        "heads": [column.head for column in columns],
        "fields": [column.field for column in columns],
        "rows": [
            {
                "cells": [_cell(column, row) for column in columns],
                "notes": _notes(row),
                "status": row.status,
                "first": first,
            }
            for row, first in zip(rows, starts, strict=True)
        ],
    }


def _columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    names = dict.fromkeys(baseline.name for row in rows for baseline in row.baselines)
    union = (_UNION,) if any(row.point.shape.group_size > 1 for row in rows) else ()
    extras = [stage for stage in EXTRA_STAGES if any(stage in row.stats for row in rows)]
    tails = [column for column in _SLOW if any(column.value(row) for row in rows)]
    measured = (*map(_extra_column, extras), *map(_baseline_column, names), *_SPREAD, *tails)
    read = (_READ,) if any(row.dense_x_read for row in rows) else ()
    caches = (_CACHES,) if any(_caches(row) not in (None, "cold") for row in rows) else ()
    return (*_HEAD, *measured, *read, *_TAIL, *union, _CHECK, *caches, _STATUS)


def why_no_tails(rows: Sequence[Row]) -> str:
    """Why the table lacks p95 and p99, each reason once; '' where it has them all."""
    stats = [stat for row in rows for stat in _sides(row).values() if stat]
    return "; ".join(dict.fromkeys(stat.no_tail for stat in stats if stat.no_tail))


def _sides(row: Row) -> dict[str, Stat | None]:
    return {"dense": row.fastest.stat if row.fastest else None, "quest": row.stats.get("quest")}


def _tail_column(side: str, name: str) -> Column:
    def value(row: Row) -> float | None:
        stat = _sides(row)[side]
        return getattr(stat, name) if stat else None

    return Column(f"{side}_{name}_us", f"{side} {name}", _TIMES, value, format_us)


_SLOW: Final = tuple(
    _tail_column(side, name) for name in ("p50", "p95", "p99") for side in ("dense", "quest")
)


def _extra_column(stage: str) -> Column:
    """A stage in a state that was timed because it was asked for."""

    def value(row: Row) -> float | None:
        return row.stats[stage].median if stage in row.stats else None

    name, _, state = stage.rpartition("_")
    return Column(f"{stage}_us", f"{name} {state}", _TIMES, value, format_us)


def _baseline_column(name: str) -> Column:
    def value(row: Row) -> float | None:
        stats = [baseline.stat for baseline in row.baselines if baseline.name == name]
        return stats[0].median if stats and stats[0] else None

    return Column(f"dense:{name}", f"dense, {name}", _TIMES, value, format_us)


def _cell(column: Column, row: Row) -> dict[str, Any]:
    value = column.value(row)
    if value is None:
        return {
            "field": column.field,
            "text": "–",
            "raw": "",
            "reason": _reason(column, row),
            "alarm": False,
        }
    stage = column.field.removesuffix("_us")
    beyond = {"dense"} if row.fastest and row.fastest.alarm else set()
    beyond |= {f"dense:{baseline.name}" for baseline in row.baselines if baseline.alarm}
    alarm = stage in row.impossible or stage in beyond
    text = column.text(value) if value != math.inf else "not finite"
    return {
        "field": column.field,
        "text": text,
        "raw": _raw(value, text),
        "reason": "",
        "alarm": alarm,
    }


def _raw(value: Any, text: str) -> str:
    """A number in six digits where its cell shows it otherwise; '' for words."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    raw = str(value) if isinstance(value, int) else f"{value:.6g}"
    return "" if raw == text else raw


def _reason(column: Column, row: Row) -> str:
    if column.field.startswith("dense:"):
        name = column.field.removeprefix("dense:")
        found = [b for b in row.baselines if b.name == name]
        return ": ".join(filter(None, (found[0].status, found[0].reason))) if found else "not in this run"
    if column.field == "check_ratio":
        return "not checked"
    if column.field == "cache_states":
        return "not recorded"
    if column in _SLOW:
        stat = _sides(row)[column.field.partition("_")[0]]
        return stat.no_tail if stat else "not timed"
    if column.field.removesuffix("_us") in EXTRA_STAGES:
        return "not asked for at this point"
    side = "quest_us" if column.field.startswith("quest") else "dense_us"
    return row.missing.get(column.field) or row.missing.get(side, "")


def _notes(row: Row) -> str:
    """Why figures of this row are missing, each reason once, and what is wrong with the rest."""
    by_reason: dict[str, list[str]] = {}
    for field, reason in row.missing.items():
        if field == "dense_x_read":  # a loop without a read is common: the dash alone says so
            continue
        by_reason.setdefault(reason, []).append(field.removesuffix("_us").replace("_", " "))
    notes = [
        reason if len(fields) > 3 or "union ratio" in fields else f"{', '.join(fields)}: {reason}"
        for reason, fields in by_reason.items()
        if not (fields == ["union ratio"] and row.point.shape.group_size == 1)
    ]
    if row.trivial:
        notes.append("the budget covers the length: every page is read, and the summary too")
    if row.pool_bytes < row.point.pool_bytes and row.status in TIMED:
        notes.append(f"memory allowed a pool of {format_bytes(row.pool_bytes)}")
    if row.warm:
        notes.append(f"warm, not cold: {' and '.join(row.warm)} touched too few bytes")
    if row.status == "unstable":
        notes.append(": ".join(filter(None, ("unstable, kept out of the verdict", row.reason))))
    if row.check == "approximate" or (row.check == "wrong" and row.status != "wrong"):
        notes.append(row.check_detail)
    return "; ".join(dict.fromkeys(notes))

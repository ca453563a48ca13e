"""Every dense baseline and summary layout side by side: one table a cache, a line a length and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from questprof.grid import NORMAL_DATA
from questprof.model import Data, Point, Profile
from questprof.points import kernels, setting
from questprof.report.scanned import rows_of
from questprof.report.section import Block
from questprof.rows import Baseline, Row
from questprof.structs import canonical_json
from questprof.units import format_count, format_us

MISSING = {"text": "–", "best": False}


def build(profile: Profile, prefix: str) -> Block | None:
    """The section, or None where there is one baseline and one way to run Quest."""
    rows = rows_of(profile)
    groups: dict[bytes, list[Row]] = {}
    for row in rows:
        groups.setdefault(canonical_json(_cache(row.point)), []).append(row)
    tables = [table for group in groups.values() if (table := _table(group))]
    return Block("baselines.html", {"tables": tables}) if tables else None


def _cache(point: Point) -> Point:
    """What the rows of one table share: all but lengths, budgets and the ways of `_way`."""
    keys: Data = "independent" if point.data in NORMAL_DATA else point.data
    alike = replace(point, seq_len=0, token_budget=0, data=keys, summary_layout="paired")
    return replace(alike, policy="quest", backend="questprof", variant="")


def _way(row: Row) -> str:
    """How Quest ran: kernels, policy, summary layout, and what the heads of a group ask."""
    point = row.point
    queries = f", {point.data} queries" if point.shape.group_size > 1 and point.data in NORMAL_DATA else ""
    policy = f", {point.policy}" if point.policy != "quest" else ""
    return f"{kernels(point)}, {point.summary_layout}{policy}{queries}"


def _table(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Heads and lines, or None where nothing stands beside another."""
    variants = {b.name: b.variant for row in reversed(rows) for b in row.baselines}
    names = tuple(dict.fromkeys(b.name for row in rows for b in row.baselines))
    ways = tuple(dict.fromkeys(map(_way, rows)))
    if len(names) < 2 and len(ways) < 2:
        return None
    lengths: dict[int, list[Row]] = {}
    for row in rows:
        lengths.setdefault(row.seq_len, []).append(row)
    return {
        "title": setting(_cache(rows[0].point), queries=False),
        "baselines": [{"name": name, "variant": variants[name]} for name in names],
        "ways": list(ways),
        "lengths": [_length(found, names, ways) for _, found in sorted(lengths.items())],
    }


def _length(rows: Sequence[Row], names: Sequence[str], ways: Sequence[str]) -> dict[str, Any]:
    """One length: the baselines, and a line a budget. Layouts have loops of their own: a baseline's figure
    is from the first one that has it.
    """
    baselines = {b.name: b for row in reversed(rows) for b in row.baselines}
    fastest = {row.dense_backend for row in rows}
    budgets: dict[int, dict[str, Row]] = {}
    for row in rows:
        budgets.setdefault(row.token_budget, {})[_way(row)] = row
    return {
        "length": format_count(rows[0].seq_len),
        "baselines": [_baseline(baselines.get(name), name in fastest) for name in names],
        "budgets": [
            {"budget": budget, "cells": _quests(found, ways)} for budget, found in sorted(budgets.items())
        ],
    }


def _quests(found: Mapping[str, Row], ways: Sequence[str]) -> list[dict[str, Any]]:
    best = max((row.speed_up or 0 for row in found.values() if row.usable), default=0)
    return [cell for way in ways for cell in _quest(found.get(way), best)]


def _baseline(baseline: Baseline | None, fastest: bool) -> dict[str, Any]:
    """`123 (1.05)`: us and x read."""
    if baseline is None or baseline.stat is None:
        return MISSING | {"reason": _why(baseline)}
    read = f" ({baseline.x_read:.2f})" if baseline.x_read else ""
    return {"text": format_us(baseline.stat.median) + read, "best": fastest, "reason": baseline.alarm}


def _why(baseline: Baseline | None) -> str:
    if baseline is None:
        return "not in this run"
    return ": ".join(filter(None, (baseline.status, baseline.reason)))


def _quest(row: Row | None, best: float) -> list[dict[str, Any]]:
    """us; speed-up with what it is over; what the bytes allow."""
    if row is None:
        return [MISSING | {"reason": "not in this run"}] * 3
    reasons = [row.missing.get(name, "") for name in ("quest_us", "speed_up", "most_speed_up")]
    texts = [
        format_us(row.quest_us) if row.quest_us else "–",
        f"{row.speed_up:.2f}x{'' if row.usable else ' ?'}" if row.speed_up else "–",
        f"{row.most_speed_up:.2f}x" if row.most_speed_up else "–",
    ]
    bests = (False, row.usable and row.speed_up == best, False)
    return [
        {"text": text, "best": is_best, "reason": reason}
        for text, is_best, reason in zip(texts, bests, reasons, strict=True)
    ]

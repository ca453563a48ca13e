"""Profiles that together fill every section of the page."""

from __future__ import annotations

from typing import Any

from amdahl_steps import dense as dense_step
from amdahl_steps import quest as quest_step
from bytes_records import traced
from msgspec.structs import replace
from planted_recall import Planted
from test_roofline_section import ROOFS, with_bytes

from profiles import GQA_SHAPE, SHAPE, dense, profile, quest, two_baselines
from questprof.model import Energy, Point, Profile


def everything() -> list[Profile]:
    """A sweep with pages, batches, groups and energy, its bytes and steps; a recall; and the sweep again."""
    settings: tuple[dict[str, Any], ...] = ({}, {"page_size": 32}, {"batch_size": 4}, {"shape": GQA_SHAPE})
    records = [r for more in settings for r in two_baselines(**more) if r.point.seq_len in (8192, 32768)]
    records += [
        with_bytes(dense(8192, 8.4, seed=1, energy={"dense": Energy(8.0, 2.0, 4)}), 4194304),
        with_bytes(quest(8192, (2.0, 2.0, 4.0), seed=1, energy={"quest": Energy(4.0, 2.0, 4)}), 1_000_000),
    ]
    records += [traced(Point(SHAPE, 8192, token_budget=1024, page_size=size)) for size in (16, 32)]
    sweep = profile(*records, dense_step(), quest_step(), roofs=ROOFS)
    again = profile(*(r for r in records if r.kind == "sweep"), started_at="2026-01-03T03:04:05+00:00")
    planted = Planted(layers=(0, 3), budgets=(64, 128), policies=("quest",))
    named = (("run.jsonl", sweep), ("recall.jsonl", planted.profile()), ("again.jsonl", again))
    return [replace(one, name=name) for name, one in named]


SECTIONS = (
    "length-scan", "plane", "baselines", "bytes", "roofline", "amdahl", "batch", "gqa", "energy",
    "environment",
)  # fmt: skip
"""Of the first profile."""

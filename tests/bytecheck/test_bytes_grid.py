"""Which points are counted: named grids, corners, and what a trace leaves out to stay short."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from questprof.bytecheck.grid import (
    GRIDS,
    LONGEST_TRACE,
    TRACED_KV_HEADS,
    Asked,
    beside_hardware,
    heads_note,
    once,
    plan_points,
    traced_shape,
)
from questprof.errors import QuestprofError
from questprof.model import Point, Shape, shape_presets

LLAMA, GROUPED = shape_presets()["llama-2-7b"], shape_presets()["llama-3.1-8b"]


def keys(points: tuple[Point, ...]) -> list[tuple[object, ...]]:
    """What makes a cache, of every point."""
    return [
        (p.shape.name, p.lengths, p.page_size, p.summary_layout, p.data, p.seed, p.batch_size) for p in points
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("grid", list(GRIDS))
def test_points_of_one_cache_stand_together_and_each_once(grid: str, device: str) -> None:
    points = plan_points(Asked((LLAMA, GROUPED), grid), device)  # type: ignore[arg-type]
    assert len({point.point_id for point in points}) == len(points)
    caches = [key for key, _ in groupby(keys(points))]
    assert len(set(caches)) == len(caches)
    assert {point.device for point in points} == {device}


def test_the_series_is_three_pages_at_one_budget_from_2k() -> None:
    points = plan_points(Asked((LLAMA,), "series", summary_layouts=("paired",)), "cuda")
    assert {(p.page_size, p.token_budget) for p in points} == {(8, 2048), (16, 2048), (32, 2048)}
    assert sorted({p.seq_len for p in points}) == [2048 << i for i in range(7)]
    assert len(points) == 3 * 7


def test_the_plane_is_pages_by_budgets_by_lengths() -> None:
    points = plan_points(Asked((LLAMA,), "plane", summary_layouts=("paired",)), "cuda")
    assert len(points) == 7 * 3 * 3
    assert {p.shape for p in points} == {LLAMA}


def test_options_replace_what_the_named_grid_has() -> None:
    asked = Asked(
        (LLAMA,), "plane", lengths=(4096,), page_sizes=(16,), budgets=(8192,), batch_sizes=(2, 4), seed=3
    )
    found = {(p.seq_len, p.page_size, p.token_budget, p.batch_size, p.seed, p.summary_layout)
             for p in plan_points(asked, "cuda")}  # fmt: skip
    assert found == {(4096, 16, 8192, b, 3, layout) for b in (2, 4) for layout in ("paired", "transposed")}


def test_the_default_layout_is_the_faster_of_each_shape() -> None:
    points = plan_points(Asked((LLAMA, GROUPED), lengths=(2048,), budgets=(512,), summary_layouts=()), "cuda")
    assert {(p.shape.name, p.summary_layout) for p in points} == {
        ("llama-2-7b", "transposed"),
        ("llama-3.1-8b", "paired"),
    }


def test_corners_have_every_term_of_its_own() -> None:
    points = plan_points(Asked((LLAMA,), corners=True), "cpu")
    grouped = [p for p in points if p.shape.group_size > 1]
    assert {p.data for p in grouped} == {"independent", "shared"}
    assert {p.summary_layout for p in grouped} == {"paired", "transposed"}
    assert any(p.seq_len % p.page_size for p in points)
    assert any(p.page_size & (p.page_size - 1) for p in points)
    assert any(p.policy == "quest-open" and p.seq_len % p.page_size for p in points)
    assert any(0 in p.lengths and len(set(p.lengths)) > 2 for p in points)
    assert all(len(p.lengths) == p.batch_size and max(p.lengths) == p.seq_len for p in points)


def test_corners_keep_the_layouts_that_were_asked_for() -> None:
    points = plan_points(Asked((LLAMA,), summary_layouts=("paired",), corners=True), "cuda")
    assert {p.summary_layout for p in points} == {"paired"}


@given(st.integers(1, 40), st.integers(1, 12))
def test_a_traced_shape_keeps_its_group(num_kv_heads: int, group: int) -> None:
    shape = Shape("any", num_kv_heads * group, num_kv_heads, 128)
    traced = traced_shape(shape)
    assert traced.group_size == group
    assert traced.num_kv_heads == min(TRACED_KV_HEADS, num_kv_heads)
    assert traced_shape(traced) == traced


def test_a_trace_takes_few_heads_unless_heads_were_asked_for() -> None:
    few = plan_points(Asked((LLAMA,)), "cpu")
    every = plan_points(Asked((LLAMA,), all_heads=True), "cpu")
    assert {p.shape.num_qo_heads for p in few} == {2}
    assert {p.shape.num_qo_heads for p in every} == {32}
    assert heads_note([LLAMA]) == (
        "traced over 2 of 32 query heads of llama-2-7b: every head moves the same bytes"
    )
    assert heads_note([traced_shape(LLAMA)]) == ""


@pytest.mark.parametrize("lengths", [None, (2048, 4096, 131072), (131072,)])
def test_beside_hardware_a_trace_is_short(lengths: tuple[int, ...] | None) -> None:
    asked = Asked((LLAMA,), lengths=lengths, page_sizes=(16,), budgets=(1024,), batch_sizes=(1, 8))
    points = beside_hardware(asked)
    assert max(p.seq_len for p in points) <= LONGEST_TRACE
    assert {p.device for p in points} == {"cpu"}
    assert {p.batch_size for p in points} == {1}
    if lengths and min(lengths) <= LONGEST_TRACE:
        assert {p.seq_len for p in points} == {4096}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": "plain"}, "grid 'plain': it is unknown"),
        ({"budgets": (8,), "page_sizes": (16,)}, "the token budget is smaller than a page"),
        ({"page_sizes": (256,)}, "the paged cache takes pages of 1 to 128"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(QuestprofError, match=words):
        plan_points(Asked((LLAMA,), **change), "cuda")  # type: ignore[arg-type]


def test_once_keeps_the_first_of_equals() -> None:
    a, b = Point(LLAMA, 64), Point(LLAMA, 128)
    assert once([a, b, replace(a), b]) == (a, b)

"""Cutting traced activities into parts, worked by hand."""

from __future__ import annotations

import pytest

from questprof.decode.trace import Activity, cut


def activities(*spans_us: tuple[float, float]) -> list[Activity]:
    return [
        Activity(f"k{i}", 5000 + round(start * 1e3), 5000 + round(end * 1e3))
        for i, (start, end) in enumerate(spans_us)
    ]


def test_kernels_belong_to_parts_by_their_order() -> None:
    # 0-2 norm, gap 1, 3-7 qkv (two kernels, 1 apart), norm again 7-8.
    step = cut(activities((0, 2), (3, 4), (5, 7), (7, 8)), [("norm", 1), ("qkv", 2), ("norm", 1)])
    assert step.parts_us == pytest.approx({"norm": 3.0, "qkv": 3.0})
    assert step.launches == {"norm": 2, "qkv": 2}
    assert step.gaps_us == pytest.approx(2.0)
    assert step.total_us == pytest.approx(8.0)
    assert step.overlap_us == 0
    assert not step.overlapped


def test_a_kernel_that_starts_early_counts_from_the_end_of_those_before() -> None:
    # qkv runs from 1 on beside norm, which ends at 4; the third ends before the second does.
    step = cut(activities((0, 4), (1, 9), (8, 8.5)), [("norm", 1), ("qkv", 1), ("rope", 1)])
    assert step.parts_us == pytest.approx({"norm": 4.0, "qkv": 5.0, "rope": 0.0})
    assert step.overlap_us == pytest.approx(3.0 + 0.5)
    assert step.overlapped == {"qkv": 1, "rope": 1}
    assert step.total_us == pytest.approx(9.0)
    assert sum(step.parts_us.values()) + step.gaps_us == pytest.approx(step.total_us)


def test_another_number_of_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="2 activities were traced, the parts launch 3"):
        cut(activities((0, 1), (1, 2)), [("norm", 1), ("qkv", 2)])


def test_activities_out_of_order_are_sorted() -> None:
    first, second = activities((0, 1), (2, 5))
    step = cut([second, first], [("norm", 1), ("qkv", 1)])
    assert step.parts_us == pytest.approx({"norm": 1.0, "qkv": 3.0})

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.counters.ncu_csv import Row
from questprof.counters.ncu_plan import (
    NOT_COUNTED,
    Ended,
    Measured,
    Mismatch,
    Plan,
    Range,
    base_name,
    match,
    read_plan,
)

DONE = Ended()


def rows(*names: str, labels: tuple[str, ...] = ()) -> list[Row]:
    each = labels or ("",) * len(names)
    return [Row(name, (label,) if label else (), {}) for name, label in zip(names, each, strict=True)]


def plan(*ranges: Range, ended: Ended | None = DONE) -> Plan:
    return Plan(ranges, (), ended)


TWO = (
    Range("score", ("score_paired",)),
    Range("gather", ("_Z4copyPf", NOT_COUNTED, "_Z4copyPf", "dense_kernel")),
)


def test_order_and_names_decide():
    found = match(rows("score_paired", "dense_kernel", "copy", "copy"), plan(*TWO), "isolated")
    assert [[row.kernel for row in own] for own in found] == [
        ["score_paired"],
        ["dense_kernel", "copy", "copy"],
    ]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=0, max_size=3), max_size=8), st.data())
def test_every_range_gets_its_own_rows_and_one_lost_row_is_never_a_shift(kernels, data):
    ranges = [Range(f"stage{i}", tuple(names)) for i, names in enumerate(kernels)]
    listed = [Row(name, (), {"number": i}) for i, names in enumerate(kernels) for name in names]
    found = match(listed, plan(*ranges), "isolated")
    assert [[row.metrics["number"] for row in own] for own in found] == [
        [i] * len(names) for i, names in enumerate(kernels)
    ]
    if listed:
        lost = data.draw(st.integers(0, len(listed) - 1))
        with pytest.raises(Mismatch):
            match(listed[:lost] + listed[lost + 1 :], plan(*ranges), "isolated")


def test_another_kernel_is_named():
    with pytest.raises(Mismatch, match=r"range 0 \(score\) launches score_paired, not elementwise"):
        match(rows("elementwise", "copy", "copy", "dense_kernel"), plan(*TWO), "isolated")


def test_missing_and_left_over_rows_are_named():
    with pytest.raises(Mismatch, match=r"range 1 \(gather\) launches 3 kernels, the report ends after 1"):
        match(rows("score_paired", "copy"), plan(*TWO), "isolated")
    with pytest.raises(Mismatch, match="1 kernels more than launched on purpose: fill"):
        match(rows("score_paired", "fill"), plan(TWO[0]), "isolated")


@pytest.mark.parametrize("ended", [None, Ended("RuntimeError: an illegal memory access")])
def test_a_worker_that_was_stopped_keeps_its_complete_ranges(ended):
    found = match(rows("score_paired", "copy"), plan(*TWO, ended=ended), "isolated")
    assert len(found) == 1


def test_a_label_that_says_otherwise_is_a_mismatch():
    with pytest.raises(Mismatch, match="range 0 is score, its kernel score_paired is labelled dense"):
        match(rows("score_paired", labels=("dense",)), plan(TWO[0]), "isolated")


def test_unknown_kernels_are_told_by_their_labels():
    ranges = (Range("score", ("score_paired",)), Range("attend"), Range("dense", ("dense_kernel",)))
    listed = rows(
        "score_paired", "mine", "mine_too", "dense_kernel", labels=("score", "attend", "attend", "dense")
    )
    assert [len(own) for own in match(listed, plan(*ranges), "isolated")] == [1, 2, 1]
    with pytest.raises(Mismatch, match="carries no labels"):
        match(rows("score_paired", "mine", "dense_kernel"), plan(*ranges), "isolated")
    with pytest.raises(Mismatch, match="follow one another"):
        match(listed, plan(ranges[0], Range("attend"), Range("attend")), "isolated")


def test_a_pipelined_range_is_one_row_whatever_it_launches():
    chain = (Range("calibration", ("read_kernel",)), Range("quest", ("score_paired", "select_attend_kernel")))
    found = match(rows("range", "range", labels=("calibration", "quest")), plan(*chain), "pipelined")
    assert [len(own) for own in found] == [1, 1]
    with pytest.raises(Mismatch):
        match(rows("range", "range", labels=("quest", "calibration")), plan(*chain), "pipelined")


def test_a_plan_is_read_back_without_its_torn_end():
    lines = [Range("score", None), Measured("id", "cuda", (0,), 1.5, 0.5, "wrong", "wrong: attend"), DONE]
    encoded = [msgspec.json.encode(line).decode() for line in lines]
    assert read_plan(encoded) == Plan((lines[0],), (lines[1],), DONE)
    assert read_plan([encoded[0], encoded[1][:-3]]) == Plan((lines[0],), (), None)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("attend_kernel", "attend_kernel"),
        ("attend_kernel(AttentionArguments)", "attend_kernel"),
        (
            "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *)",
            "vectorized_gather_kernel",
        ),
        ("void copy<float>(float *)", "copy"),
    ],
)
def test_the_base_name_is_part_of_the_mangled_one(printed, name):
    assert base_name(printed) == name

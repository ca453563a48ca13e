"""Equations (1)-(15): values worked by hand, properties on drawn arrays, and what they refuse."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from questprof import equations
from questprof.equations import (
    EQUATIONS,
    eq01_box,
    eq02_dim_bounds,
    eq03_page_bound,
    eq04_bound_slack,
    eq05_worked_page,
    eq06_selected_output,
    eq07_error_slack,
    eq08_append_key,
    eq09_dense_bytes,
    eq10_index_bytes,
    eq11_selected_bytes,
    eq12_read_ratio,
    eq13_time_ratio,
    eq14_update_tail,
    eq15_widened_box,
    picked_row_share,
    transposed_read_ratio,
)
from questprof.errors import Exit, QuestprofError

EPS = float(np.finfo(np.float64).eps)
NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def pages(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A query [d] and the keys [S, d] of one page."""
    shape = draw(array_shapes(min_dims=2, max_dims=2, max_side=20))
    return draw(arrays(np.float64, shape[1:], elements=NUMBERS)), draw(
        arrays(np.float64, shape, elements=NUMBERS)
    )


@st.composite
def attention_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [L], values [L, d] and a mask [L] that selects something."""
    length, dim = draw(st.integers(1, 24)), draw(st.integers(1, 6))
    selected = draw(arrays(np.bool_, length))
    selected[draw(st.integers(0, length - 1))] = True
    logits = draw(arrays(np.float64, length, elements=st.floats(-30, 30)))
    return logits, draw(arrays(np.float64, (length, dim), elements=st.floats(-100, 100))), selected


# (1)-(5): boxes and bounds.


@settings(deadline=None)
@given(pages())
def test_eq04_slack_is_never_negative(page: tuple[np.ndarray, np.ndarray]) -> None:
    q, keys = page
    slack = eq04_bound_slack(q, keys)
    assert slack >= 0  # without a tolerance: equal products, equal order of summation
    exact_bound = math.fsum(max(a * b, a * c) for a, b, c in zip(q, keys.min(0), keys.max(0), strict=True))
    exact_best = max(math.fsum(a * b for a, b in zip(q, key, strict=True)) for key in keys)
    scale = float(np.abs(q * keys).sum(axis=1).max()) + float(np.abs(q * eq01_box(keys)).sum(axis=1).max())
    assert float(slack) == pytest.approx(exact_bound - exact_best, abs=32 * EPS * scale + 1e-300)


@settings(deadline=None)
@given(pages(), st.randoms())
def test_box_does_not_depend_on_the_order_of_keys(
    page: tuple[np.ndarray, np.ndarray], random: Random
) -> None:
    _, keys = page
    order = list(range(len(keys)))
    random.shuffle(order)
    for one, other in zip(eq01_box(keys), eq01_box(keys[order]), strict=True):
        assert np.array_equal(one, other)


@settings(deadline=None)
@given(pages())
def test_appending_key_by_key_gives_the_box_of_all(page: tuple[np.ndarray, np.ndarray]) -> None:
    _, keys = page
    empty = (np.full(keys.shape[1], np.inf), np.full(keys.shape[1], -np.inf))
    by_eq08, by_eq14 = empty, None
    for count, key in enumerate(keys, start=1):
        by_eq08, by_eq14 = eq08_append_key(*by_eq08, key), eq14_update_tail(by_eq14, key)
        for batch, one, other in zip(eq01_box(keys[:count]), by_eq08, by_eq14, strict=True):
            assert np.array_equal(batch, one)
            assert np.array_equal(batch, other)


def test_boxes_and_bounds_broadcast_over_pages() -> None:
    keys = np.random.default_rng(0).standard_normal((7, 5, 3))
    q = np.array([1.0, -2.0, 0.5])
    m, M = eq01_box(keys)
    assert m.shape == M.shape == (7, 3)
    assert eq02_dim_bounds(q, m, M).shape == (7, 3)
    bounds, slacks = eq03_page_bound(q, m, M), eq04_bound_slack(q, keys)
    assert bounds.shape == slacks.shape == (7,)
    for page in range(7):
        assert bounds[page] == pytest.approx(
            1.0 * M[page, 0] - 2.0 * m[page, 1] + 0.5 * M[page, 2], rel=1e-14
        )
        assert slacks[page] == pytest.approx(bounds[page] - (keys[page] @ q).max(), rel=1e-12)


def test_a_nan_key_makes_box_and_bound_nan() -> None:
    m, M = eq01_box([[1.0, np.nan], [2.0, 3.0]])
    assert np.isnan([m[1], M[1]]).all()
    assert np.isnan(eq03_page_bound([1.0, 1.0], m, M))


def test_eq05_agrees_with_eqs_1_to_4() -> None:
    page = eq05_worked_page()
    m, M = eq01_box(page.keys)
    assert (tuple(m), tuple(M)) == (page.m, page.M)
    assert eq03_page_bound(page.q, m, M) == page.bound
    assert tuple(np.asarray(page.keys) @ np.asarray(page.q)) == page.dots
    assert eq04_bound_slack(page.q, page.keys) == 0.0


def test_eq15_bounds_keys_that_quantisation_moved() -> None:
    keys = np.random.default_rng(1).standard_normal((16, 8))
    step = 0.25
    stored = np.round(keys / step) * step
    q = np.random.default_rng(2).standard_normal(8)
    m, M = eq01_box(keys)
    assert (stored < m).any()  # the box of the original keys does not hold the stored ones
    low, high = eq15_widened_box(m, M, step / 2)
    assert ((low <= stored) & (stored <= high)).all()
    assert eq03_page_bound(q, low, high) >= (stored @ q).max()
    assert eq15_widened_box([0.0, 1.0], [2.0, 3.0], [0.5, 0.0])[1].tolist() == [2.5, 3.0]


# (6) (7): attention over a set.


def test_eq06_by_hand() -> None:
    # p = (1/4, 3/4); keeping the second token alone leaves its value, misses 1/4.
    dense, selected, missed = eq06_selected_output(
        [0.0, math.log(3.0)], [[4.0, 0.0], [0.0, 8.0]], [False, True]
    )
    assert dense == pytest.approx([1.0, 6.0])
    assert selected.tolist() == [0.0, 8.0]
    assert missed == pytest.approx(0.25)


@settings(deadline=None)
@given(attention_rows())
def test_eq06_renormalises_the_dense_probabilities(row: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    logits, values, selected = row
    output = eq06_selected_output(logits, values, selected)
    p = np.exp(logits) / np.exp(logits).sum()
    assert output.missed_mass == pytest.approx(p[~selected].sum(), rel=1e-9, abs=1e-15)
    kept = p[selected].sum()
    assert output.selected == pytest.approx(p[selected] / kept @ values[selected], rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(attention_rows())
def test_eq07_slack_is_never_negative_but_for_rounding(
    row: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    logits, values, _ = row
    largest = np.linalg.norm(values, axis=1).max()
    assert eq07_error_slack(*row) >= -8 * EPS * len(logits) * largest


def test_eq07_is_zero_when_everything_is_selected_and_tight_for_opposite_values() -> None:
    logits, values = [0.0, 1.0, -2.0], [[1.0], [2.0], [-3.0]]
    assert eq07_error_slack(logits, values, [True] * 3) == 0.0
    # p = (1/2, 1/2), values 1 and -1: o = 0, o_C = 1, so |o - o_C| = 1 = 2 x 1/2 x 1.
    assert eq07_error_slack([0.0, 0.0], [[1.0], [-1.0]], [True, False]) == 0.0


# (9)-(13): bytes and times.


def test_bytes_by_hand() -> None:
    assert eq09_dense_bytes(256, 65536) == 2 * 256 * 65536 == 32 * 2**20
    assert eq10_index_bytes(256, 4096) == 2 * 256 * 4096 == 2 * 2**20
    assert eq11_selected_bytes(256, 256, 16) == 2 * 256 * 256 * 16 == 2 * 2**20
    assert eq12_read_ratio(16, 256, 4096) == 0.125


SIZES = st.tuples(st.integers(1, 128), st.integers(1, 5000))


@settings(deadline=None)
@given(SIZES, st.integers(1, 2048), st.data())
def test_eq12_is_the_ratio_of_the_bytes(
    sizes: tuple[int, int], vector_bytes: int, data: st.DataObject
) -> None:
    page_size, num_pages = sizes
    num_selected = data.draw(st.integers(1, num_pages))
    read = eq10_index_bytes(vector_bytes, num_pages) + eq11_selected_bytes(
        vector_bytes, num_selected, page_size
    )
    ratio = read / eq09_dense_bytes(vector_bytes, num_pages * page_size)
    assert eq12_read_ratio(page_size, num_selected, num_pages) == pytest.approx(ratio, rel=1e-12)


@settings(deadline=None)
@given(SIZES, st.data())
def test_eq12_grows_with_every_page_selected(sizes: tuple[int, int], data: st.DataObject) -> None:
    page_size, num_pages = sizes
    a = data.draw(st.integers(1, num_pages))
    b = data.draw(st.integers(1, num_pages))
    if a > b:
        a, b = b, a
    low, high = (eq12_read_ratio(page_size, k, num_pages) for k in (a, b))
    assert low < high if a < b else low == high


@settings(deadline=None)
@given(SIZES)
def test_eq12_of_all_pages_is_one_and_the_index(sizes: tuple[int, int]) -> None:
    page_size, num_pages = sizes
    assert eq12_read_ratio(page_size, num_pages, num_pages) == pytest.approx(1 + 1 / page_size, rel=1e-15)


def test_eq12_dtype_term() -> None:
    assert eq12_read_ratio(16, 256, 4096, summary_element_ratio=2.0) == 2 / 16 + 256 / 4096
    assert eq12_read_ratio(16, 1.5, 3) == 1 / 16 + 0.5


def test_a_transposed_summary_is_read_by_the_rows_that_signs_pick() -> None:
    assert [picked_row_share(group_size) for group_size in (1, 2, 4)] == [1 / 2, 3 / 4, 15 / 16]
    assert transposed_read_ratio(16, 256, 4096, picked_row_share(1)) == 1 / 32 + 1 / 16
    assert transposed_read_ratio(16, 256, 4096, 1.0, 2.0) == eq12_read_ratio(16, 256, 4096, 2.0)


def test_the_picked_row_share_is_what_independent_signs_give() -> None:
    """Every combination of signs of a group, equally likely: rows picked out of 2, on average."""
    for group_size in (1, 2, 3, 4):
        picked = [len(set(signs)) / 2 for signs in itertools.product((False, True), repeat=group_size)]
        assert picked_row_share(group_size) == sum(picked) / len(picked)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0.01, 1e4))
def test_eq13_lies_between_one_and_the_inverse_speed_up(share: float, speed_up: float) -> None:
    low, high = sorted((1.0, 1.0 / speed_up))
    assert low * (1 - 4 * EPS) <= eq13_time_ratio(share, speed_up) <= high * (1 + 4 * EPS)


def test_eq13_ends() -> None:
    assert eq13_time_ratio(0.0, 7.0) == 1.0
    assert eq13_time_ratio(1.0, 4.0) == 0.25
    assert eq13_time_ratio(0.5, math.inf) == 0.5


# What is refused, and the list.


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: eq01_box([]), "hold no key"),
        (lambda: eq01_box(np.empty((0, 4))), "hold no key"),
        (lambda: eq01_box([1.0, 2.0]), "hold no key"),
        (lambda: eq01_box([["a", "b"]]), "no array of numbers"),
        (lambda: eq01_box([[1.0], [1.0, 2.0]]), "no array of numbers"),
        (lambda: eq02_dim_bounds([1.0, 2.0], [1.0], [1.0]), "differ"),
        (lambda: eq03_page_bound(1.0, 2.0, 3.0), "differ"),
        (lambda: eq04_bound_slack([1.0], [[1.0, 2.0]]), "differ"),
        (lambda: eq06_selected_output([1.0, 2.0], [[1.0], [2.0]], [False, False]), "0 of"),
        (lambda: eq06_selected_output([1.0, 2.0], [[1.0]], [True, False]), "values (1, 1)"),
        (lambda: eq06_selected_output([1.0, 2.0], [[1.0], [2.0]], [True]), "1 of (1,)"),
        (lambda: eq07_error_slack([1.0], [[1.0]], [False]), "0 of"),
        (lambda: eq08_append_key([1.0], [1.0], [1.0, 2.0]), "differ"),
        (lambda: eq09_dense_bytes(256, 0), "seq_len 0 is below 1"),
        (lambda: eq09_dense_bytes(0, 1), "vector_bytes 0 is below 1"),
        (lambda: eq10_index_bytes(256, -1), "num_pages -1 is below 1"),
        (lambda: eq11_selected_bytes(256, 0, 16), "num_selected 0 is below 1"),
        (lambda: eq11_selected_bytes(256, 1, 0), "page_size 0 is below 1"),
        (lambda: eq12_read_ratio(0, 1, 1), "page_size 0 is below 1"),
        (lambda: eq12_read_ratio(16, 0, 4), "0 pages cannot be selected out of 4"),
        (lambda: eq12_read_ratio(16, 5, 4), "5 pages cannot be selected out of 4"),
        (lambda: eq12_read_ratio(16, math.nan, 4), "nan pages"),
        (lambda: eq12_read_ratio(16, 1, 4, 0.0), "not above 0"),
        (lambda: picked_row_share(0), "group_size 0 is below 1"),
        (lambda: transposed_read_ratio(16, 1, 4, 0.0), "in 0..1, not 0.0"),
        (lambda: transposed_read_ratio(16, 1, 4, 1.5), "in 0..1, not 1.5"),
        (lambda: transposed_read_ratio(16, 5, 4, 0.5), "5 pages cannot be selected out of 4"),
        (lambda: eq13_time_ratio(1.5, 2.0), "share 1.5"),
        (lambda: eq13_time_ratio(-0.1, 2.0), "share -0.1"),
        (lambda: eq13_time_ratio(math.nan, 2.0), "share nan"),
        (lambda: eq13_time_ratio(0.5, 0.0), "speed-up 0.0"),
        (lambda: eq14_update_tail(([1.0], [1.0]), [1.0, 2.0]), "differ"),
        (lambda: eq15_widened_box([0.0], [1.0], [-0.1]), "below 0"),
        (lambda: eq15_widened_box([0.0], [1.0], math.nan), "below 0"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        call()
    error = caught.value
    assert words in error.why
    assert error.what
    assert error.fix.endswith(".")
    assert error.status == Exit.USAGE


def test_the_list_names_all_fifteen_once() -> None:
    assert [equation.number for equation in EQUATIONS] == list(range(1, 16))
    assert len({equation.name for equation in EQUATIONS}) == 15
    for equation in EQUATIONS:
        assert equation.function.__name__.startswith(f"eq{equation.number:02}_")
        assert getattr(equations, equation.function.__name__) is equation.function
        docstring = " ".join((equation.function.__doc__ or "").split()).lower()
        assert f"eq. ({equation.number})" in docstring
        sections = [part.split("§")[1] for part in equation.section.split(", ")]
        assert all(section in docstring for section in sections), equation
        assert equation.summary


def test_the_list_loads_without_numpy() -> None:
    code = "import sys, questprof.equations; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"

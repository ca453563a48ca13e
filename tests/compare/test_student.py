"""Student's t by the printed tables, and its test by hand and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.compare.student import student_t, student_test, t_central

SIX = (-1.0, 1.0, 1.0, -1.0, 1.0, -1.0)
"""Mean 0, mean square 1: of 6 independent ones the standard error is sqrt(1 / 5), of 3 sqrt(1 / 2)."""


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_student_t_by_the_printed_tables(degrees: int, value: float) -> None:
    assert student_t(0.975, degrees) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize(("count", "error", "t"), [(6, 5**-0.5, 2.015), (3, 2**-0.5, 2.920)])
def test_one_in_twenty_by_the_printed_tables(count: int, error: float, t: float) -> None:
    """One-sided 5 % is t = 2.015 with 5 degrees of freedom, 2.920 with 2."""
    values = [value + 7 + t * error for value in SIX]
    assert student_test(values, 7.0, count) == pytest.approx(0.05, abs=1e-4)
    assert student_test(values, 7.0, count + 0.9) <= student_test(values, 7.0, count)


def test_where_nothing_is_known() -> None:
    assert student_test([9.0] * 20, 7.0, 1.9) == 1
    assert student_test([7.0], 1.0) == 1
    assert student_test([7.0, 9.0], 8.0) == 1
    assert student_test([9.0] * 20, 7.0) == 0  # no round is anywhere else


def test_it_errs_as_often_as_it_says() -> None:
    rows = np.random.default_rng(13).normal(3, 2, (4000, 12)).tolist()
    assert sum(student_test(row, 3.0) <= 0.05 for row in rows) / 4000 == pytest.approx(0.05, abs=0.012)


@given(t=st.floats(0, 1e4), degrees=st.integers(1, 60))
def test_the_distribution_rises_from_0_to_1(t: float, degrees: int) -> None:
    assert -1e-12 <= t_central(t, degrees) <= 1 + 1e-12
    assert t_central(t, degrees) <= t_central(t * 1.1 + 0.01, degrees) + 1e-12
    assert t_central(t, 1) == pytest.approx(2 / math.pi * math.atan(t), abs=1e-9)

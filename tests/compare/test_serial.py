"""Serial correlation: by hand, right on average, and what it leaves of a p-value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.compare.serial import autocorrelation, independent_samples, weakened


@pytest.mark.parametrize(
    ("samples", "rho"),
    [
        # rest is the samples: 12 squares; +1 six times inside a pair, -1 five times between: r = 1 / 12
        ((1.0, 1.0, -1.0, -1.0) * 3, 0.25),  # (12 / 12 + 1) / 8
        ((3.0, 3.0, 1.0, 1.0) * 3, 0.25),  # the level does not matter
        ((1.0, -1.0) * 6, -1.0),  # r = -11 / 12, below -1 after the correction
        ((1.0,) * 6 + (2.0,) * 6, 1.0),  # r = 9 / 12: (9 + 1) / 8
        ((0.1 + 0.2, 0.3) * 6, 0.0),  # the same but for rounding
        ((1.0, 1.0, 2.0, 2.0, 3.0), 0.0),  # too few to say
    ],
)
def test_autocorrelation_by_hand(samples: tuple[float, ...], rho: float) -> None:
    assert autocorrelation(samples) == pytest.approx(rho)


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.7])
def test_autocorrelation_is_right_on_average(rho: float) -> None:
    """Of 25 samples; uncorrected, the estimate would be 0.04 to 0.15 lower."""
    rng = np.random.default_rng(11)
    rows = rng.normal(0, 1, (3000, 25))
    for i in range(1, 25):
        rows[:, i] = rho * rows[:, i - 1] + math.sqrt(1 - rho**2) * rows[:, i]
    assert np.mean([autocorrelation(row) for row in rows.tolist()]) == pytest.approx(rho, abs=0.04)


def test_independent_samples_by_hand() -> None:
    assert independent_samples(20, 0.6) == pytest.approx(5)  # 20 x 0.4 / 1.6
    assert independent_samples(20, -0.5) == independent_samples(20, 0.0) == 20
    assert independent_samples(20, 1.0) == 1


def test_a_quarter_of_the_samples_halves_the_normal_score() -> None:
    """0.02275 is 2 standard deviations out, 0.15866 is one."""
    assert weakened(0.0227501, 0.25) == pytest.approx(0.1586553, abs=1e-6)
    assert weakened(0.1586553, 4) == pytest.approx(0.0227501, abs=1e-6)
    assert [weakened(p, 0.25) for p in (0.0, 0.5, 0.7, 1.0)] == [0.0, 0.5, 0.7, 1.0]


@given(p=st.floats(1e-9, 0.4999), share=st.floats(0.01, 1))
def test_fewer_samples_never_say_more(p: float, share: float) -> None:
    assert p * (1 - 1e-6) <= weakened(p, share) <= 0.5
    assert weakened(weakened(p, share), 1 / share) == pytest.approx(p, rel=1e-3)

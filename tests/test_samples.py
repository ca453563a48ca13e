"""Statistics of raw samples: hand-worked values, enumeration, coverage by simulation, invariances."""

import math
from itertools import combinations, permutations
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.samples import (
    between_run_sd,
    bootstrap_medians,
    depth,
    drift,
    holm,
    mann_whitney,
    median_interval,
    percentile_interval,
    quantile,
    relative_half_width,
    sign_test,
    tail,
)

TIMES = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize(
    "call",
    [
        lambda: quantile((), 0.5),
        lambda: median_interval(()),
        lambda: relative_half_width(()),
        lambda: drift(()),
        lambda: sign_test((), 1.0),
        lambda: mann_whitney((), (1.0,)),
        lambda: mann_whitney((1.0,), ()),
        lambda: bootstrap_medians([()]),
        lambda: percentile_interval(()),
    ],
)
def test_no_samples_is_an_error_never_nan(call: object) -> None:
    with pytest.raises(ValueError, match="no samples"):
        call()  # type: ignore[operator]


@given(samples=TIMES, share=st.floats(0, 1))
def test_quantiles_are_numpys(samples: list[float], share: float) -> None:
    assert quantile(samples, share) == pytest.approx(float(np.quantile(samples, share)))


@pytest.mark.parametrize(("share", "least"), [(0.95, 20), (0.99, 100), (0.5, 2)])
def test_a_tail_needs_a_sample_beyond_it(share: float, least: int) -> None:
    assert tail(range(1, least), share) is None
    assert tail(range(1, least + 1), share) == pytest.approx(quantile(range(1, least + 1), share))


@pytest.mark.parametrize(
    ("size", "out", "coverage"),
    [
        (1, 0, 0.0),  # one sample: the chance that it is the median is 0
        (2, 0, 0.5),  # 1 - 2 / 4
        (3, 0, 0.75),  # 1 - 2 / 8
        (5, 0, 0.9375),  # 1 - 2 / 32
        (6, 0, 0.96875),  # 1 - 2 / 64
        (11, 1, 1 - 2 * 12 / 2048),  # 1 + 11 = 12; one more would be 1 - 2 x 67 / 2048 = 0.935
        (15, 3, 1 - 2 * 576 / 32768),  # 1 + 15 + 105 + 455
    ],
)
def test_depth_by_hand(size: int, out: int, coverage: float) -> None:
    assert depth(size) == (out, pytest.approx(coverage))


@pytest.mark.parametrize("draw", ["normal", "lognormal", "two humps"])
@pytest.mark.parametrize("size", [5, 11, 30])
def test_the_intervals_coverage_is_what_it_says(draw: str, size: int) -> None:
    """4000 sample sets of a known median: the share of intervals that hold it is the exact coverage."""
    rng = np.random.default_rng(size)
    sets = rng.normal(10, 1, (4000, size))
    middle = 10.0
    if draw == "lognormal":
        sets, middle = rng.lognormal(1, 0.8, (4000, size)), math.e
    if draw == "two humps":
        sets = np.where(rng.random((4000, size)) < 0.5, sets - 4, sets + 4)
    held, coverage = 0, 0.0
    for row in sets.tolist():
        interval = median_interval(row)
        held += interval.low <= middle <= interval.high
        coverage = interval.coverage
    assert held / 4000 == pytest.approx(coverage, abs=4 * math.sqrt(0.05 * 0.95 / 4000) + 0.003)


@given(samples=TIMES, scale=st.sampled_from([0.5, 2.0, 1024.0]))
def test_intervals_follow_the_unit_and_hold_the_median(samples: list[float], scale: float) -> None:
    interval = median_interval(samples)
    assert interval.low <= median(samples) <= interval.high
    scaled = median_interval([scale * sample for sample in samples])
    assert (scaled.low, scaled.high) == (scale * interval.low, scale * interval.high)
    assert relative_half_width([scale * s for s in samples]) == pytest.approx(relative_half_width(samples))


def test_a_few_equal_samples_do_not_stop_a_loop() -> None:
    assert relative_half_width([7.0] * 5) == math.inf
    assert relative_half_width([7.0] * 6) == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_the_exact_trend_p_by_enumeration(size: int) -> None:
    every = [drift([float(v) for v in order]) for order in permutations(range(1, size + 1))]
    for found in every:
        as_far = sum(abs(other.tau) >= abs(found.tau) - 1e-12 for other in every)
        assert found.p == pytest.approx(as_far / len(every))


def test_drift_in_extreme_cases() -> None:
    assert drift([3.0]).p == drift([3.0, 4.0]).p == 1
    assert drift([5.0] * 50).p == 1
    rising = [100 * 1.01**i for i in range(30)]
    assert drift(rising).tau == 1
    assert drift(rising).p < 1e-12
    assert drift(rising).change == pytest.approx(1.01**20 - 1)  # medians of rounds 4.5 and 24.5
    assert drift(rising[::-1]).tau == -1
    assert drift(rising[::-1]).p == pytest.approx(drift(rising).p)
    assert drift([100 + 0.01 * i for i in range(30)]).change == pytest.approx(0.2 / 100.045)


def test_drift_false_alarms_and_power() -> None:
    rng = np.random.default_rng(3)
    flat = rng.lognormal(0, 0.05, (1000, 30)).tolist()
    assert sum(drift(row).p <= 0.05 for row in flat) / 1000 < 0.07
    throttled = (rng.lognormal(0, 0.02, (200, 30)) * np.linspace(1, 1.08, 30)).tolist()
    assert sum(drift(row).p <= 0.01 and drift(row).change >= 0.02 for row in throttled) / 200 > 0.95


@given(samples=TIMES)
def test_drift_depends_on_order_alone(samples: list[float]) -> None:
    assert drift([2 * sample for sample in samples]).tau == drift(samples).tau
    assert -1 <= drift(samples).tau <= 1
    assert 0 <= drift(samples).p <= 1


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ((1.0,), 0.5),
        ((1.0, 1.0, 1.0), 0.125),
        ((1.0, 1.0, -1.0), 0.5),  # P(Bin(3) >= 2) = 4 / 8
        ((0.0, 0.0), 1.0),
        ((-1.0, -1.0), 1.0),
        ((1.0,) * 14 + (-1.0,), 16 / 2**15),
    ],
)
def test_sign_test_by_hand(values: tuple[float, ...], p: float) -> None:
    assert sign_test(values, 0.0) == pytest.approx(p)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 3), (2, 3), (3, 3), (4, 2)])
def test_mann_whitney_by_enumeration(m: int, n: int) -> None:
    """All ways to choose which ranks are new: the p-value is the share with a U as large."""

    def u(new: tuple[int, ...]) -> int:
        return sum(value > other for value in new for other in range(m + n) if other not in new)

    every = list(combinations(range(m + n), n))
    for new in every:
        base = [float(v) for v in range(m + n) if v not in new]
        found = mann_whitney(base, [float(v) for v in new])
        assert found.p == pytest.approx(sum(u(other) >= u(new) for other in every) / len(every))
        assert found.superiority == pytest.approx(u(new) / (m * n))


@pytest.mark.parametrize("shift", [0.1, 2.1, 4.1, 8.1])
def test_the_normal_approximations_are_close_to_exact(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    base = [float(i) for i in range(12)]
    mixed = [*base[::2], *base[1::2]]
    u, trend = mann_whitney(base, [value + shift for value in base]).p, drift(mixed).p
    monkeypatch.setattr("questprof.samples.EXACT_SIZE", 13)
    assert u == pytest.approx(mann_whitney(base, [value + shift for value in base]).p, abs=0.005)
    assert trend == pytest.approx(drift(mixed).p, abs=0.005)
    assert mann_whitney([1.0] * 12, [1.0] * 12).p == 1


@given(base=TIMES, new=TIMES)
def test_mann_whitney_is_antisymmetric(base: list[float], new: list[float]) -> None:
    one, other = mann_whitney(base, new), mann_whitney(new, base)
    assert one.superiority == pytest.approx(1 - other.superiority)
    assert one.p + other.p >= 1 - 1e-9
    assert 0 <= one.p <= 1


def test_mann_whitney_false_alarms() -> None:
    rng = np.random.default_rng(4)
    rows = rng.lognormal(0, 0.3, (2000, 26)).tolist()
    alarms = sum(mann_whitney(row[:11], row[11:]).p <= 0.025 for row in rows)
    assert alarms / 2000 < 0.035


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.04: times 3, 2, 1 is 0.03, 0.04, 0.04; never falling."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(p_values=st.lists(st.floats(0, 1), max_size=20))
def test_holm_lies_between_raw_and_bonferroni(p_values: list[float]) -> None:
    for raw, adjusted in zip(p_values, holm(p_values), strict=True):
        assert raw <= adjusted <= min(1.0, raw * len(p_values)) + 1e-12


def test_bootstrap_is_reproducible_and_paired() -> None:
    one, double = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6], [6.0, 2.0, 8.0, 3.0, 18.0, 5.2]
    first, second = bootstrap_medians([one, double], num_resamples=300, seed=5)
    assert [2 * value for value in first] == pytest.approx(second)
    assert bootstrap_medians([one], num_resamples=300, seed=5)[0] == first
    assert bootstrap_medians([one], num_resamples=300, seed=6)[0] != first
    assert bootstrap_medians([[2.5]], num_resamples=3)[0] == [2.5] * 3


def test_the_percentile_interval_is_from_one_replicate_to_another() -> None:
    """Of 101 the ranks 2.5 and 97.5, outwards: 2 and 98; infinite ends stay what they are."""
    values = [float(i) for i in range(100, -1, -1)]
    assert percentile_interval(values) == (2.0, 98.0)
    assert percentile_interval(values, 0.5) == (25.0, 75.0)
    assert percentile_interval([1.0, math.inf]) == (1.0, math.inf)


def test_bootstrap_coverage() -> None:
    """95 % intervals of the median of 15 lognormal samples; the bootstrap is known to fall a little short."""
    rng = np.random.default_rng(8)
    held = 0
    for number in range(400):
        values = bootstrap_medians([rng.lognormal(0, 0.5, 15).tolist()], num_resamples=400, seed=number)[0]
        low, high = percentile_interval(values)
        held += low <= 1 <= high
    assert 0.9 <= held / 400 <= 0.99


def test_between_run_sd_by_hand() -> None:
    """Logs 0 and 0.2: squares 2 x 0.1^2 over 1 degree; logs 0, 0.3, 0.6: 2 x 0.3^2 over 2."""
    items = [(1.0, math.exp(0.2)), (1.0, math.exp(0.3), math.exp(0.6))]
    assert between_run_sd(items) == pytest.approx(math.sqrt((0.02 + 0.18) / 3))
    assert between_run_sd([(5.0,), (7.0,)]) is None
    assert between_run_sd([]) is None

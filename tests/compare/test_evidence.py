"""Evidence of two sides: hand-worked intervals, errors at their stated rates, power, and every doubt."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.compare.evidence import Evidence, apart, paired, unpaired
from questprof.samples import LEVEL

TIMES = st.lists(st.floats(1, 1000), min_size=1, max_size=25)


def _verdict(found: Evidence, margin: float, threshold: float | None = None) -> str:
    side = found.side(margin if threshold is None else threshold, margin)
    return "undecided" if found.doubt() or side is None else side


def test_paired_by_hand() -> None:
    """Ratios 1.05 to 1.14 in hundredths and 9: 11 of them, so the interval leaves out one on either side.

    All 11 lie above 1.02, which a fair coin does with 2 ** -11; two-sided twice that, and as much again for
    the choice of two tests. The other sees little but the wild round.
    """
    base = [100.0] * 11
    found = paired(base, [*(105.0 + i for i in range(10)), 900.0], 0.02)
    assert found.independent == 11
    assert (found.low, found.ratio, found.high) == pytest.approx((1.06, 1.10, 1.14))
    assert found.coverage == pytest.approx(1 - 2 * 12 / 2048)
    assert found.p == pytest.approx(4 / 2048)
    assert _verdict(found, 0.02) == "slower"


def test_unpaired_by_hand() -> None:
    """9 samples a side: only the range reaches sqrt(95 %) = 97.5 %; with one left out it is 96.1 %."""
    base, new = [100.0 + i for i in range(9)], [120.0 + i for i in range(9)]
    found = unpaired(base, new, 0.02)
    assert (found.low, found.high) == pytest.approx((120 / 108, 128 / 100))
    assert found.coverage == pytest.approx((1 - 2 / 512) ** 2)
    # ranks 0.1 x 8 = 0.8 and 0.9 x 8 = 7.2: 107.2 / 100.8; 127.2 / 120.8 is less
    assert found.beyond == pytest.approx(107.2 / 100.8 - 1)
    assert found.p == pytest.approx(2 / 48620)  # all 81 pairs: one of C(18, 9) arrangements
    assert _verdict(found, 0.02) == "slower"


@given(base=TIMES, new=TIMES)
def test_sides_change_places(base: list[float], new: list[float]) -> None:
    one, other = unpaired(base, new, 0.02), unpaired(new, base, 0.02)
    assert one.low * other.high == pytest.approx(1)
    assert one.p == pytest.approx(other.p)
    mirror = {"slower": "faster", "faster": "slower", "same": "same", "undecided": "undecided"}
    assert _verdict(one, 0.02) == mirror[_verdict(other, 0.02)]


@given(samples=TIMES, margin=st.floats(0, 1))
def test_nothing_differs_from_itself(samples: list[float], margin: float) -> None:
    assert _verdict(paired(samples, samples, margin), margin) in ("same", "undecided")
    assert _verdict(unpaired(samples, samples, margin), margin) in ("same", "undecided")


@given(base=TIMES, new=TIMES, unit=st.sampled_from([0.25, 8.0]))
def test_the_unit_does_not_matter(base: list[float], new: list[float], unit: float) -> None:
    scaled = unpaired([unit * v for v in base], [unit * v for v in new], 0.02)
    assert scaled._replace(base=(), new=()) == unpaired(base, new, 0.02)._replace(base=(), new=())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_few_samples_decide_nothing(size: int) -> None:
    for found in (paired([1.0] * size, [9.0] * size, 0.02), unpaired([1.0] * size, [9.0] * size, 0.02)):
        assert found.coverage < LEVEL
        assert found.doubt() == f"too few samples: {size}"
        assert unpaired([1.0] * size, [1.0] * size, 0.02).doubt()


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_alone_a_comparison_errs_in_at_most_five_percent(draw: str) -> None:
    """The worst case, a true ratio exactly at the margin: still called slower in at most 2.5 %."""
    rng = np.random.default_rng(1)
    noise = rng.normal(1, 0.01, (2, 2000, 15))
    if draw == "skewed":
        noise = 0.98 + rng.exponential(0.02, (2, 2000, 15))
    rows = list(zip(noise[0].tolist(), (1.02 * noise[1]).tolist(), strict=True))
    called = sum(paired(base, new, 0.02).p <= 1 - LEVEL for base, new in rows)
    assert called / 2000 <= 0.025 + 0.01
    # unpaired also asks to exceed the samples' own spread
    assert sum(unpaired(base, new, 0.02).p <= 1 - LEVEL for base, new in rows) / 2000 <= 0.025


@pytest.mark.parametrize(("slower", "least"), [(1.05, 0.99), (1.04, 0.9)])
def test_a_real_difference_inside_one_run_is_found(slower: float, least: float) -> None:
    rng = np.random.default_rng(2)
    drift = np.linspace(1, 1.2, 25)  # both sides meet the same warming
    rows = [(drift * rng.normal(1, 0.01, 25), slower * drift * rng.normal(1, 0.01, 25)) for _ in range(200)]
    found = [_verdict(paired(base.tolist(), new.tolist(), 0.02), 0.02) for base, new in rows]
    assert found.count("slower") / 200 >= least
    assert "faster" not in found


def test_equal_code_inside_one_run_is_called_the_same() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(100, 1, (200, 2, 25)).tolist()
    found = [_verdict(paired(base, new, 0.02), 0.02) for base, new in rows]
    assert found.count("same") / 200 > 0.95


def test_a_real_difference_between_two_runs_is_found() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(100, 1, (100, 2, 20)).tolist()
    found = [_verdict(unpaired(base, [1.15 * v for v in new], 0.03), 0.03) for base, new in rows]
    assert found == ["slower"] * 100


def test_doubts() -> None:
    quiet = [100.0, 101.0, 102.0, 99.0, 98.0] * 4
    twice = [2 * v for v in quiet]
    assert unpaired(quiet, twice, 0.3).doubt() == ""
    assert "too far apart" in unpaired(quiet, [*twice[:16], *[900.0] * 4], 0.3).doubt()
    assert "samples of base" in unpaired([*quiet[:16], *[900.0] * 4], twice, 0.3).doubt()
    assert "takes 1.30x as long" in unpaired(quiet, twice, 0.3, machine=1.3).doubt()
    assert "takes 0.70x as long" in unpaired(quiet, twice, 0.3, machine=0.7).doubt()


def test_a_slower_machine_counts_against_a_slower_verdict_only_in_one_direction() -> None:
    """Twice the time where reads take 1.08x: the interval reaches down to 2 / 1.08, and not above 2."""
    base, new = [100.0] * 20, [200.0] * 20
    assert unpaired(base, new, 0.3, 1.08)[3:5] == pytest.approx((2 / 1.08, 2.0))
    assert unpaired(base, new, 0.3, 0.95)[3:5] == pytest.approx((2.0, 2 / 0.95))
    assert _verdict(unpaired(base, [131.0] * 20, 0.3), 0.3) == "slower"
    assert _verdict(unpaired(base, [131.0] * 20, 0.3, 1.02), 0.3) == "undecided"


def test_contention_moves_the_median_and_not_the_fastest_quarter() -> None:
    base, crowded = [100.0] * 100, [100.0, 135.0, 135.0, 100.0, 135.0, 135.0, 100.0, 135.0, 135.0, 135.0] * 10
    for found in (paired(base, crowded, 0.02), unpaired(base, crowded, 0.3)._replace(beyond=0.3)):
        assert found.low > 1 + found.beyond
        assert "fastest quarter is not slower" in found.doubt()
    mirrored = paired(crowded, base, 0.02)
    assert "fastest quarter is not faster" in mirrored.doubt()


@given(base=TIMES, new=TIMES, margin=st.floats(0.02, 1))
def test_same_is_only_what_lies_within_the_threshold(
    base: list[float], new: list[float], margin: float
) -> None:
    """However far two runs may lie apart: a wider margin never makes anything the same."""
    found = unpaired(base, new, margin)
    verdict = _verdict(found, margin, 0.02)
    if verdict == "same":
        assert 1 / 1.02 <= found.low <= found.high <= 1.02
    elif verdict == "within spread":
        assert found.low < 1 / 1.02 or found.high > 1.02
        assert 1 / (1 + margin) <= found.low <= found.high <= 1 + margin


def test_a_difference_within_the_spread_by_hand() -> None:
    """110 over 100 us: beyond 2 %, within 30 %; exactly 2 % and exactly 30 % are inside."""
    base = [128.0] * 20
    ratios = (1.0, 1.02, 1.021, 0.98, 1.1, 1.299, 1.31)
    found = [_verdict(unpaired(base, [128 * ratio] * 20, 0.3), 0.3, 0.02) for ratio in ratios]
    assert found == ["same", "same", *["within spread"] * 4, "slower"]


def test_apart() -> None:
    assert apart([5.0]) == 0
    assert apart([float(v) for v in range(20, 9, -1)]) == pytest.approx(19 / 11 - 1)


def test_rounds_that_resemble_each_other_count_as_fewer_by_hand() -> None:
    """Likeness 0.6 of 20 rounds: 20 x 0.4 / 1.6 = 5, a quarter.

    All 20 above: 2 ** -20 is 4.763 sd, of which a quarter of the rounds leave half, 2.382 sd: 0.00862.
    Without one round on either side 21 x 2 ** -20 is 4.107 sd, half of which is 0.0200: an interval of 96 %.
    Without two 211 x 2 ** -20 is 3.55 sd, 0.038: too little.
    """
    base, new = [100.0] * 20, [110.0, 400.0] * 10
    assert paired(base, new, 0.02).independent == 20
    found = paired(base, new, 0.02, 0.6)
    assert found.independent == pytest.approx(5)
    assert found.p == pytest.approx(4 * 0.00862, abs=4e-5)
    assert (found.low, found.high) == pytest.approx((1.1, 4.0))
    assert found.coverage == pytest.approx(0.96, abs=2e-4)
    assert paired(base, new, 0.02, 0.9).p > 1 - LEVEL


def test_few_independent_rounds_far_from_the_threshold_are_enough() -> None:
    """50 % slower within 1 %: six rounds are 0.0625 to the sign test, 107 standard errors to the other."""
    new = [100 * math.exp(0.5 + 0.01 * (-1) ** i) for i in range(18)]
    found = paired([100.0] * 18, new, 0.02, 0.5)
    assert found.independent == pytest.approx(6)
    assert found.p < 1e-7
    assert _verdict(found, 0.02) == "slower"


def test_few_independent_rounds_are_not_called_the_same() -> None:
    still = paired([100.0] * 20, [100.0, 100.1] * 10, 0.02, 0.9)
    assert still.coverage < LEVEL
    assert _verdict(still, 0.02) == "undecided"
    assert _verdict(paired([100.0] * 20, [100.0, 100.1] * 10, 0.02), 0.02) == "same"

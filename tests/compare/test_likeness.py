"""Rounds that resemble the ones before: seen in one stage, in one loop and in all of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.compare.evidence import paired
from questprof.compare.likeness import Rounds, likenesses
from questprof.samples import LEVEL


def _rounds(rng: np.random.Generator, rho: float, rounds: int, loop: str = "a", stage: str = "s") -> Rounds:
    """Ratios around 1 whose logarithms are 1 % apart and of autocorrelation rho ** lag."""
    found = rng.normal(0, 1, rounds)
    for i in range(1, rounds):
        found[i] = rho * found[i - 1] + math.sqrt(1 - rho**2) * found[i]
    return Rounds(loop, stage, [100.0] * rounds, [100 * 1.01**value for value in found.tolist()])


def test_a_run_of_slow_rounds_by_hand() -> None:
    """Half of the rounds slow, one after the other: r is 17 / 20, and (17 + 1) / 16 is above 1."""
    assert likenesses([Rounds("a", "s", [100.0] * 20, [100.0] * 10 + [120.0] * 10)]) == [1.0]
    assert paired([100.0] * 20, [100.0] * 10 + [120.0] * 10, 0.02, 1.0).coverage < LEVEL


def test_few_rounds_are_no_proof_that_rounds_are_independent() -> None:
    """Nothing varies: 0 of 20 rounds has a standard error of sqrt(20) / 16, of 4 x 20 half of that."""
    still = Rounds("a", "s", [1.0] * 20, [2.0] * 20)
    assert likenesses([still]) == pytest.approx([math.sqrt(20) / 16])
    assert likenesses([still] * 4) == pytest.approx([math.sqrt(20) / 32] * 4)
    assert likenesses([]) == []
    assert likenesses([Rounds("a", "s", [1.0] * 5, [1.0, 2.0, 1.0, 2.0, 2.0])]) == [0.0]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_what_all_loops_share_is_found(rho: float) -> None:
    rng = np.random.default_rng(9)
    every = [_rounds(rng, rho, 20, f"loop {i}", f"stage {i}") for i in range(60)]
    assert float(np.median(likenesses(every))) == pytest.approx(rho, abs=0.12)


@pytest.mark.parametrize(("loop", "stage"), [("loop 3", ""), ("", "stage 2")])
def test_one_loop_or_one_stage_is_found_among_quiet_ones(loop: str, stage: str) -> None:
    rng, every = np.random.default_rng(10), []
    for i in range(8):
        for j in range(5):
            noisy = loop == f"loop {i}" or stage == f"stage {j}"
            every.append(_rounds(rng, 0.9 * noisy, 20, f"loop {i}", f"stage {j}"))
    found = likenesses(every)
    of_it = [rho for one, rho in zip(every, found, strict=True) if loop == one.loop_id or stage == one.stage]
    others = [
        rho for one, rho in zip(every, found, strict=True) if loop != one.loop_id and stage != one.stage
    ]
    assert min(of_it) > 0.6
    assert float(np.median(others)) < 0.3


def test_independent_rounds_seldom_look_alike() -> None:
    """A stage's own, its loop's and its stage's likeness may each be beyond chance once in twenty."""
    rng = np.random.default_rng(11)
    every = [_rounds(rng, 0.0, 20, f"loop {i // 5}", f"stage {i % 5}") for i in range(1000)]
    assert sum(rho > 0.1 for rho in likenesses(every)) / 1000 <= 3 * 0.05


@given(st.lists(st.lists(st.floats(50, 150), min_size=1, max_size=12), max_size=6), st.floats(1e-3, 1e3))
def test_it_lies_from_0_to_1_and_neither_unit_nor_side_matter(rows: list[list[float]], unit: float) -> None:
    every = [Rounds("a", str(i), [100.0] * len(row), row) for i, row in enumerate(rows)]
    found = likenesses(every)
    assert all(0 <= rho <= 1 for rho in found)
    mirrored = [one._replace(base=[unit * us for us in one.new], new=one.base) for one in every]
    assert likenesses(mirrored) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_the_interval_holds_the_ratio_however_alike_the_rounds_are(rho: float) -> None:
    """150 families of 10 loops of 30 rounds with ratio 1; at rho 0.9 a plain interval holds it in half."""
    rng, held = np.random.default_rng(12), 0
    for _ in range(150):
        every = [_rounds(rng, rho, 30, f"loop {i}") for i in range(10)]
        found = [
            paired(one.base, one.new, 0.02, alike)
            for one, alike in zip(every, likenesses(every), strict=True)
        ]
        held += sum(one.low <= 1 <= one.high or one.coverage < LEVEL for one in found)
    assert held / 1500 >= LEVEL

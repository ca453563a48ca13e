"""Narrow medians end a loop, bounds end it anyway, the reason is kept; drift is found and noise is not."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from questprof.samples import relative_half_width
from questprof.store import read_profile
from questprof.timing.stopping import LOOKS, Rule, Stopper, drifting, fixed

PROFILES = sorted((Path(__file__).parents[2] / "profiles").rglob("*.jsonl"))
RULE = Rule(target=0.01, min_samples=6, max_samples=40, max_seconds=5.0)
STEADY = [100.0 + 0.01 * (i % 3) for i in range(100)]
_SOURCE = random.Random(7)
NOISY = [_SOURCE.uniform(50, 150) for _ in range(100)]


def _run(rule: Rule, *series: list[float], seconds_each: float = 0.01) -> tuple[int, Stopper]:
    """Rounds until the rule stops a loop over `series`, and the stopper."""
    stopper, taken = Stopper(rule), 0
    while True:
        taken += 1
        if stopper.done([samples[:taken] for samples in series], taken * seconds_each):
            return taken, stopper


def test_steady_samples_converge_at_the_least_there_must_be() -> None:
    """Six samples give a 95 % interval; two looks in a row must find it narrow."""
    rounds, stopper = _run(RULE, STEADY, STEADY)
    assert rounds == RULE.min_samples + LOOKS - 1
    assert stopper.reason(STEADY[:rounds]) == "converged"


def test_one_noisy_stage_keeps_all_in_the_loop_until_a_bound() -> None:
    rounds, stopper = _run(RULE, STEADY, NOISY)
    assert rounds == RULE.max_samples
    assert stopper.reason(STEADY[:rounds]) == "converged"
    assert stopper.reason(NOISY[:rounds]) == "max samples"


def test_seconds_are_a_bound_too() -> None:
    rounds, stopper = _run(RULE, NOISY, seconds_each=0.5)
    assert rounds == 10  # 5 s of 0.5 s a round
    assert stopper.reason(NOISY[:rounds]) == "max seconds"


def test_the_least_number_of_samples_goes_before_seconds() -> None:
    rounds, _ = _run(RULE, NOISY, seconds_each=100.0)
    assert rounds == RULE.min_samples


@pytest.mark.parametrize("samples", [STEADY, NOISY])
def test_a_given_number_is_taken_whatever_the_samples_say(samples: list[float]) -> None:
    rounds, stopper = _run(fixed(17), samples, seconds_each=1e6)
    assert rounds == 17
    assert stopper.reason(samples[:17]) == "fixed"


def test_an_interrupt_ends_the_loop_at_three_samples() -> None:
    stopper = Stopper(fixed(50))
    assert not stopper.done([NOISY[:2]], 0.1, interrupted=True)
    assert stopper.done([NOISY[:3]], 0.1, interrupted=True)
    assert stopper.reason(NOISY[:3]) == "interrupted"


def test_nothing_to_time_is_done() -> None:
    assert Stopper(RULE).done([], 0.0)


@settings(deadline=None)
@given(
    st.floats(0.001, 0.2),
    st.lists(st.floats(1.0, 1.5), min_size=60, max_size=60),
    st.integers(6, 20),
    st.integers(21, 60),
)
def test_every_loop_ends_within_its_bounds_and_says_why(
    target: float, samples: list[float], least: int, most: int
) -> None:
    rounds, stopper = _run(Rule(target, least, most, 1e9), samples)
    assert least <= rounds <= most
    reason = stopper.reason(samples[:rounds])
    assert (reason == "converged") == (relative_half_width(samples[:rounds]) <= target)
    assert reason in ("converged", "max samples")


def _around(values: list[float], spread: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [value * (1 + source.uniform(-spread, spread)) for value in values]


def test_a_slow_climb_is_unstable_and_says_by_how_much() -> None:
    """10 % over the loop: the thirds' medians differ by about 10 % x 2 / 3."""
    climbing = _around([100 * (1 + 0.1 * i / 29) for i in range(30)], 0.005, 1)
    said = drifting({"quest": climbing, "score": _around([5.0] * 30, 0.005, 2)}, "cuda")
    assert "quest +7 %" in said or "quest +6 %" in said
    assert "score" not in said
    assert drifting({"quest": climbing}, "cpu") == ""  # a CPU moves as much within any run


def test_a_climb_too_small_to_matter_is_stable() -> None:
    assert drifting({"quest": [100 * (1 + 0.01 * i / 29) for i in range(30)]}, "cuda") == ""


def test_single_samples_say_nothing_of_drift() -> None:
    assert drifting({"quest": [1.0], "score": []}, "cuda") == ""


def test_what_launches_alone_lose_as_a_gpu_settles_is_no_drift() -> None:
    """0.2 us of 2.1: a tenth of a launch, a hundredth of a stage of 20 us; 2 us of those do count."""
    assert drifting({"append_kv": _around([2.1] * 20 + [1.9] * 30, 0.005, 3)}, "cuda") == ""
    assert "quest -10 %" in drifting({"quest": _around([21.0] * 20 + [19.0] * 30, 0.005, 3)}, "cuda")


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**6), st.sampled_from([3, 9, 15, 21, 50]))
def test_noise_in_no_order_is_hardly_ever_a_drift(seed: int, number: int) -> None:
    """Chance of 1e-4 a stage; heavy tails as a shared CPU has them."""
    source = random.Random(seed)
    samples = [100 * (1 + 0.3 * source.paretovariate(2.0)) for _ in range(number)]
    assert drifting({"quest": samples}, "cuda") == ""


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_kept_profile_drifts(path: Path) -> None:
    """Hundreds of series of real samples: none is called a drift."""
    profile = read_profile(path)
    device = profile.header.environment.device
    assert [r.reason for r in profile.records if drifting(r.times_us, device)] == []

"""The spread between runs: stated with few baselines, measured with several."""

import math

import amdahl_steps
import pytest
from msgspec.structs import replace

from profiles import CPU, profile, quest
from questprof.compare.spread import STATED, Spread, spread_of
from questprof.model import Profile


def _run(factor: float) -> Profile:
    return profile(*(quest(k * 1024, (2.0 * factor, 1.0, 5.0)) for k in (4, 8)))


def _of_stage(stage: str, run: Profile) -> Profile:
    return profile(*(replace(r, times_us={stage: r.times_us[stage]}) for r in run.records))


def test_few_baselines_state_it() -> None:
    assert spread_of([_run(1.0)]) == Spread(STATED["cuda"], floor_us=0.5)
    assert spread_of([_run(1.0), _run(2.0)]).margin("score", 100.0) == STATED["cuda"] + 0.005
    assert spread_of([profile(env=CPU)]).stated == STATED["cpu"]
    assert spread_of([_run(1.0)], 0.1).margin("quest", 1.0) == 0.1


def test_the_margin_in_words() -> None:
    assert spread_of([_run(1.0)]).describe("score", 2.0) == "3% + 0.5 us (28%)"
    assert Spread(0.3).describe("score", 2.0) == "30%"
    assert Spread(0.03, {"score": 0.063}, 3, 0.5).describe("score", 2.0) == "6.3% as the baselines measure it"


def test_three_baselines_measure_it_by_hand() -> None:
    """Log medians -0.1, 0, 0.1 have sd 0.1; two runs differ by up to t sqrt(2) 0.1 in logarithms.

    Six stages: each gets 5 % / 6, so t is at p = 1 - 0.025 / 6. With 2 degrees it is
    (2 p - 1) / sqrt(2 p (1 - p)) = 0.9916667 / 0.0910966 = 10.88587; with one stage 4.30265.
    """
    runs = [_run(math.exp(shift)) for shift in (-0.1, 0.0, 0.1)]
    spread = spread_of(runs)
    assert spread.num_runs == 3
    assert spread.margin("score", 100.0) == pytest.approx(math.expm1(10.88587 * math.sqrt(2) * 0.1))
    alone = spread_of([_of_stage("score", run) for run in runs])
    assert alone.margin("score", 100.0) == pytest.approx(math.expm1(4.30265 * math.sqrt(2) * 0.1))
    assert spread.margin("attend", 100.0) == pytest.approx(0)
    assert spread.margin("a stage that none of them has", 50.0) == STATED["cuda"] + 0.01


def test_what_is_no_figure_does_not_widen_it() -> None:
    runs = [_run(1.0) for _ in range(3)]
    record = runs[0].records[0]
    wild = replace(record, times_us={"score": (2.0, 2.0, 900.0, 900.0)})
    broken = replace(record, status="unstable", times_us={"score": (70.0,) * 3})
    empty = replace(record, times_us={"score": (), "attend": (0.0, 1.0)})
    runs += [profile(wild), profile(broken), profile(empty)]
    assert spread_of(runs).margin("score", 100.0) == pytest.approx(0)


def test_samples_beside_a_step_widen_no_margin() -> None:
    """Eager steps that lie far apart between runs are not judged, and leave the step its own margin."""
    runs = []
    for shift in (-0.1, 0.0, 0.1):
        step = amdahl_steps.quest(us=1000.0 * math.exp(shift), eager_us=1000.0 * math.exp(9 * shift))
        runs.append(amdahl_steps.pair_profile(step))
    spread = spread_of(runs)
    assert list(spread.by_stage) == ["step"]
    assert spread.margin("step", 1000.0) == pytest.approx(math.expm1(4.30265 * math.sqrt(2) * 0.1))

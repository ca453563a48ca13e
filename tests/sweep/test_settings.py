"""Options about samples become one rule; what contradicts or cannot be is refused."""

import pytest

from questprof.errors import Exit, QuestprofError
from questprof.sweep.settings import ENERGY_SECONDS, RULES, energy_seconds, rule_for, single_steps
from questprof.timing.stopping import fixed


def test_without_options_the_device_decides() -> None:
    assert rule_for("cpu", None, None, None, None) == RULES["cpu"]
    assert rule_for("cuda", None, None, None, None) == RULES["cuda"]
    assert RULES["cuda"].target == 0.005
    assert RULES["cpu"].target == 0.02


def test_options_go_before() -> None:
    rule = rule_for("cuda", None, 1.0, 200, 9.0)
    assert (rule.target, rule.min_samples, rule.max_samples, rule.max_seconds) == (0.01, 10, 200, 9.0)
    few = rule_for("cuda", None, None, 8, None)
    assert few.max_samples == 8
    assert not few.fixed


def test_a_number_is_a_number() -> None:
    assert rule_for("cpu", 7, None, None, None) == fixed(7)
    with pytest.raises(QuestprofError, match="either given or found"):
        rule_for("cpu", 7, 1.0, None, None)


def test_energy_needs_a_gpu() -> None:
    assert energy_seconds("cuda", True) == ENERGY_SECONDS
    assert energy_seconds("cuda", False) == energy_seconds("cpu", False) == 0.0
    with pytest.raises(QuestprofError) as caught:
        energy_seconds("cpu", True)
    assert caught.value.status == Exit.MACHINE


def test_single_steps_are_taken_on_a_gpu_alone() -> None:
    """100 are what a p99 needs; on a CPU every sample is a step already, so that asking is a mistake."""
    assert [single_steps("cuda", wanted) for wanted in (None, 0, 300)] == [100, 0, 300]
    assert [single_steps("cpu", wanted) for wanted in (None, 0)] == [0, 0]
    with pytest.raises(QuestprofError, match="single step already") as caught:
        single_steps("cpu", 100)
    assert caught.value.status == Exit.USAGE

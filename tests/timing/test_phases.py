"""Seconds by phase: nested ones go to the innermost, and nothing is counted twice."""

import time

import pytest

from questprof.timing.phases import Phases


def test_nested_phases_share_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 4.0, 6.0, 10.0, 13.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    phases = Phases()
    with phases("timing"):  # from 0
        with phases("capture"):  # from 1 to 4
            pass
        pass  # to 6
    with phases("checks"):  # from 10 to 13
        pass
    assert phases.seconds == {"timing": 3.0, "capture": 3.0, "checks": 3.0}


def test_an_error_ends_a_phase() -> None:
    phases = Phases()
    with pytest.raises(ValueError, match="bad"), phases("checks"):
        raise ValueError("bad")
    assert list(phases.seconds) == ["checks"]


def test_the_longest_is_named_first_and_what_took_no_time_is_not() -> None:
    phases = Phases()
    phases.seconds = {"filling": 12.0, "timing": 80.04, "roofs": 0.01}
    assert phases.describe() == "timing 80.0 s, filling 12.0 s"

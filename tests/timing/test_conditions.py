"""Warnings about the machine: what was seen, why it may be, what to do, and at which lengths."""

import pytest
from msgspec.structs import replace

from profiles import CPU, READ_1000, dense, profile
from questprof.model import Ceiling, Clocks
from questprof.timing.conditions import ADVICE, conditions
from questprof.timing.nvml import REASONS


def _clocked(k: int, clocks: Clocks | None):  # type: ignore[no-untyped-def]
    return replace(dense(k * 1024, 1.0), clocks=clocks)


def test_a_reason_is_said_once_with_all_its_lengths() -> None:
    capped = Clocks(("software power cap",), 60)
    said = conditions(profile(_clocked(8, capped), _clocked(2, capped), _clocked(4, Clocks())))
    assert len(said) == 1
    assert "software power cap" in said[0]
    assert "power limit" in said[0]
    assert said[0].endswith("[length 2k, 8k]")


@pytest.mark.parametrize(("share", "warns"), [(None, False), (0.1, False), (0.11, True)])
def test_threads_without_a_core_tell_of_other_work(share: float | None, warns: bool) -> None:
    said = conditions(profile(_clocked(8, Clocks(waited_share=share))))
    assert bool(said) == warns
    assert not warns or "other work ran" in said[0]


def test_every_reason_has_its_advice() -> None:
    assert set(REASONS.values()) == set(ADVICE)


def test_company_on_the_gpu_is_said() -> None:
    (said,) = conditions(profile(_clocked(8, Clocks(other_processes=2))))
    assert "2 other processes" in said
    assert "nvidia-smi" in said


def test_nothing_seen_is_nothing_said() -> None:
    assert conditions(profile(_clocked(8, None), _clocked(2, Clocks(temperature_c=50)))) == []


def _read(gb_s: float, name: str = READ_1000.name):  # type: ignore[no-untyped-def]
    reads = Ceiling(name, READ_1000.num_bytes, (gb_s,) * 3)
    return profile(replace(dense(2048, 1.0, env=CPU), calibration=(reads,)), env=CPU)


def test_a_reader_that_slows_down_tells_of_other_work() -> None:
    """The same reader at 69 % of its 1000 GB/s at the start; at 71 % it is the machine's own."""
    (said,) = conditions(_read(690.0))
    assert "other work ran" in said
    assert conditions(_read(710.0)) == []


def test_another_reader_is_no_measure() -> None:
    assert conditions(_read(100.0, "a reader of another size")) == []

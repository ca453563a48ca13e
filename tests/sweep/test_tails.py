"""tails.py: what a sweep prints of single steps."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from profiles import dense, profile, quest
from questprof.model import SingleSteps, StageTiming
from questprof.scan import scan_rows
from questprof.sweep.tails import print_tails


def tails(*records) -> str:
    console, run = Console(file=io.StringIO(), width=200), profile(*records)
    print_tails(console, run, scan_rows(run))
    return console.file.getvalue()


def test_tails_are_of_single_steps_and_their_clock_is_told():
    """Steps of 101 to 200 us: ranks 94.05 and 98.01 from 0. Dense was not timed step by step."""
    steps = SingleSteps(tuple(float(i) for i in range(101, 201)), 3, 1 << 30, "cold", 1.0, 2.5)
    many = StageTiming(182, 8, 1 << 30, "cold", "loop", "fixed")
    own = dense(8192, 360.0, timing={"dense": many})
    record = quest(8192, (40.0, 20.0, 60.0))
    record = replace(record, timing=dict.fromkeys(record.timing, many))
    assert tails(own, record) == ""
    lines = tails(own, replace(record, single_steps={"quest": steps})).splitlines()
    assert "single steps, us" in lines[1]
    assert lines[3].split() == ["8k", "1k", "-", "-", "-", "150", "195", "199"]
    assert "0.5 us as CUDA tells, 1 us apart at the least" in lines[-1]


def test_on_a_cpu_every_sample_is_a_step():
    """20 samples show a p95, not a p99."""
    record = quest(8192, (4.0, 2.0, 6.0), times_us={"quest": tuple(float(i) for i in range(1, 21))})
    lines = tails(record).splitlines()
    assert lines[3].split() == ["8k", "1k", "-", "-", "-", "10.5", "19.1", "-"]
    assert "on a CPU every sample is one" in lines[-1]

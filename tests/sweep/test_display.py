"""display.py: what a sweep prints at its end."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from profiles import READ_1000, dense, profile, quest, two_baselines
from questprof.model import Ceiling, StageTiming
from questprof.scan import scan_rows
from questprof.sweep.display import baseline_tables, print_tables, problems, scan_tables

BASELINES = ("questprof", "triton", "sdpa", "sdpa-cudnn", "flashinfer", "flashinfer-tc", "fa3")


def printed(*records, **header) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    print_tables(console, scan_rows(profile(*records, **header)))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_line_worked_by_hand():
    """8k: 36 us over 4.194304 (floor and read alike); 36 / 12 = 3; at most 1 / (1/16 + 64/512) = 5.33."""
    lines = printed(dense(8192, 36.0, calibration=(READ_1000,)), quest(8192, (4.0, 2.0, 6.0)))
    times = ["4.00", "2.00", "6.00", "12.0", "(15.26)"]
    shown = ["8k", "1k", "36.0", "(8.58)", "8.58", *times, "3.00x", "of", "5.33x", "ok"]
    assert lines[-1].split() == shown
    assert "speed-up" in lines[0]
    assert lines[1].split()[-4:] == ["of", "at", "most", "check"]


def test_what_is_missing_is_a_dash():
    lines = printed(dense(8192, 36.0), quest(8192, None, status="oom"))
    assert lines[-1].split() == ["8k", "1k", "36.0", "(8.58)", "-", "-", "-", "-", "-", "-", "oom"]


def test_tables_fit_a_hundred_columns():
    """Milliseconds (at 10 GB/s), seven baselines with long variants: nothing is cut."""
    slow = Ceiling("read", 1 << 30, (10.0, 10.0, 10.0))
    records = []
    for k in (2, 128):
        records += [dense(k * 1024, 77.24 * k, backend=name, calibration=(slow,)) for name in BASELINES]
        records += [quest(k * 1024, (5.0 * k, 1.0 * k, 4.8 * k), budget=b) for b in (1024, 4096)]
    records = [replace(record, variant="a-long-variant-2.11.0") for record in records]
    lines = printed(*records, ceilings=(slow,))
    assert 80 < max(map(len, lines)) <= 100
    assert "…" not in "".join(lines)
    said = " ".join(lines)
    assert all(f"{name} a-long-variant-2.11.0" in said for name in BASELINES)


def test_one_table_a_setting_named_by_what_differs():
    settings = ({}, {"summary_layout": "transposed"}, {"backend": "triton"}, {"page_order": "scattered"})
    rows = scan_rows(profile(*(quest(8192, (1.0, 1.0, 1.0), **setting) for setting in settings)))
    assert [heading for heading, _ in scan_tables(rows)] == [
        "kernels questprof, summary paired, pages shuffled",
        "kernels questprof, summary transposed, pages shuffled",
        "kernels triton, summary paired, pages shuffled",
        "kernels questprof, summary paired, pages scattered",
    ]


def test_every_baseline_is_shown_and_the_fastest_marked():
    """At 2k sdpa takes 10 us and questprof 12, at 8k 40 and 36."""
    lines = printed(*two_baselines(), dense(8192, None, backend="fa3", status="unavailable"))
    start = lines.index("every dense baseline: us (x read)")
    assert lines[start + 1].split() == ["L", "questprof", "sdpa", "fa3"]
    shown = {line.split()[0]: line.split()[1:] for line in lines[start + 2 :]}
    assert shown["2k"] == ["12.0", "10.0*", "-"]
    assert shown["8k"] == ["36.0*", "40.0", "unavailable"]
    assert len(shown) == 5


def test_one_baseline_needs_no_table_of_its_own():
    rows = scan_rows(profile(dense(8192, 36.0), quest(8192, (1.0, 1.0, 1.0))))
    assert baseline_tables(rows) == []


def test_layouts_and_keys_have_baselines_of_their_own():
    records = []
    for setting in ({}, {"summary_layout": "transposed"}, {"data": "ramp"}):
        records += [dense(8192, 36.0, backend=name, **setting) for name in BASELINES[:2]]
        records.append(quest(8192, (1.0, 1.0, 1.0), **setting))
    assert [heading for heading, _ in baseline_tables(scan_rows(profile(*records)))] == [
        "every dense baseline, summary paired, keys normal: us (x read)",
        "every dense baseline, summary transposed, keys normal: us (x read)",
        "every dense baseline, summary paired, keys ramp: us (x read)",
    ]


def test_problems_name_the_layout():
    record = quest(8192, None, status="oom", reason="too large", summary_layout="transposed")
    assert problems([record]) == ["oom: too large (quest questprof length 8k budget 1k transposed)"]
    warm = dense(8192, 1.0, timing={"dense": StageTiming(1, 1, 1, "warm", "loop", "fixed")})
    assert problems([warm]) == ["warm, not cold: dense touches too few bytes (dense questprof length 8k)"]


def test_a_pool_smaller_than_asked_is_a_problem():
    point = {"page_order": "scattered", "pool_bytes": 4 << 30}
    records = [replace(quest(8192, (1.0, 1.0, 1.0), **point), pool_bytes=size) for size in (1 << 30, 4 << 30)]
    assert problems(records) == [
        "memory allowed a pool of 1 GiB, not 4 GiB (quest questprof length 8k budget 1k)"
    ]

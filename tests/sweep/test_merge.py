"""Shards become one profile; runs of one grid, and other machines, stay apart."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from profiles import CPU, GPU, dense, profile, quest
from questprof.model import Ceiling, Profile
from questprof.scan import best_ceiling, scan_rows
from questprof.sweep.merge import merge_profiles, without_copies


def _shard(k: int, gb_s: float = 1000.0):  # type: ignore[no-untyped-def]
    ceiling = Ceiling("read", 1 << 30, (gb_s,))
    made = profile(
        dense(k * 1024, 4.0 * k),
        quest(k * 1024, (1.0, 1.0, 1.0)),
        ceilings=(ceiling,),
        command=f"questprof sweep --shard {k}",
        started_at=f"2026-01-0{k}T00:00:00+00:00",
    )
    return replace(made, name=f"{k}.jsonl", warnings=(f"warning {k}",))


def test_shards_of_one_environment_are_one() -> None:
    (merged,) = merge_profiles([_shard(2, 900.0), _shard(4, 1000.0), _shard(1, 800.0)])
    assert [r.point.seq_len // 1024 for r in merged.records] == [2, 2, 4, 4, 1, 1]
    assert merged.name == "2.jsonl + 4.jsonl + 1.jsonl"
    assert merged.warnings == ("warning 2", "warning 4", "warning 1")
    assert merged.header.started_at == "2026-01-01T00:00:00+00:00"
    assert merged.header.command.count("--shard") == 3
    assert best_ceiling(merged.header.ceilings) == 1000.0
    assert len(scan_rows(merged)) == 3


def test_a_point_measured_twice_is_another_run() -> None:
    merged = merge_profiles([_shard(2), _shard(4), _shard(2), _shard(8)])
    assert [part.name for part in merged] == ["2.jsonl + 4.jsonl + 8.jsonl", "2.jsonl"]


def test_other_environments_stay_apart() -> None:
    here = profile(dense(1024, 1.0, env=GPU), env=GPU)
    other = profile(dense(2048, 1.0, env=CPU), env=CPU)
    newer = replace(GPU, driver="581.0")
    updated = profile(dense(2048, 1.0, env=newer), env=newer)
    assert merge_profiles([here, other, updated]) == (here, other, updated)


def test_one_profile_is_itself() -> None:
    one = _shard(2)
    assert merge_profiles([one]) == (one,)
    assert merge_profiles([]) == ()


def _run(name: str, *records, gb_s: float = 1000.0, hour: int = 1):  # type: ignore[no-untyped-def]
    started = f"2026-01-01T{hour:02}:00:00+00:00"
    made = profile(*records, ceilings=(Ceiling("read", 1 << 30, (gb_s,)),), started_at=started)
    return replace(made, name=name)


def test_a_ratio_and_its_floor_are_of_one_run() -> None:
    """Two budgets of one length in two runs: dense takes 30 us in one and 12 us in the other.

    Quest takes 2 + 1 + 3 = 6 us and 1 + 1 + 1 = 3 us: 30 / 6 = 5 and 12 / 3 = 4, and never 12 / 6 or 30 / 3.
    Dense reads 512 bytes for each of 8192 tokens, 4.194304 us at 1000 GB/s and 8.388608 us at 500.
    """
    slow = _run("slow", dense(8192, 30.0), quest(8192, (2.0, 1.0, 3.0), budget=1024), gb_s=1000.0)
    other = (dense(8192, 12.0, backend="sdpa"), quest(8192, (1.0, 1.0, 1.0), budget=2048))
    fast = _run("fast", *other, gb_s=500.0)
    for order in ([slow, fast], [fast, slow]):
        (merged,) = merge_profiles(order)
        rows = {row.token_budget: row for row in scan_rows(merged)}
        assert {budget: row.speed_up for budget, row in rows.items()} == {1024: 5.0, 2048: 4.0}
        assert {budget: row.dense_backend for budget, row in rows.items()} == {
            1024: "questprof",
            2048: "sdpa",
        }
        assert {budget: row.ceiling_gb_s for budget, row in rows.items()} == {1024: 1000.0, 2048: 500.0}
        assert rows[1024].floor_us["dense"] == pytest.approx(4.194304)
        assert rows[2048].floor_us["dense"] == pytest.approx(8.388608)
        assert [len(row.baselines) for row in rows.values()] == [1, 1]


def test_records_that_are_left_out_are_left_out_of_their_run() -> None:
    (merged,) = merge_profiles([_shard(2), _shard(4)])
    kept = merged.only(lambda record: record.point.seq_len == 4096)
    assert [row.seq_len for row in scan_rows(kept)] == [4096]
    assert [len(run.records) for run in kept.runs] == [0, 2]


def test_what_joins_does_not_depend_on_the_order() -> None:
    """The large run is told from the small one that repeats two of its points, wherever the others stand."""
    large = _run("large", *(quest(k * 1024, (1.0, 1.0, 1.0)) for k in (2, 4, 8)), hour=3)
    again = _run("again", *(quest(k * 1024, (1.0, 1.0, 1.0)) for k in (2, 4)), hour=1)
    rest = _run("rest", quest(16384, (1.0, 1.0, 1.0)), hour=2)
    late = _run("late", quest(8192, (1.0, 1.0, 1.0)), hour=4)
    for order in permutations([large, again, rest, late]):
        groups = {frozenset(run.name for run in merged.runs) for merged in merge_profiles(order)}
        assert groups == {frozenset({"large", "rest"}), frozenset({"again", "late"})}


def test_a_copy_is_left_out_and_named() -> None:
    one, other = _run("one", *_shard(2).records), _run("other", *_shard(4).records)
    same, part = replace(one, name="same"), replace(one, name="part", records=one.records[:1])
    kept, said = without_copies([part, one, other, same])
    assert [profile.name for profile in kept] == ["one", "other"]
    assert said == (
        "part is left out: one holds all of its records, and more",
        "same is left out: it is the same run as one",
    )
    assert without_copies([one, one]) == (
        (one,),
        ("one is given twice: both are the same run, which is shown once",),
    )
    namesake = replace(part, name="one")
    assert without_copies([one, namesake])[1] == (
        "one is left out: another profile of that name holds all of its records, and more",
    )


def test_another_run_of_a_grid_and_a_profile_without_records_are_no_copies() -> None:
    one = _run("one", *_shard(2).records)
    again = _run("again", dense(2048, 9.0), *_shard(2).records[1:])
    empty: Profile = _run("empty")
    assert without_copies([one, again, empty, empty]) == ((one, again, empty, empty), ())

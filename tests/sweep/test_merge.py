"""Shards become one profile; runs of one grid, and other machines, stay apart."""

from msgspec.structs import replace

from profiles import CPU, GPU, dense, profile, quest
from questprof.model import Ceiling
from questprof.scan import best_ceiling, scan_rows
from questprof.sweep.merge import merge_profiles


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

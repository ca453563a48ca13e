"""Synthetic profiles whose figures can be worked out by hand: samples are 0.9, 1 and 1.1 x the time.

So the median is the time itself, and with linear ranks p10 = 0.9 + 0.2 x 0.1 = 0.92 and p90 = 1.08 times it.
"""

from __future__ import annotations

from typing import Any

from questprof.model import (
    SCHEMA_VERSION,
    Ceiling,
    Check,
    Environment,
    Header,
    Point,
    Profile,
    Record,
    Shape,
    StageTiming,
)

SHAPE = Shape("toy", num_qo_heads=2, num_kv_heads=2, head_dim=64)
"""fp16: a key or value vector is 128 bytes, so a token is 2 vectors x 2 heads x 128 = 512 bytes."""
GQA_SHAPE = Shape("toy-gqa", num_qo_heads=8, num_kv_heads=2, head_dim=64)
READ_1000 = Ceiling("streaming read", 1 << 30, (990.0, 1000.0, 1010.0))
"""1000 GB/s: 1000 bytes are read in one nanosecond, a megabyte (1e6) in one microsecond."""
GPU = Environment(
    device="cuda",
    device_name="Toy GPU",
    num_workers=4,
    last_level_cache_bytes=1 << 20,
    memory_bytes=1 << 34,
    python="3.11.0",
    platform="Linux",
    versions={"torch": "2.13.0", "triton": "3.9.0"},
    driver="580.1",
    cuda="13.0",
    commit="0123abc",
)
CPU = Environment(
    device="cpu",
    device_name="Toy CPU",
    num_workers=2,
    last_level_cache_bytes=1 << 25,
    memory_bytes=1 << 33,
    python="3.11.0",
    platform="Linux",
    versions={"torch": "2.13.0", "numba": "0.62.0"},
)


def around(us: float) -> tuple[float, float, float]:
    """Three samples with median `us`."""
    return (1.1 * us, 0.9 * us, us)


def token_bytes(shape: Shape) -> int:
    """Bytes of K and V of one token over all KV heads, at two bytes a number."""
    return 2 * 2 * shape.head_dim * shape.num_kv_heads


def dense(
    seq_len: int, us: float | None, *, shape: Shape = SHAPE, env: Environment = GPU, **more: Any
) -> Record:
    """A dense record of median `us`; `more` goes to the point, or to the record for its own fields."""
    point = Point(shape, seq_len, policy="dense", device=env.device, **_of(Point, more))
    num_bytes = token_bytes(shape) * seq_len * point.batch_size
    return _record(point, env, {"dense": us}, {"dense": num_bytes}, more)


def quest(
    seq_len: int,
    us: tuple[float, float, float] | None,
    *,
    budget: int = 1024,
    shape: Shape = SHAPE,
    env: Environment = GPU,
    **more: Any,
) -> Record:
    """A Quest record with `us` = (score, select, attend); quest is their sum, append 2 and append_kv 1.5."""
    point = Point(shape, seq_len, token_budget=budget, device=env.device, **_of(Point, more))
    per_token = token_bytes(shape) * point.batch_size
    score, attend = per_token * seq_len // point.page_size, per_token * min(budget, seq_len)
    floors = {"score": score, "attend": attend, "quest": score + attend}
    score_us, select_us, attend_us = us or (None, None, None)
    times = {"score": score_us, "select": select_us, "attend": attend_us, "quest": sum(us) if us else None}
    times |= {"append": 2.0 if us else None, "append_kv": 1.5 if us else None}
    return _record(point, env, times, floors, more)


def profile(*records: Record, env: Environment = GPU, **header: Any) -> Profile:
    """A profile of `records`; `header` overrides the header's fields (the ceiling is 1000 GB/s)."""
    given = {"command": "questprof sweep --shape toy", "started_at": "2026-01-02T03:04:05+00:00"}
    given |= {"ceilings": (READ_1000,)}
    return Profile(Header(SCHEMA_VERSION, env, **(given | header)), records)


def _of(struct: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {name: more.pop(name) for name in tuple(more) if name in struct.__struct_fields__}


def _record(
    point: Point, env: Environment, us: dict[str, float | None], floors: dict[str, int], more: dict[str, Any]
) -> Record:
    times = {stage: around(value) for stage, value in us.items() if value is not None}
    timing = {stage: StageTiming(1, 8, 1 << 30, "cold", "loop", "fixed") for stage in times}
    checks = tuple(
        Check(stage, "after", 0.5, 1.0) for stage in us if stage in times and "append" not in stage
    )
    given: dict[str, Any] = {"times_us": times, "timing": timing, "floor_bytes": floors, "checks": checks}
    given |= {"status": "ok"} | more
    return Record("sweep", point, point.point_id, env.env_id, **given)


def two_baselines(shape: Shape = SHAPE, *, policy: str = "quest", **point: Any) -> tuple[Record, ...]:
    """Budgets 1024 and 4096 over 2k..32k with two dense baselines, at k = L / 1024.

    Dense takes 4k + 4 us (questprof) and 5k (sdpa): sdpa is faster at 2k, both need 20 at 4k, questprof is
    faster beyond. Quest scores in k / 4 + 2, selects in 2 and attends in 6 (budget 1024) or 18 (4096):
    k / 4 + 10 or k / 4 + 22 in all. Budget 1024 at 2k: 10 / 10.5, at 4k: 20 / 11; so it crosses
    between them. Budget 4096 at 8k: 36 / 24 = 1.5.
    """
    found = []
    for k in (2, 4, 8, 16, 32):
        found += [
            dense(k * 1024, 4.0 * k + 4, shape=shape, **point),
            dense(k * 1024, 5.0 * k, shape=shape, backend="sdpa", **point),
        ]
        for budget in (1, 4):
            us = (0.25 * k + 2, 2.0, 4.0 * budget + 2)
            found.append(quest(k * 1024, us, budget=budget * 1024, shape=shape, policy=policy, **point))
    return tuple(found)

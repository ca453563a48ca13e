"""Decode steps whose figures can be worked out by hand: every sample of a part is its time.

A model of 4 layers, the first of which is dense in a Quest step. Dense: 1000 us, of which attention 600.
Quest: attention of the dense layer 150, score 20, select 10, attend 45; so of 450 served us 75 remain, s = 6.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from profiles import GPU, profile
from questprof.decode.records import DecodeResult, DecodeSetup, PartTime
from questprof.model import Environment, Point, Profile, Record, Shape, StageTiming

SHAPE = Shape("toy", num_qo_heads=2, num_kv_heads=2, head_dim=64, num_layers=4)
OTHERS = {
    "embed": 2.0, "norm": 10.0, "qkv": 80.0, "rope": 8.0, "append": 5.0, "out_proj": 40.0, "ffn": 200.0,
    "head": 30.0, "sampling": 5.0, "gaps": 20.0,
}  # fmt: skip
"""Together 400 us."""
DENSE = OTHERS | {"dense": 600.0}
QUEST = OTHERS | {"dense": 150.0, "score": 20.0, "select": 10.0, "attend": 45.0}
"""Together 625 us: 1.6 times as fast."""


def samples(us: float, count: int = 20) -> tuple[float, ...]:
    """`count` samples with median `us`, half of them a thousandth below and half above."""
    return tuple(us * (0.999 if n % 2 else 1.001) for n in range(count))


def record(
    policy: str,
    parts: dict[str, float],
    *,
    us: float | None = None,
    eager_us: float | None = None,
    setup: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    env: Environment = GPU,
    point: dict[str, Any] | None = None,
    **fields: Any,
) -> Record:
    """A record whose step takes `us` (default: the sum of its parts), at 32k, budget 2048, batch 1."""
    total = sum(parts.values()) if us is None else us
    decode = replace(DecodeSetup("toy", "fp16", dense_layers=1), **(setup or {}))
    budget = {} if policy == "dense" else {"token_budget": 2048}
    if policy == "dense":
        decode = replace(decode, dense_layers=2, layer_budgets=())
    asked = replace(
        Point(SHAPE, 32768, policy=policy, device=env.device, decode=decode, **budget), **(point or {})
    )
    times = {"step": samples(total)} | ({"eager": samples(eager_us)} if eager_us else {})
    timing = {name: StageTiming(1, 1, 1 << 30, "cold", "loop", "fixed") for name in times}
    made = DecodeResult(
        parts=tuple(PartTime(name, "activity trace", (one,), launches=4) for name, one in parts.items()),
        num_steps=20,
        weight_bytes=350_000_000,
    )
    given: dict[str, Any] = {"status": "ok", "times_us": times, "timing": timing}
    given |= {"decode": replace(made, **(result or {}))} | fields
    return Record("amdahl", asked, asked.point_id, env.env_id, **given)


def dense(parts: dict[str, float] = DENSE, **more: Any) -> Record:
    """The dense step."""
    return record("dense", parts, **more)


def quest(parts: dict[str, float] = QUEST, **more: Any) -> Record:
    """The Quest step."""
    return record("quest", parts, **more)


def pair_profile(*records: Record, **header: Any) -> Profile:
    """A profile of `records`, or of the two steps above."""
    return profile(*(records or (dense(), quest())), **header)

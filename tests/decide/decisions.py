"""Findings of a decision whose figures can be worked out by hand, over the profiles of `profiles`.

Budget 1024 on a toy GPU, at k = L / 1024: dense takes min(4k + 4, 5k) us, Quest k / 4 + 10.

    L      dense   quest   speed-up
    2k     10      10.5    0.952
    4k     20      11      1.818
    8k     36      12      3
    16k    68      14      4.857
    32k    132     18      7.333

so it crosses 1 between 2k and 4k, at 2048 x 2 ** (ln 1.05 / (ln 1.05 + ln(20 / 11))) = 2158 tokens.
A whole step at 32k takes 1000 us dense and 625 with Quest (see `amdahl_steps`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import amdahl_steps
import bytes_records
from msgspec.structs import replace as changed

from profiles import CPU, GPU, SHAPE, profile, two_baselines
from questprof.crossover.traffic import Traffic
from questprof.decide.evidence import Findings
from questprof.decide.request import Question
from questprof.model import Profile, Record

QUESTION = Question(
    device="cuda",
    shape=SHAPE,
    config=None,
    no_config="no sizes",
    shape_name="toy",
    lengths=(2048, 4096, 8192, 16384, 32768),
    page_size=16,
    budget=1024,
    batch_sizes=(1,),
    weights="fp16",
    backends=("questprof", "sdpa"),
)
CROSSING = 2158


def traffic(*lengths: float, steps: float = 1.0) -> Traffic:
    """A request of each length, `steps` decode steps each."""
    return Traffic("lengths.csv", "rows", "lengths.csv", lengths, (steps,) * len(lengths))


def steps(*records: Record, **header: Any) -> Profile:
    """The steps at budget 1024: `records`, or those of 32k."""
    found = records or (amdahl_steps.dense(), amdahl_steps.quest())
    return profile(*(_budget(one) for one in found), **header)


def _budget(one: Record) -> Record:
    if one.point.policy == "dense":
        return one
    point = changed(one.point, token_budget=1024)
    return changed(one, point=point, point_id=point.point_id)


def step(policy: str, us: float, length: int, **more: Any) -> Record:
    """A step of `us` at `length`, all of it in parts of the fixture's proportions."""
    parts = amdahl_steps.DENSE if policy == "dense" else amdahl_steps.QUEST
    scale = us / sum(parts.values())
    own = {name: value * scale for name, value in parts.items()}
    return amdahl_steps.record(policy, own, point={"seq_len": length, **more.pop("point", {})}, **more)


def two_steps(shorter: tuple[float, float] = (700.0, 600.0)) -> Profile:
    """Steps at 8k, of `shorter` (dense, quest) us, and at 32k."""
    return steps(
        step("dense", shorter[0], 8192),
        step("quest", shorter[1], 8192),
        step("dense", 1000.0, 32768),
        step("quest", 625.0, 32768),
    )


def findings(**changes: Any) -> Findings:
    """Everything measured and in order: attention, bytes by trace, one whole step."""
    found = Findings(
        QUESTION, GPU, profile(*two_baselines()), profile(bytes_records.traced()), steps(), {}, (), ()
    )
    return replace(found, **changes)


def asked(**changes: Any) -> Question:
    """The question with `changes`."""
    return replace(QUESTION, **changes)


__all__ = ["CPU", "CROSSING", "GPU", "QUESTION", "asked", "findings", "step", "steps", "traffic", "two_steps"]

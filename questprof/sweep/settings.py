"""How a sweep measures, beside which points: device, samples, energy, time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from questprof.errors import Exit, QuestprofError
from questprof.timing.stopping import Rule, fixed

Device = Literal["cpu", "cuda"]

RULES: dict[Device, Rule] = {"cpu": Rule(0.02, 9, 21, 10.0), "cuda": Rule(0.005, 10, 50, 3.0)}
"""Samples of a stage where none are asked for: what keeps the default grid within its minutes."""
SINGLE_STEPS = 100
"""What a p99 needs at the least."""
ENERGY_SECONDS = 1.0
"""Seconds of replays a stage: NVML moves its counter every few tens of milliseconds."""


@dataclass(frozen=True)
class Settings:
    """`time_s` None: as long as it takes. `energy_seconds` 0: no energy."""

    device: Device
    rule: Rule
    energy_seconds: float = 0.0
    single_steps: int = 0
    """Steps of quest and dense that are timed one by one; on a CPU every sample is one already."""
    time_s: float | None = None
    time_share: float = 1.0
    """Share of the user's `--time` that `time_s` is: what other `--time` would do is told by it."""
    ends_s: float = 0.0
    """Of every setting the shortest and the longest length may take these seconds, where that is more."""


def rule_for(
    device: Device,
    samples: int | None,
    precision: float | None,
    max_samples: int | None,
    max_seconds: float | None,
) -> Rule:
    """The stopping rule of the options; `precision` in percent. `samples` excludes the others."""
    if samples is not None:
        if (precision, max_samples, max_seconds) != (None, None, None):
            raise QuestprofError(
                "--samples beside --precision, --max-samples or --max-seconds",
                "the number of samples is either given or found",
                "Leave --samples out, or the others.",
            )
        return fixed(samples)
    rule = RULES[device]
    most = max_samples or rule.max_samples
    least = min(rule.min_samples, most)
    if least == most:
        least = most - 1  # the number given stays a bound
    target = rule.target if precision is None else precision / 100
    return replace(
        rule,
        target=target,
        min_samples=least,
        max_samples=most,
        max_seconds=rule.max_seconds if max_seconds is None else max_seconds,
    )


def energy_seconds(device: Device, wanted: bool) -> float:
    """Seconds of energy a stage; QuestprofError (status 3) where no counter is known."""
    if wanted and device == "cpu":
        raise QuestprofError(
            "--energy on a CPU",
            "energy comes from NVML, which knows GPUs alone",
            "Leave --energy out, or run on a GPU.",
            Exit.MACHINE,
        )
    return ENERGY_SECONDS if wanted else 0.0


def single_steps(device: Device, wanted: int | None) -> int:
    """How many steps are timed one by one; QuestprofError where they are asked for on a CPU."""
    if device == "cuda":
        return SINGLE_STEPS if wanted is None else wanted
    if wanted:
        raise QuestprofError(
            "--single-steps on a CPU",
            "every sample there is a single step already",
            "Leave it out; --samples 100 takes what p99 needs.",
        )
    return 0

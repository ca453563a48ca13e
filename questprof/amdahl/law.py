"""Equation (13) by hand: what an attention speed-up is worth in a whole step. Pure; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from questprof.equations import eq13_time_ratio
from questprof.errors import QuestprofError

PAPER_ATTENTION_SPEEDUP: Final = 7.03
"""The highest self-attention speed-up that the Quest paper reports (32K tokens, budget 2048)."""
SOURCE: Final = "modelled: step time ratio, eq. (13)"


@dataclass(frozen=True)
class HandCalculation:
    """A step whose attention, `share` of the dense time, becomes `attention_speedup` times as fast."""

    share: float
    attention_speedup: float
    time_ratio: float
    """Time of the new step over that of the dense one."""
    speedup: float
    most_speedup: float | None
    """Speed-up if attention cost nothing, 1 / (1 - share); None where attention is all of the step."""
    source: str = SOURCE


def hand_calculation(share: float, attention_speedup: float) -> HandCalculation:
    """Equation (13) for one share (0..1) and one attention speed-up (above 0, finite).

    QuestprofError otherwise; where attention would cost nothing it says what bounds the step.
    """
    ratio = eq13_time_ratio(share, attention_speedup)
    if not (math.isfinite(attention_speedup) and math.isfinite(ratio)):
        raise QuestprofError(
            f"an attention speed-up of {attention_speedup:g}",
            _without_cost(share) if attention_speedup > 1 else "the step would never end",
            "Give a finite one, as in --attention-speedup 7.03.",
        )
    return HandCalculation(share, attention_speedup, ratio, 1 / ratio, most_speedup(share))


def _without_cost(share: float) -> str:
    most = most_speedup(share)
    if most is None:
        return "attention is all of the step, so that without its cost the speed-up has no bound"
    return f"attention without cost would give the step the bound 1 / (1 - {share:g}) = {_figure(most, 2)}x"


def most_speedup(share: float) -> float | None:
    """Speed-up of a step that loses `share` of its time for nothing; None where nothing is left."""
    return 1 / (1 - share) if share < 1 else None


def explain(found: HandCalculation) -> list[str]:
    """The arithmetic in words, a sentence a line."""
    rest, kept = 1 - found.share, _figure(found.share / found.attention_speedup, 4)
    ratio, speedup = _figure(found.time_ratio, 4), _figure(found.speedup, 2)
    change = "faster" if found.attention_speedup >= 1 else "slower"
    return [
        f"Attention takes {found.share:.1%} of a dense step, everything else {rest:.1%}.",
        f"Attention becomes {found.attention_speedup:g} times as fast: {found.share:g} / "
        f"{found.attention_speedup:g} = {kept} of the step remains of it, and the rest is no {change}.",
        f"Time ratio, eq. (13): {rest:g} + {found.share:g} / {found.attention_speedup:g} = {ratio}.",
        f"Speed-up of the step: 1 / {ratio} = {speedup}x.",
        f"If attention cost nothing it would be 1 / {rest:g} = {_figure(found.most_speedup, 2)}x."
        if found.most_speedup
        else "If attention cost nothing, nothing would be left of the step: there is no bound.",
        "Modelled, not measured; `questprof amdahl` without --share measures both on this machine.",
    ]


def _figure(value: float, decimals: int) -> str:
    """`value` with so many decimals; where that tells nothing of it or fills lines, in powers of ten."""
    readable = value == 0 or 10.0**-decimals <= abs(value) < 1e6
    return f"{value:.{decimals}f}" if readable else f"{value:.{decimals}g}"


def as_document(found: HandCalculation) -> dict[str, Any]:
    """`found` for JSON."""
    return dict(msgspec.to_builtins(found))

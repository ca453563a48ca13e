"""Equation (13) by hand: what an attention speed-up is worth in a whole step. Pure; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from questprof.equations import eq13_time_ratio

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
    """Equation (13) for one share (0..1) and one attention speed-up (above 0); QuestprofError otherwise."""
    ratio = eq13_time_ratio(share, attention_speedup)
    return HandCalculation(share, attention_speedup, ratio, 1 / ratio, most_speedup(share))


def most_speedup(share: float) -> float | None:
    """Speed-up of a step that loses `share` of its time for nothing; None where nothing is left."""
    return 1 / (1 - share) if share < 1 else None


def explain(found: HandCalculation) -> list[str]:
    """The arithmetic in words, a sentence a line."""
    rest, kept = 1 - found.share, found.share / found.attention_speedup
    change = "faster" if found.attention_speedup >= 1 else "slower"
    bound = f"{found.most_speedup:.2f}x" if found.most_speedup else "without bound"
    return [
        f"Attention takes {found.share:.1%} of a dense step, everything else {rest:.1%}.",
        f"Attention becomes {found.attention_speedup:g} times as fast: {found.share:g} / "
        f"{found.attention_speedup:g} = {kept:.4f} of the step remains of it, and the rest is no {change}.",
        f"Time ratio, eq. (13): {rest:g} + {found.share:g} / {found.attention_speedup:g} = "
        f"{found.time_ratio:.4f}.",
        f"Speed-up of the step: 1 / {found.time_ratio:.4f} = {found.speedup:.2f}x.",
        f"If attention cost nothing it would be 1 / {rest:g} = {bound}."
        if found.most_speedup
        else "If attention cost nothing, nothing would be left of the step.",
        "Modelled, not measured; `questprof amdahl` without --share measures both on this machine.",
    ]


def as_document(found: HandCalculation) -> dict[str, Any]:
    """`found` for JSON."""
    return dict(msgspec.to_builtins(found))

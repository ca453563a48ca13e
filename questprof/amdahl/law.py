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
MOST_DIGITS: Final = 18
"""Digits that no float needs more than."""
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
    speedup = _figure(found.speedup, 2)
    # As many decimals as 1 / ratio needs to be the speed-up that is shown.
    decimals = next(
        (d for d in range(4, MOST_DIGITS) if _figure(1 / float(_figure(found.time_ratio, d)), 2) == speedup),
        MOST_DIGITS,
    )
    ratio = _figure(found.time_ratio, decimals)
    kept = _figure(found.share / found.attention_speedup, decimals)
    rest, share = f"{1 - found.share:.9g}", _share(found.share)
    times = f"{found.attention_speedup:.12g}"
    change = "faster" if found.attention_speedup >= 1 else "slower"
    taken, left = _percentages(found.share)
    return [
        f"Attention takes {taken} of a dense step, everything else {left}.",
        f"Attention becomes {times} times as fast: {share} / {times} = {kept} of the step remains of it, and "
        f"the rest is no {change}.",
        f"Time ratio, eq. (13): {rest} + {share} / {times} = {ratio}.",
        f"Speed-up of the step: 1 / {ratio} = {speedup}x.",
        f"If attention cost nothing it would be 1 / {rest} = {_figure(found.most_speedup, 2)}x."
        if found.most_speedup
        else "If attention cost nothing, nothing would be left of the step: there is no bound.",
        "Modelled, not measured; `questprof amdahl` without --share measures both on this machine.",
    ]


def _share(share: float) -> str:
    """`share` with 9 digits, or as many as tell it from all of the step."""
    rest = 1 - share
    shown = (f"{share:.{digits}g}" for digits in range(9, MOST_DIGITS))
    return next((text for text in shown if abs(1 - float(text) - rest) <= 1e-3 * rest), repr(share))


def _percentages(share: float) -> tuple[str, str]:
    """`share` and the rest with a decimal, or with as many as show a percentage of both that is not 0."""
    both = (share, 1 - share)
    for decimals in range(1, MOST_DIGITS):
        shown = tuple(f"{one:.{decimals}%}" for one in both)
        errors = (abs(float(text[:-1]) / 100 - one) for text, one in zip(shown, both, strict=True))
        if all(error <= 0.05 * one for error, one in zip(errors, both, strict=True)):
            break
    return shown[0], shown[1]


def _figure(value: float, decimals: int) -> str:
    """`value` with so many decimals; where that tells nothing of it or fills lines, in powers of ten."""
    readable = value == 0 or 10.0**-decimals <= abs(value) < 1e6
    return f"{value:.{decimals}f}" if readable else f"{value:.{decimals}g}"


def as_document(found: HandCalculation) -> dict[str, Any]:
    """`found` for JSON."""
    return dict(msgspec.to_builtins(found))

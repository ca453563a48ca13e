"""Frequencies of rotary position embeddings, plain and stretched, as published.

Pure. Su et al., RoFormer (2021); "linear": Chen et al., Position Interpolation (2023); "llama3": the rule
of Llama 3.1's model card, which leaves short wavelengths alone and stretches long ones.
"""

from __future__ import annotations

import math
from typing import Literal

from questprof.structs import ByValue


class RopeScaling(ByValue, frozen=True):
    """How positions are stretched by `factor`; the other fields belong to kind llama3."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> list[float]:
    """Radians a position for each of the head_dim / 2 pairs of dimensions (d, d + head_dim / 2)."""
    plain = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return [frequency / scaling.factor for frequency in plain]
    return [_llama3(frequency, scaling) for frequency in plain]


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency

"""Frequencies of rotary embeddings by hand."""

from __future__ import annotations

import math

import pytest

from questprof.decode.rope import RopeScaling, inverse_frequencies


def test_plain_frequencies_fall_geometrically() -> None:
    assert inverse_frequencies(4, 10000.0, None) == pytest.approx([1.0, 0.01])


def test_linear_scaling_divides_all() -> None:
    assert inverse_frequencies(4, 10000.0, RopeScaling("linear", 4.0)) == pytest.approx([0.25, 0.0025])


def test_llama3_scaling_stretches_long_waves_only() -> None:
    # 628.3 positions were trained: a wave of 2 pi (frequency 1) fits 100 times and stays; one of 628.3 (0.01)
    # fits once: at low_freq_factor 2 it is stretched by 8; between 2 and 8 turns the two are mixed: 4 turns
    # are a third of the way.
    original = round(200 * math.pi)
    scaling = RopeScaling("llama3", 8.0, 2.0, 8.0, original)
    kept, mixed, stretched = inverse_frequencies(6, 1000.0, scaling)
    plain = [1.0, 0.1, 0.01]
    assert kept == plain[0]
    assert stretched == pytest.approx(plain[2] / 8)
    assert mixed == pytest.approx(plain[1])  # 10 turns
    four_turns = 4 * 2 * math.pi / original
    (mixed,) = inverse_frequencies(4, four_turns**-2, scaling)[1:]
    assert mixed == pytest.approx(four_turns / 3 + 2 / 3 * four_turns / 8)

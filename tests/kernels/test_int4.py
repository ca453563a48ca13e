"""4-bit weights: one group by hand, the packing bit by bit, errors within half a step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import int4


def test_one_group_by_hand() -> None:
    # The largest magnitude, 3.5, becomes 7: a step is 0.5. 1.2 / 0.5 = 2.4 -> 2; -1.3 / 0.5 = -2.6 -> -3;
    # halves go to the even neighbour: 0.75 / 0.5 = 1.5 -> 2, 0.25 / 0.5 = 0.5 -> 0.
    weights = torch.zeros(1, 128)
    weights[0, :6] = torch.tensor([-3.5, 1.2, -1.3, 0.75, 0.25, 3.5])
    numbers, scales = int4.quantise(weights)
    assert scales.tolist() == [[0.5]]
    assert numbers[0, :7].tolist() == [1, 10, 5, 10, 8, 15, 8]
    back = int4.dequantise(numbers, scales, torch.float64)
    assert back[0, :7].tolist() == [-3.5, 1.0, -1.5, 1.0, 0.0, 3.5, 0.0]


def test_words_hold_even_columns_low_and_odd_ones_high() -> None:
    numbers = torch.zeros(1, 128, dtype=torch.uint8)
    numbers[0, :8] = torch.arange(1, 9)
    # Columns 0, 2, 4, 6 from bit 0 up; 1, 3, 5, 7 from bit 16 up.
    assert int4.pack(numbers)[0, 0].item() == 0x8642_7531 - (1 << 32)
    numbers[0, 7] = 15
    assert int4.pack(numbers)[0, 0].item() == 0xF642_7531 - (1 << 32)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3), st.sampled_from([1e-4, 1.0, 300.0]))
def test_packing_loses_nothing_and_a_weight_at_most_half_a_step(
    seed: int, rows: int, groups: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, 128 * groups, generator=generator) * size
    numbers, scales = int4.quantise(weights)
    assert torch.equal(int4.unpack(int4.pack(numbers)), numbers)
    steps = scales.double().repeat_interleave(128, dim=1)
    error = (int4.dequantise(numbers, scales, torch.float64) - weights.double()).abs()
    # The scale is rounded to fp16, so that the largest weight may lie a little past 7 steps; in fp16's
    # subnormal range (steps below 2 ** -14) its rounding is 2 ** -25 a step.
    assert (error <= steps * (0.5 + 8 * 2**-11) + 8 * 2**-25).all()


def test_groups_of_zeros_and_odd_columns() -> None:
    numbers, scales = int4.quantise(torch.zeros(2, 256))
    assert scales.count_nonzero() == 0
    assert (numbers == 8).all()
    with pytest.raises(ValueError, match="100 columns"):
        int4.quantise(torch.zeros(2, 100))

"""4-bit weights: symmetric, one fp16 scale a group of 128 columns, packed eight to a word.

A weight is (u - 8) * scale with u in 0..15. A word holds 8 columns in a row: nibble p is column 2p, nibble
p + 4 column 2p + 1, so that one mask leaves a pair of neighbours in the word's halves. Imports no triton.
"""

from __future__ import annotations

import torch

GROUP_SIZE = 128
GROUP_WORDS = GROUP_SIZE // 8
ZERO = 8


def quantise(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(u uint8 [N, K] in 0..15, scales fp16 [N, K / 128]) of `weights` [N, K]; K a multiple of 128.

    The scale maps the group's largest magnitude to 7; a group of zeros has scale 0.
    """
    rows, columns = weights.shape
    if columns % GROUP_SIZE:
        raise ValueError(f"{columns} columns do not divide into groups of {GROUP_SIZE}")
    groups = weights.float().view(rows, columns // GROUP_SIZE, GROUP_SIZE)
    scales = (groups.abs().amax(dim=-1) / (ZERO - 1)).to(torch.float16)
    divisors = torch.where(scales == 0, torch.ones_like(scales), scales).float()
    numbers = (groups / divisors[..., None]).round_().clamp_(-ZERO, ZERO - 1) + ZERO
    return numbers.to(torch.uint8).view(rows, columns), scales


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """int32 words [N, K / 8] of `numbers` uint8 [N, K] in 0..15, in the order the module describes."""
    rows, columns = numbers.shape
    pairs = numbers.view(rows, columns // 8, 4, 2)
    words = torch.zeros((rows, columns // 8), dtype=torch.int32, device=numbers.device)
    for p in range(4):
        words |= pairs[:, :, p, 0].to(torch.int32) << (4 * p)
        words |= pairs[:, :, p, 1].to(torch.int32) << (4 * p + 16)
    return words


def unpack(words: torch.Tensor) -> torch.Tensor:
    """The numbers uint8 [N, K] of `pack`'s words."""
    shifts = torch.tensor([[4 * p, 4 * p + 16] for p in range(4)], dtype=torch.int32, device=words.device)
    return ((words[:, :, None, None] >> shifts) & 15).to(torch.uint8).reshape(words.shape[0], -1)


def dequantise(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weights [N, K] that `numbers` and `scales` stand for, in `dtype`."""
    rows, columns = numbers.shape
    groups = numbers.view(rows, -1, GROUP_SIZE).to(torch.float32) - ZERO
    return (groups * scales.float()[..., None]).to(dtype).view(rows, columns)

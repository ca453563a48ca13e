"""K, V and summaries as 32-bit words, two 16-bit numbers each.

A tile that waits in registers for its turn must not be touched: 16-bit numbers would be repacked as soon as
they arrive, and the repacking would wait for them. Words are taken apart where they are used.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TRITON_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def low(words, DTYPE: tl.constexpr):
    """The even-numbered numbers of `words`, or all of them in fp32; fp32, of the same shape."""
    if tl.float32 == DTYPE:
        return words.to(tl.float32, bitcast=True)
    elif tl.bfloat16 == DTYPE:
        return (words << 16).to(tl.float32, bitcast=True)
    else:
        return (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high(words, DTYPE: tl.constexpr):
    """The odd-numbered numbers of 16-bit `words`; fp32, of the same shape."""
    if tl.bfloat16 == DTYPE:
        return (words & -65536).to(tl.float32, bitcast=True)
    else:
        return (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """The int32 view of a contiguous tensor; nothing is copied."""
    return tensor.view(torch.int32)

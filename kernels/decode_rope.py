"""Rotary position embedding of the newest queries and keys, in place in the fused projection's output.

Pairs are (d, d + head_dim / 2) of a head, as published Llama weights have them. Cosines and sines come
from a table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from questprof_kernels.decode_launch import check_matrix, launch_options, wait_for_previous


@triton.jit
def rope_kernel(
    qkv,
    positions,
    table,  # fp32 [.., 2, HALF]: cosines, sines
    row_stride,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,  # of one program
    DEPENDENT: tl.constexpr,
):
    """One program: HEADS heads of one token."""
    token = tl.program_id(1).to(tl.int64)
    wait_for_previous(DEPENDENT)
    position = tl.load(positions + token).to(tl.int64)
    pair = tl.arange(0, HALF)
    cosine = tl.load(table + position * (2 * HALF) + pair)[None, :]
    sine = tl.load(table + position * (2 * HALF) + HALF + pair)[None, :]
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    first = qkv + token * row_stride + head[:, None] * (2 * HALF) + pair[None, :]
    x, y = tl.load(first).to(tl.float32), tl.load(first + HALF).to(tl.float32)
    tl.store(first, (x * cosine - y * sine).to(qkv.dtype.element_ty))
    tl.store(first + HALF, (y * cosine + x * sine).to(qkv.dtype.element_ty))


def heads_per_program(num_heads: int) -> int:
    """Heads of one program: the largest power of two up to 4 that divides their number."""
    return next(heads for heads in (4, 2, 1) if num_heads % heads == 0)


def rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    num_heads: int,
    *,
    dependent: bool = False,
) -> None:
    """Turn the first `num_heads` heads of each row of `qkv` [num_tokens, >= num_heads * head_dim] in place.

    `positions` int32 [num_tokens] index `table` fp32 [.., 2, head_dim / 2] of `decode_torch.rope_table`.
    """
    check_matrix("qkv", qkv, None, None, qkv)
    if positions.shape != qkv.shape[:1] or positions.dtype != torch.int32:
        raise ValueError(
            f"positions must be int32 [{qkv.shape[0]}], they are {positions.dtype} {positions.shape}"
        )
    half = table.shape[2]
    heads = heads_per_program(num_heads)
    rope_kernel[(num_heads // heads, qkv.shape[0])](
        qkv,
        positions,
        table,
        qkv.stride(0),
        HALF=half,
        HEADS=heads,
        num_warps=2,
        **launch_options(dependent),
    )

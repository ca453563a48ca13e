"""Products of a few rows of activations with a large matrix: out [M, N] = x [M, K] w[N, K]^T, M up to 8.

The matrix is read once, 16 bytes a thread at a time, straight to registers and one tile ahead: at so few rows
its bytes are all that counts. A program owns BLOCK_N rows of the matrix and walks their columns. GATED: it
owns as many rows of the up projection too (the second half of w) and writes silu(gate) * up.

`gemv_kernel` reads fp16 or bf16 weights as words; `gemv_int4_kernel` reads eight 4-bit weights a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from questprof_kernels.decode_gemv_cuda import check_arguments
from questprof_kernels.decode_launch import launch_options, wait_for_previous
from questprof_kernels.decode_swiglu import silu_product
from questprof_kernels.int4 import GROUP_WORDS
from questprof_kernels.plan import next_power_of_2
from questprof_kernels.words import as_words, high, low


@triton.jit
def _word_products(words, x_words, DTYPE: tl.constexpr):
    """Products of two numbers a word, summed: words [N, W], x_words [M, W] -> fp32 [M, N, W]."""
    total = low(words, DTYPE)[None, :, :] * low(x_words, DTYPE)[:, None, :]
    return total + high(words, DTYPE)[None, :, :] * high(x_words, DTYPE)[:, None, :]


@triton.jit
def _with_bias(acc, bias, row, there, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        acc += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def gemv_kernel(
    x,  # int32 words [.., num_words]
    w,  # int32 words
    bias,
    out,
    num_x_rows,
    num_rows,
    num_words,
    M: tl.constexpr,  # rows of x, padded to a power of two
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: BLOCK_N of the `num_rows` rows of the output."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_there = row < num_rows
    word = tl.arange(0, BLOCK_W)
    m = tl.arange(0, M)
    x_words = x + m[:, None] * num_words + word[None, :]
    x_there = (m < num_x_rows)[:, None]
    base = w + row.to(tl.int64)[:, None] * num_words + word[None, :]
    up_base = base + num_rows.to(tl.int64) * num_words
    there = row_there[:, None] & (word < num_words)[None, :]
    tile = tl.load(base, mask=there, other=0)
    if GATED:
        up_tile = tl.load(up_base, mask=there, other=0)
    wait_for_previous(DEPENDENT)
    acc = tl.zeros([M, BLOCK_N, BLOCK_W], tl.float32)
    up_acc = tl.zeros([M, BLOCK_N, BLOCK_W], tl.float32)
    for first in range(0, num_words, BLOCK_W):
        numbers = tl.load(x_words + first, mask=x_there & (first + word < num_words)[None, :], other=0)
        there = row_there[:, None] & (first + BLOCK_W + word < num_words)[None, :]
        now = tile
        tile = tl.load(base + first + BLOCK_W, mask=there, other=0)
        if GATED:
            up_now = up_tile
            up_tile = tl.load(up_base + first + BLOCK_W, mask=there, other=0)
        acc += _word_products(now, numbers, DTYPE)
        if GATED:
            up_acc += _word_products(up_now, numbers, DTYPE)
    result = _with_bias(tl.sum(acc, axis=2), bias, row, row_there, HAS_BIAS)
    if GATED:
        result = silu_product(result, tl.sum(up_acc, axis=2))
    place = out + m.to(tl.int64)[:, None] * num_rows + row[None, :]
    tl.store(place, result.to(DTYPE), mask=x_there & row_there[None, :])


@triton.jit
def _nibble(words, i: tl.constexpr):
    """Weight i of each word, u - 8, as fp32: exact, without a conversion.

    The nibble lies in the mantissa of 2 ** 23, at 16 ** (i % 5) times its value; from the sixth one on the
    word is shifted first.
    """
    shifted = words if i < 5 else words >> 20
    bits = (shifted & (15 << (4 * (i % 5)))) | 0x4B000000
    return (bits.to(tl.float32, bitcast=True) - (8388608.0 + 8.0 * 16.0 ** (i % 5))) * (1.0 / 16.0 ** (i % 5))


@triton.jit
def _nibble_products(words, scales, x_words, first, x_there, num_groups, DTYPE: tl.constexpr):
    """Scaled products of eight weights a word, summed: words [N, G, 16], scales [N, G] -> fp32 [M, N, G, 16].

    Nibbles p and p + 4 of a word meet the two numbers of its word p of x.
    """
    M: tl.constexpr = x_words.shape[0]
    G: tl.constexpr = words.shape[1]
    group = first + tl.arange(0, G)
    word = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    there = x_there & (group < num_groups)[None, :, None]
    total = tl.zeros([M, words.shape[0], G, 16], tl.float32)
    for p in tl.static_range(4):
        x = tl.load(x_words + (4 * word + p)[None, :, :], mask=there, other=0)
        total += _nibble(words, p)[None, :, :, :] * low(x, DTYPE)[:, None, :, :]
        total += _nibble(words, p + 4)[None, :, :, :] * high(x, DTYPE)[:, None, :, :]
    return total * scales.to(tl.float32)[None, :, :, None]


@triton.jit
def gemv_int4_kernel(
    x,  # int32 words [.., 64 * num_groups]
    w,  # int32 words [num_rows (twice when GATED), 16 * num_groups]
    scales,  # [num_rows (twice when GATED), num_groups]
    bias,
    out,
    num_x_rows,
    num_rows,
    num_groups,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    G: tl.constexpr,  # groups of a tile
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: BLOCK_N of the `num_rows` rows of the output."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_there = row < num_rows
    group = tl.arange(0, G)
    m = tl.arange(0, M)
    x_there = (m < num_x_rows)[:, None, None]
    x_words = x + m[:, None, None] * (64 * num_groups)
    line = row.to(tl.int64)[:, None] * num_groups + group[None, :]
    base = w + line[:, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    half = num_rows.to(tl.int64) * num_groups  # groups of the gates
    wait_for_previous(DEPENDENT)
    acc = tl.zeros([M, BLOCK_N, G, 16], tl.float32)
    up_acc = tl.zeros([M, BLOCK_N, G, 16], tl.float32)
    for first in range(0, num_groups, G):
        there = row_there[:, None] & (first + group < num_groups)[None, :]
        tile = tl.load(base + first * 16, mask=there[:, :, None], other=0)
        scale = tl.load(scales + line + first, mask=there, other=0.0)
        acc += _nibble_products(tile, scale, x_words, first, x_there, num_groups, DTYPE)
        if GATED:
            tile = tl.load(base + (half + first) * 16, mask=there[:, :, None], other=0)
            scale = tl.load(scales + line + half + first, mask=there, other=0.0)
            up_acc += _nibble_products(tile, scale, x_words, first, x_there, num_groups, DTYPE)
    result = _with_bias(tl.sum(tl.sum(acc, axis=3), axis=2), bias, row, row_there, HAS_BIAS)
    if GATED:
        result = silu_product(result, tl.sum(tl.sum(up_acc, axis=3), axis=2))
    place = out + m.to(tl.int64)[:, None] * num_rows + row[None, :]
    tl.store(place, result.to(DTYPE), mask=(m < num_x_rows)[:, None] & row_there[None, :])


@dataclass(frozen=True)
class GemvPlan:
    """Rows of a program's tile and its warps; every thread loads 16 bytes of each row at a time."""

    block_n: int
    num_warps: int

    @property
    def name(self) -> str:
        """How a record calls it."""
        return f"triton {self.block_n}x{self.num_warps}"

    @property
    def block_words(self) -> int:
        """Words of one row in a tile."""
        return 4 * 32 * self.num_warps

    @property
    def block_groups(self) -> int:
        """int4 groups of one row in a tile."""
        return self.block_words // GROUP_WORDS


PLANS = tuple(GemvPlan(n, warps) for n, warps in ((4, 4), (2, 8)))
"""Plans worth trying; which is fastest depends on the matrix, and is measured."""
INT4_PLANS = PLANS


def gemv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: GemvPlan,
    *,
    gated: bool = False,
    dependent: bool = False,
) -> None:
    """Product out [M, N] = x [M, K] w^T + bias; fp16 or bf16, M up to MOST_ROWS, K a multiple of 32.

    `w` [N, K]; gated: [2 N, K], gates first, and out = silu(gate) * up. Raises TypeError, ValueError.
    """
    check_arguments(x, w, None, bias, out, gated)
    gemv_kernel[(triton.cdiv(out.shape[1], plan.block_n),)](
        as_words(x),
        as_words(w),
        bias if bias is not None else out,
        out,
        *(x.shape[0], out.shape[1], x.shape[1] // 2),
        BLOCK_W=plan.block_words,
        **_constants(x, bias, plan, gated),
        **launch_options(dependent),
    )


def gemv_int4(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    plan: GemvPlan,
    *,
    gated: bool = False,
    dependent: bool = False,
) -> None:
    """`gemv` with int4 weights as `int4.pack` leaves them: packed int32 [N, K / 8], scales [N, K / 128].

    fp16 activations.
    """
    check_arguments(x, packed, scales, bias, out, gated)
    gemv_int4_kernel[(triton.cdiv(out.shape[1], plan.block_n),)](
        as_words(x),
        packed,
        scales,
        bias if bias is not None else out,
        out,
        *(x.shape[0], out.shape[1], scales.shape[1]),
        G=plan.block_groups,
        **_constants(x, bias, plan, gated),
        **launch_options(dependent),
    )


def _constants(x: torch.Tensor, bias: torch.Tensor | None, plan: GemvPlan, gated: bool) -> dict[str, Any]:
    return {
        "M": next_power_of_2(x.shape[0]),
        "BLOCK_N": plan.block_n,
        "GATED": gated,
        "HAS_BIAS": bias is not None,
        "num_warps": plan.num_warps,
    }

"""The two ends of a decode step: embedding rows of token ids, and the likeliest id of each row of logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from questprof_kernels.decode_launch import check_matrix, launch_options, wait_for_previous

GREEDY_BLOCK = 16384
"""Logits that a program reads at once: 32 a thread, so that few rounds wait for memory."""


@triton.jit
def embed_kernel(tokens, embedding, out, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One program: BLOCK numbers of one token's row."""
    wait_for_previous(DEPENDENT)
    row = tl.program_id(1).to(tl.int64)
    token = tl.load(tokens + row)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    tl.store(out + row * size + column, tl.load(embedding + token * size + column, mask=there), mask=there)


@triton.jit
def greedy_kernel(logits, tokens, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One program: one row of logits; NaN never wins, equal ones go to the lower id."""
    wait_for_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32) + column
    for first in range(0, size, BLOCK):
        number = tl.load(
            logits + row * size + first + column, mask=first + column < size, other=float("-inf")
        )
        number = number.to(tl.float32)
        better = number > best
        best = tl.where(better, number, best)
        where = tl.where(better, first + column, where)
    top = tl.max(best, axis=0)
    tl.store(tokens + row, tl.min(tl.where(best == top, where, size - 1), axis=0).to(tl.int64))


def embed(
    tokens: torch.Tensor, embedding: torch.Tensor, out: torch.Tensor, *, dependent: bool = False
) -> None:
    """Write row tokens[r] (int64) of `embedding` [vocab_size, size] into row r of `out`."""
    check_matrix("out", out, tokens.shape[0], embedding.shape[1], embedding)
    size = embedding.shape[1]
    block = 1024
    embed_kernel[(triton.cdiv(size, block), tokens.shape[0])](
        tokens, embedding, out, size, BLOCK=block, num_warps=4, **launch_options(dependent)
    )


def greedy(logits: torch.Tensor, tokens: torch.Tensor, *, dependent: bool = False) -> None:
    """Write the id of the largest of each row of `logits` [num_rows, vocab_size] into `tokens` int64."""
    check_matrix("logits", logits, tokens.shape[0], None, logits)
    greedy_kernel[(tokens.shape[0],)](
        logits, tokens, logits.shape[1], BLOCK=GREEDY_BLOCK, num_warps=16, **launch_options(dependent)
    )

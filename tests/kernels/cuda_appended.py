"""What the tests of the CUDA `append` share: where it runs, caches to append to, and an append to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from appended import HEADS, assert_holds, of_requests, tokens
from cases import DTYPES, Case, make_cache
from questprof_kernels import append_cuda

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
FEW, MANY = 1 << 30, 0
"""As `append_cuda.MOST_NEW`: every append is one of few new tokens, or none is."""


def filled(
    lengths: Sequence[int],
    layout: str,
    dtype: str = "fp16",
    head_dim: int = 64,
    page_size: int = 16,
    spare_pages: int = 40,
) -> Case:
    """A shuffled cache of `lengths` tokens, NaN in every slot and box that holds none."""
    return make_cache(
        lengths,
        page_size,
        HEADS,
        head_dim,
        DTYPES[dtype],
        3,
        DEVICE,
        spare_pages=spare_pages,
        summary_layout=layout,
    )


def grow(case: Case, counts: Sequence[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Append so many new tokens to each request; (keys, values) of them."""
    pool = case.cache.pool
    new = [tokens(sum(counts), pool.head_dim, pool.k.dtype, 2 * seed + i, DEVICE) for i in range(2)]
    append_cuda.append(case.cache, *new, case.cache.extend(list(counts)))
    return new[0], new[1]


def grow_in_steps(case: Case, steps: Sequence[Sequence[int]], seed: int) -> None:
    """Append so many new tokens to each request in each step; all that it holds is checked after each."""
    keys, values = of_requests(case)
    for step, counts in enumerate(steps):
        new_keys, new_values = grow(case, counts, seed + step)
        keys = [torch.cat(pair) for pair in zip(keys, new_keys.split(list(counts)), strict=True)]
        values = [torch.cat(pair) for pair in zip(values, new_values.split(list(counts)), strict=True)]
        assert_holds(case.cache, keys, values)

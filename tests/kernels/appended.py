"""What the tests of every `append` share: new tokens, and what a cache must hold after they were written."""

from __future__ import annotations

import torch
from cases import Case, gaussian
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache

HEADS = 2


def tokens(count: int, head_dim: int, dtype: torch.dtype, seed: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return gaussian((count, HEADS, head_dim), dtype, generator).to(device)


def assert_holds(cache: PagedCache, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Each request holds exactly these tokens [L_r, heads, d], and its boxes are theirs."""
    for request in range(cache.batch_size):
        for head in range(cache.pool.num_kv_heads):
            held = reference.gather(cache, request, head)
            assert torch.equal(held[0], keys[request][:, head].double().cpu())
            assert torch.equal(held[1], values[request][:, head].double().cpu())
            stored, expected = (
                reference.stored_boxes(cache, request, head),
                reference.boxes(cache, request, head),
            )
            assert torch.equal(torch.stack(stored), torch.stack(expected))


def of_requests(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    counts = case.new_indptr.diff().tolist()
    return list(case.keys.split(counts)), list(case.values.split(counts))

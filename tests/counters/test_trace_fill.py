"""The plain append that fills the caches of a trace, against the float64 boxes and the tokens themselves."""

from __future__ import annotations

import pytest
import torch
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool

from questprof.counters.trace_fill import fill, poison
from questprof.policies import newest_tokens


@pytest.mark.parametrize("layout", ["paired", "transposed"])
@pytest.mark.parametrize(("page_size", "steps"), [(16, [(40, 0, 7), (9, 1, 100)]), (3, [(1, 200, 0)])])
def test_tokens_and_boxes_lie_where_they_belong(
    layout: str, page_size: int, steps: list[tuple[int, ...]]
) -> None:
    pool = PagePool(80, 2, page_size, 64, torch.float16, summary_layout=layout, num_workers=1)
    poison(pool)
    cache = PagedCache(pool, 3, 80)
    generator = torch.Generator().manual_seed(1)
    for counts in steps:
        shape = (sum(counts), 2, 64)
        keys, values = (torch.randn(shape, generator=generator).half() for _ in range(2))
        fill(cache, keys, values, cache.extend(counts))
        held = newest_tokens(cache, counts)
        assert torch.equal(held[0], keys)
        assert torch.equal(held[1], values)
    for request in range(3):
        for head in range(2):
            stored = reference.stored_boxes(cache, request, head)
            for ours, exact in zip(stored, reference.boxes(cache, request, head), strict=True):
                assert torch.equal(ours, exact)
    assert int(pool.k.isnan().sum()) == pool.k.numel() - 128 * sum(map(sum, steps))

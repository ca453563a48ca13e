"""The KV caches of all layers of a batch of requests, filled with random tokens, growing together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from questprof.backends import Backend
from questprof.decode.config import Device, ModelConfig
from questprof.model import SummaryLayout
from questprof.workload import FILL_TOKENS, new_tokens

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache


@dataclass(frozen=True)
class StepCaches:
    """A cache a layer, the first of which grows for all; requests may grow to `most_tokens[r]` tokens."""

    layers: tuple[PagedCache, ...]
    most_tokens: tuple[int, ...]

    @property
    def lead(self) -> PagedCache:
        """The cache whose tables and lengths are everybody's."""
        return self.layers[0]

    @property
    def most_pages(self) -> tuple[int, ...]:
        """Pages of each request at its most tokens."""
        size = self.lead.pool.page_size
        return tuple(-(-tokens // size) for tokens in self.most_tokens)


def make_caches(
    config: ModelConfig,
    kv_dtype: torch.dtype,
    device: Device,
    most_tokens: Sequence[int],
    *,
    page_size: int = 16,
    summary_layout: SummaryLayout = "paired",
    num_workers: int | None = None,
    shuffled: bool = True,
    seed: int = 0,
) -> StepCaches:
    """Empty caches with room for `most_tokens[r]` tokens of each request r; pages lie in a random order."""
    from questprof_kernels.paged_cache import PagedCache, PagePool
    from questprof_kernels.plan import summary_blocks

    pages = [-(-tokens // page_size) for tokens in most_tokens]

    def pool() -> PagePool:
        return PagePool(
            sum(pages),
            config.num_kv_heads,
            page_size,
            config.head_dim,
            kv_dtype,
            summary_layout=summary_layout,
            num_summary_blocks=summary_blocks(pages),
            device=device,
            num_workers=num_workers,
        )

    first = pool()
    if shuffled:
        order = list(range(sum(pages)))
        random.Random(seed).shuffle(order)
        first.reorder_free(order)
    lead = PagedCache(first, len(pages), sum(pages), planned_pages=max(pages) if device == "cuda" else 0)
    others = (lead.add_layer(pool()) for _ in range(config.num_layers - 1))
    return StepCaches((lead, *others), tuple(most_tokens))


def fill(caches: StepCaches, seq_lens: Sequence[int], backend: Backend, seed: int = 0) -> None:
    """Append standard normal K and V until request r has `seq_lens[r]` tokens, layer by layer."""
    import torch

    lead = caches.lead
    generator = torch.Generator(device=lead.pool.device).manual_seed(seed)
    for request, length in enumerate(seq_lens):
        while (missing := length - lead.seq_lens[request]) > 0:
            count = min(FILL_TOKENS, missing)
            new_indptr = lead.extend([count if r == request else 0 for r in range(lead.batch_size)])
            for cache in caches.layers:
                keys, values = new_tokens(cache.pool, count, generator)
                backend.stages["append"](cache, keys, values, new_indptr)

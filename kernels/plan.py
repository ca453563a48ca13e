"""Tiles, splits, grids and physical tiles of every stage, in pure Python.

The launchers, the compile tests and the byte ledger all ask here, so that what is predicted and
tested is what is launched. Nothing here imports torch or triton. `num_workers` is the number of
streaming multiprocessors of a GPU, or of threads on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


def ceil_div(a: int, b: int) -> int:
    """The least whole number not below a / b."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two not below n, and 1 for n <= 1."""
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class ScorePlan:
    """One program scores `tile_pages` pages of one request for one KV head and its query heads."""

    tile_pages: int
    num_warps: int
    grid: tuple[int, int, int]  # (page tiles, num_kv_heads, batch_size)


@dataclass(frozen=True)
class SelectPlan:
    """One program selects for one (query head, request), `block` scores at a time."""

    block: int
    num_warps: int
    grid: tuple[int, int]  # (num_qo_heads, batch_size)


@dataclass(frozen=True)
class AttentionPlan:
    """One program attends `heads_per_program` query heads over one split of a request's pages.

    `tile_slots` is the page size rounded up to a power of two; slots past the page size are
    masked and not read. `physical_tile` is the number of tokens the kernel reads at least of a
    page it touches (1: it reads valid tokens only).
    """

    tile_pages: int
    tile_slots: int
    physical_tile: int
    num_splits: int
    heads_per_program: int
    num_warps: int
    num_stages: int
    grid: tuple[int, int, int]  # (num_splits, head programs, batch_size)
    head_dim: int

    @property
    def num_counters(self) -> int:
        """Arrival counters at the head of the scratch, one per (request, head program)."""
        return self.grid[1] * self.grid[2]

    @property
    def partial_floats(self) -> int:
        """fp32 numbers of the split partials: (output, max, sum) per query head and split."""
        if self.num_splits == 1:
            return 0
        return self.num_counters * self.heads_per_program * self.num_splits * (self.head_dim + 2)

    @property
    def scratch_floats(self) -> int:
        """fp32 numbers of scratch the launcher needs, zero before the first launch."""
        return self.num_counters + self.partial_floats


@dataclass(frozen=True)
class AppendPlan:
    """One program writes the new tokens of one page for one KV head."""

    tile_slots: int
    num_warps: int
    grid: tuple[int, int, int]  # (pages touched at most, num_kv_heads, batch_size)


@lru_cache(maxsize=4096)
def plan_score(
    *, num_kv_heads: int, head_dim: int, batch_size: int, max_pages: int, num_workers: int
) -> ScorePlan:
    """Plan `score`: enough programs to fill the workers, at most 16 pages each."""
    tile_pages = 16 if head_dim <= 128 else 8
    while tile_pages > 4 and ceil_div(max_pages, tile_pages) * num_kv_heads * batch_size < 8 * num_workers:
        tile_pages //= 2
    grid = (max(1, ceil_div(max_pages, tile_pages)), num_kv_heads, max(1, batch_size))
    return ScorePlan(tile_pages, 4, grid)


@lru_cache(maxsize=4096)
def plan_select(*, num_qo_heads: int, batch_size: int, max_pages: int) -> SelectPlan:
    """Plan `select`: the whole row in one block up to 8192 pages, a loop over blocks beyond."""
    block = min(8192, max(256, next_power_of_2(max_pages)))
    return SelectPlan(block, max(4, min(32, block // 256)), (num_qo_heads, max(1, batch_size)))


@lru_cache(maxsize=4096)
def plan_attention(
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    per_query_head: bool,
    head_dim: int,
    page_size: int,
    batch_size: int,
    pages_per_request: int,
    num_workers: int,
) -> AttentionPlan:
    """Plan `attend` (`per_query_head`: each query head reads its own pages) or `dense` (each KV head once).

    `pages_per_request` is the mean number of pages a request's head reads, rounded up.
    """
    head_programs = num_qo_heads if per_query_head else num_kv_heads
    tile_slots = next_power_of_2(page_size)
    tile_pages = max(1, 64 // tile_slots)
    tiles = max(1, ceil_div(pages_per_request, tile_pages))
    wanted = ceil_div(4 * num_workers, head_programs * max(1, batch_size))
    num_splits = max(1, min(wanted, tiles, 64))
    return AttentionPlan(
        tile_pages=tile_pages,
        tile_slots=tile_slots,
        physical_tile=1,
        num_splits=num_splits,
        heads_per_program=num_qo_heads // head_programs,
        num_warps=4,
        num_stages=3,
        grid=(num_splits, head_programs, max(1, batch_size)),
        head_dim=head_dim,
    )


@lru_cache(maxsize=4096)
def plan_append(
    *, num_kv_heads: int, page_size: int, batch_size: int, max_new_tokens: int
) -> AppendPlan:
    """Plan `append`: one program per page that new tokens can touch."""
    pages = 1 + ceil_div(max(0, max_new_tokens - 1), page_size)
    return AppendPlan(next_power_of_2(page_size), 4, (pages, num_kv_heads, max(1, batch_size)))

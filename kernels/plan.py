"""Tiles, splits, grids and physical tiles of every stage, in pure Python.

The launchers, the compile tests and the byte ledger all ask here, so that what is predicted and
tested is what is launched. Nothing here imports torch or triton. `num_workers` is the number of
streaming multiprocessors of a GPU, or of threads on a CPU. A plan changes what runs where, never
what comes out, so that a sweep may replace any field whose consistency the field's comment allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

LOAD_BYTES = 16  # the widest load of one thread
WARP_SIZE = 32
LEAST_SPLIT_SLOTS = 64  # no split of attention is planned for fewer token slots
MAX_SPLITS = 128
ROW_BYTES = 128  # of a transposed summary's row in one tile of score: a whole memory line
RUN_TOKENS = 128  # that one program of append writes: 8 pages of 16, which make 16 bytes of a summary row
SUMMARY_LAYOUTS = ("paired", "transposed")
SUMMARY_BLOCK_PAGES = 64  # logical pages of one request in a block of the transposed summary
PROGRAMS_PER_WORKER = 2  # of attention, resident at once; one of a group, whose tiles wait in shared memory


def ceil_div(a: int, b: int) -> int:
    """The least whole number not below a / b."""
    return -(-a // b)


def summary_blocks(num_pages: Iterable[int]) -> int:
    """Blocks of a transposed summary over requests of `num_pages` pages each that share none."""
    return sum(ceil_div(pages, SUMMARY_BLOCK_PAGES) for pages in num_pages)


def next_power_of_2(n: int) -> int:
    """The least power of two not below n, and 1 for n <= 1."""
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def equal_shares(*, num_units: int, num_pages: int, num_workers: int) -> int:
    """Parts of each request's pages on a CPU, so that units x parts divide evenly among the workers."""
    return max(1, min(num_workers // gcd(num_units, num_workers), num_pages))


@dataclass(frozen=True)
class ScorePlan:
    """One program scores `tile_pages` (a power of two) pages of one request at a time, every grid[0]-th tile.

    It does so for one KV head and all query heads of its group.
    """

    tile_pages: int
    num_warps: int
    grid: tuple[int, int, int]  # (programs that share a head's tiles, num_kv_heads, batch_size)


@dataclass(frozen=True)
class SelectPlan:
    """One program selects for one (query head, request).

    The first `block` (a power of two) scores stay in registers; those beyond are read again in every round.
    """

    block: int
    num_warps: int
    grid: tuple[int, int]  # (num_qo_heads, batch_size)


@dataclass(frozen=True)
class AttentionPlan:
    """One program attends `heads_per_program` query heads over one split of a request's pages.

    A split's pages form a line of `tile_slots` slots each, the page size rounded up to a power of two;
    the program walks it `tile_tokens` slots at a time. Slots past the page size are masked and not
    read. `physical_tile` is the number of tokens the kernel reads at least of a page it touches
    (1: it reads valid tokens only). `tile_rows` is how many tokens of K one 16-byte load of every
    thread covers; it divides `tile_tokens`.
    """

    tile_tokens: int
    tile_rows: int
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
    def counter_floats(self) -> int:
        """Scratch before the partials: the counters, rounded up so that the partials are 16-byte aligned."""
        return ceil_div(self.num_counters, 4) * 4

    @property
    def partial_floats(self) -> int:
        """fp32 numbers of the split partials: (output, max, sum) per query head and split."""
        if self.num_splits == 1:
            return 0
        return self.num_counters * self.heads_per_program * self.num_splits * (self.head_dim + 2)

    @property
    def scratch_floats(self) -> int:
        """fp32 numbers of scratch the launcher needs, zero before the first launch."""
        return self.counter_floats + self.partial_floats

    @property
    def merge_step(self) -> int:
        """Splits whose partials the merging program holds in registers at once, 32 numbers a thread."""
        row = next_power_of_2(self.heads_per_program) * self.head_dim
        return min(next_power_of_2(self.num_splits), max(1, 32 * WARP_SIZE * self.num_warps // row))

    def active_splits(self, num_pages: int) -> int:
        """Splits of a request with `num_pages` pages to attend that work; the others exit at once.

        One active split writes the output itself; of more, each writes and the last one reads
        heads_per_program * (head_dim + 2) fp32 numbers a split and head program.
        """
        return max(1, ceil_div(num_pages, max(1, ceil_div(num_pages, self.num_splits))))


@dataclass(frozen=True)
class BlockPlan:
    """CUDA attention: block (split, head program, request), in which a warp takes 16 tokens at a time."""

    num_splits: int
    num_warps: int
    heads_per_program: int
    head_dim: int
    grid: tuple[int, int, int]  # (num_splits, head programs, batch_size)

    @property
    def header_floats(self) -> int:
        """Scratch before the partials: a launch counter and an arrival counter of each head program."""
        return ceil_div(2 * self.grid[1] * self.grid[2], 4) * 4

    @property
    def scratch_floats(self) -> int:
        """fp32 numbers of scratch, zero before the first launch and this plan's alone: 8-byte partials."""
        programs = self.grid[1] * self.grid[2]
        return self.header_floats + 2 * programs * self.num_splits * self.heads_per_program * (
            self.head_dim + 2
        )

    def active_splits(self, num_pages: int) -> int:
        """Splits that work on a request with `num_pages` to attend; of several, each posts a partial."""
        return max(1, min(self.num_splits, num_pages))


@dataclass(frozen=True)
class AppendPlan:
    """One program writes runs of `run_pages` touched pages (every grid[0]-th run) of one KV head.

    It does so `tile_slots` token slots at a time; both are powers of two, and a run is at most a block of
    the transposed summary.
    """

    tile_slots: int
    run_pages: int
    num_warps: int
    grid: tuple[int, int, int]  # (runs touched at most, num_kv_heads, batch_size)


@lru_cache(maxsize=4096)
def plan_score(
    *,
    num_kv_heads: int,
    head_dim: int,
    batch_size: int,
    max_pages: int,
    num_workers: int,
    tile_pages: int = 0,
    num_warps: int = 0,
    programs_per_worker: int = 8,
) -> ScorePlan:
    """Plan `score`: programs for one wave over the workers, which share the tiles evenly.

    A request much shorter than `max_pages` gives most of its programs nothing to do. `tile_pages` and
    `num_warps` above 0 override what the plan would choose: every thread loads 16 bytes of min and of max.
    """
    heads = num_kv_heads * max(1, batch_size)
    wave = programs_per_worker * num_workers
    if not tile_pages:
        tile_pages = 16 if head_dim <= 128 else 8
        while tile_pages > 4 and ceil_div(max_pages, tile_pages) * heads < wave // 2:
            tile_pages //= 2
    num_warps = num_warps or max(1, min(4, tile_pages * head_dim * 2 // (WARP_SIZE * LOAD_BYTES)))
    tiles = max(1, ceil_div(max_pages, tile_pages))
    tiles_per_program = ceil_div(tiles, max(1, wave // heads))
    return ScorePlan(
        tile_pages, num_warps, (ceil_div(tiles, tiles_per_program), num_kv_heads, max(1, batch_size))
    )


@lru_cache(maxsize=4096)
def plan_score_transposed(
    *,
    num_kv_heads: int,
    batch_size: int,
    max_pages: int,
    num_workers: int,
    element_bytes: int = 2,
    tile_pages: int = 0,
    num_warps: int = 0,
    programs_per_worker: int = 2,
) -> ScorePlan:
    """Plan `score` over a transposed summary: tiles of 128 bytes of each row, of 32 where tiles are too few.

    `element_bytes` is of the summary. Every thread loads 4 times 16 bytes of each of the rows that the signs
    of q pick, of 128 dimensions; zeros let the plan choose.
    """
    heads, wave = num_kv_heads * max(1, batch_size), programs_per_worker * num_workers
    most, least = ROW_BYTES // element_bytes, 32 // element_bytes
    if not tile_pages:
        tile_pages = most
        while tile_pages > least and ceil_div(max_pages, tile_pages) * heads < wave:
            tile_pages //= 2
    num_warps = num_warps or max(1, 8 * tile_pages // most)
    tiles = max(1, ceil_div(max_pages, tile_pages))
    tiles_per_program = ceil_div(tiles, max(1, wave // heads))
    return ScorePlan(
        tile_pages, num_warps, (ceil_div(tiles, tiles_per_program), num_kv_heads, max(1, batch_size))
    )


@lru_cache(maxsize=4096)
def plan_select(
    *, num_qo_heads: int, batch_size: int, max_pages: int, block: int = 0, num_warps: int = 0
) -> SelectPlan:
    """Plan `select`: the whole row in registers up to 8192 pages. `block`, `num_warps` above 0 override."""
    block = block or min(8192, max(256, next_power_of_2(max_pages)))
    return SelectPlan(block, num_warps or max(4, min(16, block // 256)), (num_qo_heads, max(1, batch_size)))


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
    element_bytes: int = 2,
    num_splits: int = 0,
    num_warps: int = 0,
    tile_tokens: int = 0,
    num_stages: int = 0,
) -> AttentionPlan:
    """Plan `attend` (`per_query_head`: each query head reads its own pages) or `dense` (each KV head once).

    `pages_per_request` is the mean number of pages a request's head reads, rounded up. The splits fill
    one wave of programs and do not depend on `element_bytes`; zeros let the plan choose.
    """
    head_programs = num_qo_heads if per_query_head else num_kv_heads
    heads_per_program = num_qo_heads // head_programs
    grouped = heads_per_program > 1
    num_warps = num_warps or (8 if grouped and element_bytes == 4 else 4)
    tile_slots = next_power_of_2(page_size)
    tile_rows = max(1, num_warps * WARP_SIZE * LOAD_BYTES // (head_dim * element_bytes))
    tile_tokens = tile_tokens or (128 // element_bytes if grouped else 8 * tile_rows)
    programs = head_programs * max(1, batch_size)
    wave = (1 if grouped else PROGRAMS_PER_WORKER) * num_workers
    most = ceil_div(pages_per_request * tile_slots, LEAST_SPLIT_SLOTS)
    num_splits = num_splits or max(1, min(wave // programs, most, pages_per_request, MAX_SPLITS))
    return AttentionPlan(
        tile_tokens=tile_tokens,
        tile_rows=tile_rows,
        tile_slots=tile_slots,
        physical_tile=1,
        num_splits=num_splits,
        heads_per_program=heads_per_program,
        num_warps=num_warps,
        num_stages=num_stages or (3 if grouped else 1),
        grid=(num_splits, head_programs, max(1, batch_size)),
        head_dim=head_dim,
    )


@lru_cache(maxsize=4096)
def plan_blocks(
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    per_query_head: bool,
    head_dim: int,
    batch_size: int,
    pages_per_request: int,
    num_workers: int,
    num_splits: int = 0,
    num_warps: int = 0,
) -> BlockPlan:
    """Plan CUDA `attend` (`per_query_head`) or `dense`: one wave of blocks where the heads leave room.

    One block of 16 warps or two of 8 fill a multiprocessor; one of 8 where a group of query heads shares its
    registers. Zeros let the plan choose.
    """
    head_programs = num_qo_heads if per_query_head else num_kv_heads
    heads_per_program = num_qo_heads // head_programs
    programs = head_programs * max(1, batch_size)
    grouped = heads_per_program > 1
    num_warps = num_warps or (8 if grouped or programs > num_workers else 16)
    slots = num_workers if grouped else num_workers * max(1, 16 // num_warps)
    most = ceil_div(pages_per_request, 4)
    num_splits = num_splits or max(1, min(slots // programs, most, MAX_SPLITS))
    grid = (num_splits, head_programs, max(1, batch_size))
    return BlockPlan(num_splits, num_warps, heads_per_program, head_dim, grid)


@lru_cache(maxsize=4096)
def plan_append(
    *,
    num_kv_heads: int,
    page_size: int,
    batch_size: int,
    max_new_tokens: int,
    max_pages: int = 0,
    transposed: bool = False,
    tile_slots: int = 0,
    run_pages: int = 0,
    num_warps: int = 0,
) -> AppendPlan:
    """Plan `append`: one program per run of pages that new tokens can touch, `max_pages` (above 0) at most.

    A run is one page for a few new tokens, RUN_TOKENS of a prefill. `transposed`: the boxes of a run gather
    in registers, too many for one warp. `tile_slots`, `run_pages` and `num_warps` above 0 override what the
    plan would choose.
    """
    pages = 1 + ceil_div(max(0, max_new_tokens - 1), page_size)
    pages = min(pages, max_pages or pages)
    tile_slots = tile_slots or min(16, next_power_of_2(page_size), next_power_of_2(max_new_tokens))
    prefill = max_new_tokens > RUN_TOKENS
    run_pages = run_pages or (max(1, min(16, RUN_TOKENS // next_power_of_2(page_size))) if prefill else 1)
    runs = ceil_div(pages + run_pages - 1, run_pages)  # the first may begin before the first touched page
    if not num_warps:  # one warp finds a page's min and max without a barrier
        num_warps = (2 if transposed else 1) if prefill else 4
    return AppendPlan(tile_slots, run_pages, num_warps, (runs, num_kv_heads, max(1, batch_size)))

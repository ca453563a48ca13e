"""The paged KV cache of one layer: page pool, page summaries, block tables.

A `PagePool` owns the storage; several `PagedCache`s (batches of requests) may draw on one pool
and share pages of it. Sizes and page lists are kept on the host; these tensors mirror them on the
device for the stages. Imports no triton.

    block_table     int32 [capacity_pages]   physical page of each logical page, ragged by kv_indptr
    kv_indptr       int32 [batch_size + 1]   request r owns logical pages kv_indptr[r]:kv_indptr[r+1]
    dense_table     int32 [capacity_pages]   the same pages for what reads all, in the order of `walk`
    last_page_len   int32 [batch_size]       valid tokens of the last page; 0 for an empty request
    last_page       int32 [batch_size]       its physical page: what block_table tells, known with the lengths
    last_block      int32 [batch_size]       its summary block, likewise
    summary_table   int32 [most blocks]      block of every 64 logical pages, ragged by summary_indptr
    summary_indptr  int32 [batch_size + 1]   request r owns blocks summary_indptr[r]:summary_indptr[r+1]

The last two and last_block serve the transposed summary; with the paired one, which has no blocks, they
stay zero.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from questprof_kernels import cpu_memory
from questprof_kernels.pieces import Pieces
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, SUMMARY_LAYOUTS, ceil_div
from questprof_kernels.summary import PairedSummary, Summary, TransposedSummary

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
REGION_BYTES = 2 << 20
"""Of K or V: what one address that a GPU looks up covers. Large tensors begin where such a region does."""
SPARE_BLOCKS = 32
"""Summary blocks of a pool beyond one per 64 pages: so many requests may have a partly filled one."""


class PagePool:
    """Storage of K, V [num_pages, num_kv_heads, page_size, head_dim] and summaries, with reference counts.

    `summary_dtype` must hold every value of `kv_dtype` exactly, or the box would not bound the keys.
    `summary_layout` is `paired` or `transposed`; kernels/summary.py says what each costs. A transposed
    summary has `num_summary_blocks` blocks of 64 pages. The default has room for all pages in up to
    SPARE_BLOCKS requests that share none; more requests, or often forked ones, need more. `page_bytes` are
    those of one page of K, and of V; a region of K, and of V, is `region_bytes` long.
    """

    def __init__(
        self,
        num_pages: int,
        num_kv_heads: int,
        page_size: int,
        head_dim: int,
        kv_dtype: torch.dtype,
        *,
        summary_dtype: torch.dtype | None = None,
        summary_layout: str = "paired",
        num_summary_blocks: int | None = None,
        device: torch.device | str = "cpu",
        num_workers: int | None = None,
    ) -> None:
        summary_dtype = summary_dtype or kv_dtype
        if not 1 <= page_size <= 128:
            raise ValueError(f"page_size {page_size} is outside 1..128")
        if summary_dtype not in (kv_dtype, torch.float32):
            raise ValueError(f"summary_dtype {summary_dtype} cannot hold every {kv_dtype} key exactly")
        if summary_layout not in SUMMARY_LAYOUTS:
            raise ValueError(f"summary_layout {summary_layout!r} is none of {', '.join(SUMMARY_LAYOUTS)}")
        self.device = torch.device(device)
        self.page_bytes = num_kv_heads * page_size * head_dim * kv_dtype.itemsize
        self.region_bytes = REGION_BYTES
        shape = (num_pages, num_kv_heads, page_size, head_dim)
        self.k = cpu_memory.empty(shape, kv_dtype, self.device)
        self.v = cpu_memory.empty(shape, kv_dtype, self.device)
        self.pages = Pieces("page", num_pages, self._copy_page)
        if num_summary_blocks is None:
            num_summary_blocks = ceil_div(num_pages, SUMMARY_BLOCK_PAGES) + SPARE_BLOCKS
        boxes = num_kv_heads, head_dim, summary_dtype, self.device
        self.summary: Summary = (
            PairedSummary(num_pages, *boxes)
            if summary_layout == "paired"
            else TransposedSummary(num_summary_blocks, *boxes)
        )
        self.num_workers = num_workers or default_num_workers(self.device)

    @property
    def num_pages(self) -> int:
        """Pages of storage, taken or free."""
        return self.k.shape[0]

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a page."""
        return self.k.shape[1]

    @property
    def page_size(self) -> int:
        """Token slots of a page (S)."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements of one key or value vector."""
        return self.k.shape[3]

    def region(self, page: int) -> int:
        """The region of K, and of V, in which a page begins."""
        return page * self.page_bytes // self.region_bytes

    def reorder_free(self, order: Sequence[int]) -> None:
        """Hand out the free pages in this order from now on (a permutation of the free pages)."""
        self.pages.reorder_free(order)

    def _copy_page(self, src: int, dst: int) -> None:
        self.k[dst] = self.k[src]
        self.v[dst] = self.v[src]
        self.summary.copy_page(src, dst)


@dataclass
class _Request:
    """Host side of one request: its length in tokens, its physical pages, its summary blocks.

    `walk` holds the pages region by region, in logical order within one, so that few addresses are looked up.
    The last page is last, as it alone may be partly filled. A page that comes alone, as in decoding, follows
    those there are; when several come, as of a prompt, all are put in order again.
    """

    seq_len: int = 0
    pages: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    walk: list[int] = field(default_factory=list)

    def update_walk(self, changed: int, region: Callable[[int], int]) -> int:
        """Bring `walk` up to date after a change of the pages from logical page `changed` on.

        Returns its own first index that may have changed.
        """
        only_the_end = changed >= len(self.walk) - 1 and len(self.pages) - len(self.walk) in (0, 1)
        start = changed if only_the_end else 0
        new = self.pages[start:]
        self.walk[start:] = sorted(new[:-1], key=region) + new[-1:]
        return start


class _Mirror:
    """Lists of the requests on the device: `tables` int32 [capacity], row r at indptr[r]:indptr[r + 1]."""

    def __init__(self, capacity: int, batch_size: int, device: torch.device, num_tables: int = 1) -> None:
        self.tables = [
            torch.zeros(max(1, capacity), dtype=torch.int32, device=device) for _ in range(num_tables)
        ]
        self.indptr = torch.zeros(batch_size + 1, dtype=torch.int32, device=device)
        self._starts = [0] * (batch_size + 1)

    def write(self, *changes: tuple[Sequence[Sequence[int]], tuple[int, int]]) -> None:
        """Of each table, its rows and the first change in them (row, index in it): write from there on.

        Entries before the first change are there already; rows of one number are of one length in all tables.
        """
        starts = [0]
        for row in changes[0][0]:
            starts.append(starts[-1] + len(row))
        for table, (rows, (request, index)) in zip(self.tables, changes, strict=True):
            new = array("i", rows[request][index:])  # several times faster than a tensor of a list
            for row in rows[request + 1 :]:
                new.extend(row)
            if new:
                start = starts[request] + index
                table[start : start + len(new)] = torch.frombuffer(new, dtype=torch.int32)
        if starts != self._starts:
            self.indptr.copy_(torch.tensor(starts, dtype=torch.int32))
            self._starts = starts


class PagedCache:
    """A batch of requests over one `PagePool`: one layer's cache as the stages see it.

    `capacity_pages` bounds the logical pages of all requests together (the block table's size).
    `planned_pages` are pages that a request may grow to while one captured launch serves it: grids and tiles
    are planned for so many at least, and what is read comes from the device's tensors.
    """

    def __init__(
        self, pool: PagePool, batch_size: int, capacity_pages: int, *, planned_pages: int = 0
    ) -> None:
        self.pool = pool
        self.planned_pages = planned_pages
        self._layers: list[PagedCache] = []
        self._is_layer = False
        self._requests = [_Request() for _ in range(batch_size)]
        self._pages = _Mirror(capacity_pages, batch_size, pool.device, num_tables=2)
        # Every block is full but the last one of each request.
        most_blocks = min(capacity_pages, capacity_pages // SUMMARY_BLOCK_PAGES + batch_size)
        self._blocks = _Mirror(most_blocks * pool.summary.num_blocks(1), batch_size, pool.device)
        (self.block_table, self.dense_table), self.kv_indptr = self._pages.tables, self._pages.indptr
        (self.summary_table,), self.summary_indptr = self._blocks.tables, self._blocks.indptr
        # One tensor, so that one copy brings them up to date; each row begins with a sector.
        self._last = torch.zeros(3, ceil_div(batch_size, 8) * 8, dtype=torch.int32, device=pool.device)
        self.last_page_len, self.last_page, self.last_block = self._last[:, :batch_size]

    @property
    def batch_size(self) -> int:
        """Number of requests."""
        return len(self._requests)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens of each request."""
        return tuple(request.seq_len for request in self._requests)

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Logical pages of each request (P)."""
        return tuple(len(request.pages) for request in self._requests)

    @property
    def max_pages(self) -> int:
        """Pages of the longest request, `planned_pages` at least."""
        return max(self.planned_pages, *self.num_pages, 0)

    @property
    def total_pages(self) -> int:
        """Logical pages of all requests: the host's copy of kv_indptr[-1]."""
        return sum(self.num_pages)

    def add_layer(self, pool: PagePool) -> PagedCache:
        """The cache of another layer of the same requests: its K, V and summary in `pool`, all else shared.

        Only this cache grows and shrinks, and the other with it; what it is given to hold must be written to
        both. `pool` is sized and laid out as this one's. Such requests share no pages among themselves.
        Raises ValueError for a pool of another size, and where this cache is such a layer itself.
        """
        if self._is_layer:
            raise ValueError("add the layer to the cache that grows")
        if pool.num_pages != self.pool.num_pages or pool.summary.data.shape != self.pool.summary.data.shape:
            raise ValueError("the pools of a request's layers must be alike")
        layer = copy.copy(self)
        layer.pool, layer._layers, layer._is_layer = pool, [], True
        self._layers.append(layer)
        return layer

    def physical_pages(self, request: int) -> tuple[int, ...]:
        """Physical pages of `request` in logical order."""
        return tuple(self._requests[request].pages)

    def summary_blocks(self, request: int) -> tuple[int, ...]:
        """Summary blocks of `request` in logical order; none with the paired layout."""
        return tuple(self._requests[request].blocks)

    def bounds(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The stored (min, max) of the pages of `request`, each [num_pages, num_kv_heads, head_dim]."""
        entry = self._requests[request]
        return self.pool.summary.bounds(entry.pages, entry.blocks)

    def rescan(self, request: int, page: int) -> None:
        """Set the box of logical `page` of `request` to that of its cached keys, equation (1)."""
        entry, page_size = self._requests[request], self.pool.page_size
        valid = min(page_size, entry.seq_len - page * page_size)
        keys = self.pool.k[entry.pages[page], :, :valid]
        self.pool.summary.rescan(entry.pages, entry.blocks, page, keys)

    def extend(self, new_tokens: Sequence[int]) -> torch.Tensor:
        """Make room for `new_tokens[r]` more tokens of each request r, before stage `append` writes them.

        A tail page or summary block that another request shares is copied first, so that no branch changes
        another's keys or boxes. A new page has an empty box: what its last owner left there never survives.
        Returns new_indptr, int32 [batch_size + 1]: request r's tokens are
        rows new_indptr[r]:new_indptr[r+1] of the keys and values given to `append`.
        Raises ValueError, with nothing changed, when pool, summary or block table is too small.
        """
        self._check_grows()
        if len(new_tokens) != self.batch_size or min(new_tokens, default=0) < 0:
            raise ValueError(f"new_tokens {tuple(new_tokens)} does not fit {self.batch_size} requests")
        self._check_room(new_tokens)
        pages, blocks, summary = self.pool.pages, self.pool.summary.blocks, self.pool.summary
        changed_pages: list[tuple[int, int]] = []
        changed_blocks: list[tuple[int, int]] = []
        for number, (request, count) in enumerate(zip(self._requests, new_tokens, strict=True)):
            if count:
                written, wanted = self._growth(request, count)
                opened = len(request.pages)
                first_page = pages.hold(request.pages, wanted, written)
                first_block = blocks.hold(
                    request.blocks, summary.num_blocks(wanted), summary.block_of(written)
                )
                if wanted > opened:
                    for pool in self._pools():
                        pool.summary.empty(request.pages, request.blocks, opened)
                request.seq_len += count
                if first_page < len(request.pages):
                    changed_pages.append((number, first_page))
                if first_block < len(request.blocks):
                    changed_blocks.append((number, first_block))
        self._mirror(changed_pages, changed_blocks)
        bounds = torch.tensor([0, *new_tokens], dtype=torch.int32).cumsum(0).to(torch.int32)
        return bounds.to(self.pool.device)

    def fork(self, source: int, target: int) -> None:
        """Let the empty request `target` share all of `source` (copied on the first write)."""
        self._check_grows()
        if self._layers:
            raise ValueError("a cache of several layers copies no pages")
        if self._requests[target].seq_len:
            raise ValueError(f"request {target} is not empty")
        request = self._requests[source]
        if self.total_pages + len(request.pages) > len(self.block_table):
            raise ValueError(f"the fork exceeds capacity_pages {len(self.block_table)}")
        self.pool.pages.share(request.pages)
        self.pool.summary.blocks.share(request.blocks)
        self._requests[target] = _Request(request.seq_len, list(request.pages), list(request.blocks))
        self._mirror([(target, 0)], [(target, 0)])

    def roll_back(self, request: int, num_tokens: int) -> None:
        """Drop the newest `num_tokens` of `request`; a tail page cut inside gets its box rescanned.

        A shared tail page or its shared summary block is copied first. Raises ValueError, with nothing
        changed, when the request has fewer tokens or the copy finds no room.
        """
        self._check_grows()
        entry, summary = self._requests[request], self.pool.summary
        if not 0 <= num_tokens <= entry.seq_len:
            raise ValueError(f"cannot drop {num_tokens} of {entry.seq_len} tokens")
        seq_len = entry.seq_len - num_tokens
        kept, cut = ceil_div(seq_len, self.pool.page_size), num_tokens > 0 and seq_len % self.pool.page_size
        held = (
            (self.pool.pages, entry.pages, kept),
            (summary.blocks, entry.blocks, summary.num_blocks(kept)),
        )
        if cut:
            for pieces, owned, count in held:
                pieces.check_trim(owned, count)
        entry.seq_len = seq_len
        first = []
        for pieces, owned, count in held:
            pieces.trim(owned, count)
            first.append(pieces.hold(owned, count, count - 1) if cut and count else count)
        if cut:
            for cache in (self, *self._layers):
                cache.rescan(request, kept - 1)
        self._mirror([(request, first[0])], [(request, first[1])])

    def free(self, request: int) -> None:
        """Give back everything `request` holds; it is empty afterwards."""
        self._check_grows()
        self.pool.pages.release(self._requests[request].pages)
        self.pool.summary.blocks.release(self._requests[request].blocks)
        self._requests[request] = _Request()
        self._mirror([(request, 0)], [(request, 0)])

    def _pools(self) -> tuple[PagePool, ...]:
        """The pools of all layers."""
        return (self.pool, *(layer.pool for layer in self._layers))

    def _check_grows(self) -> None:
        if self._is_layer:
            raise ValueError("this cache is a layer of another, which grows for both")

    def _growth(self, request: _Request, count: int) -> tuple[int, int]:
        """(first logical page that `count` new tokens write, pages afterwards)."""
        page_size = self.pool.page_size
        return request.seq_len // page_size, ceil_div(request.seq_len + count, page_size)

    def _check_room(self, new_tokens: Sequence[int]) -> None:
        """Raise ValueError unless `extend` has room for `new_tokens`."""
        pages, summary = self.pool.pages, self.pool.summary
        total, most_pages, most_blocks = self.total_pages, 0, 0
        for request, count in zip(self._requests, new_tokens, strict=True):
            if count:
                written, wanted = self._growth(request, count)
                total += wanted - len(request.pages)
                most_pages += pages.most_needed(request.pages, wanted, written)
                most_blocks += summary.blocks.most_needed(
                    request.blocks, summary.num_blocks(wanted), summary.block_of(written)
                )
        if total > len(self.block_table):
            raise ValueError(f"{total} logical pages exceed capacity_pages {len(self.block_table)}")
        pages.check_free(most_pages)
        summary.blocks.check_free(most_blocks)

    def _mirror(
        self, changed_pages: Sequence[tuple[int, int]], changed_blocks: Sequence[tuple[int, int]]
    ) -> None:
        """Bring walks and tensors up to date; of each changed request: its number and first changed index."""
        walks = [
            (number, self._requests[number].update_walk(index, self.pool.region))
            for number, index in changed_pages
        ]
        if changed_pages:
            self._pages.write(
                ([request.pages for request in self._requests], changed_pages[0]),
                ([request.walk for request in self._requests], walks[0]),
            )
        if changed_blocks:
            self._blocks.write(([request.blocks for request in self._requests], changed_blocks[0]))
        lens = [_last_page_len(request.seq_len, self.pool.page_size) for request in self._requests]
        pages = [request.pages[-1] if request.pages else 0 for request in self._requests]
        blocks = [request.blocks[-1] if request.blocks else 0 for request in self._requests]
        last = torch.zeros(self._last.shape, dtype=torch.int32)
        last[:, : self.batch_size] = torch.tensor([lens, pages, blocks])
        self._last.copy_(last)


def _last_page_len(seq_len: int, page_size: int) -> int:
    """Valid tokens of the last page: 0 when empty, page_size when full."""
    return (seq_len - 1) % page_size + 1 if seq_len else 0


def default_num_workers(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; torch's thread count on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return torch.get_num_threads()

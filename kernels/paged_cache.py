"""The paged KV cache of one layer: page pool, page summaries, block tables.

A `PagePool` owns the storage; several `PagedCache`s (batches of requests) may draw on one pool
and share pages of it. Sizes and page lists are kept on the host; `block_table`, `kv_indptr` and
`last_page_len` mirror them on the device for the stages. Imports no triton.

    block_table    int32 [capacity_pages]   physical page of each logical page, ragged by kv_indptr
    kv_indptr      int32 [batch_size + 1]   request r owns logical pages kv_indptr[r]:kv_indptr[r+1]
    last_page_len  int32 [batch_size]       valid tokens of the last page; 0 for an empty request
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _last_page_len(seq_len: int, page_size: int) -> int:
    """Valid tokens of the last page: 0 when empty, page_size when full."""
    return (seq_len - 1) % page_size + 1 if seq_len else 0


class PairedSummary:
    """Min and max of the keys per page and KV head, side by side: [num_kv_heads, num_pages, 2, head_dim].

    Head-major, so that scoring streams one head's pages; indexed by physical page, so that a
    shared page has one summary. Index 0 of the third axis is min, 1 is max (equation (1)).
    """

    layout = "paired"

    def __init__(
        self, num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.empty((num_kv_heads, num_pages, 2, head_dim), dtype=dtype, device=device)
        self.reset(range(num_pages))

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the stored bounds."""
        return self.data.dtype

    def bounds(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(min, max), each [num_pages_asked, num_kv_heads, head_dim], of physical `pages` (int)."""
        picked = self.data[:, pages.long()]
        return picked[:, :, 0].transpose(0, 1), picked[:, :, 1].transpose(0, 1)

    def reset(self, pages: Iterable[int]) -> None:
        """Make the boxes of `pages` empty: min +inf, max -inf."""
        index = torch.tensor(list(pages), dtype=torch.long, device=self.data.device)
        self.data[:, index, 0] = float("inf")
        self.data[:, index, 1] = float("-inf")

    def copy_page(self, src: int, dst: int) -> None:
        """Copy the box of page `src` to page `dst`."""
        self.data[:, dst] = self.data[:, src]

    def rescan(self, page: int, keys: torch.Tensor) -> None:
        """Set the box of `page` to the box of `keys` [num_kv_heads, num_valid, head_dim]."""
        self.data[:, page, 0] = keys.amin(dim=1).to(self.dtype)
        self.data[:, page, 1] = keys.amax(dim=1).to(self.dtype)


class PagePool:
    """Storage of K, V [num_pages, num_kv_heads, page_size, head_dim] and summaries, with reference counts.

    A page taken from the pool has an empty box: the summary of its last owner never survives.
    `summary_dtype` must hold every value of `kv_dtype` exactly, or the box would not bound the keys.
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
        device: torch.device | str = "cpu",
        num_workers: int | None = None,
    ) -> None:
        summary_dtype = summary_dtype or kv_dtype
        if not 1 <= page_size <= 128:
            raise ValueError(f"page_size {page_size} is outside 1..128")
        if summary_dtype not in (kv_dtype, torch.float32):
            raise ValueError(f"summary_dtype {summary_dtype} cannot hold every {kv_dtype} key exactly")
        self.device = torch.device(device)
        shape = (num_pages, num_kv_heads, page_size, head_dim)
        self.k = torch.empty(shape, dtype=kv_dtype, device=self.device)
        self.v = torch.empty(shape, dtype=kv_dtype, device=self.device)
        self.summary = PairedSummary(num_pages, num_kv_heads, head_dim, summary_dtype, self.device)
        self.num_workers = num_workers or default_num_workers(self.device)
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages

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

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def reorder_free(self, order: Sequence[int]) -> None:
        """Hand out the free pages in this order from now on (a permutation of the free pages)."""
        if sorted(order) != sorted(self._free):
            raise ValueError("order is not a permutation of the free pages")
        self._free = list(reversed(order))

    def take(self, count: int) -> list[int]:
        """`count` free pages with empty boxes, owned once; ValueError when too few are free."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} of {self.num_pages} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        if pages:
            self.summary.reset(pages)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Own `pages` once more."""
        for page in pages:
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Own `pages` once less; a page nobody owns is free again."""
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one owner holds `page`."""
        return self._references[page] > 1

    def copy_page(self, src: int, dst: int) -> None:
        """Copy K, V and the box of page `src` to page `dst`."""
        self.k[dst] = self.k[src]
        self.v[dst] = self.v[src]
        self.summary.copy_page(src, dst)


@dataclass
class _Request:
    """Host side of one request: its length in tokens and its physical pages in logical order."""

    seq_len: int = 0
    pages: list[int] = field(default_factory=list)


class PagedCache:
    """A batch of requests over one `PagePool`: one layer's cache as the stages see it.

    `capacity_pages` bounds the logical pages of all requests together (the block table's size).
    """

    def __init__(self, pool: PagePool, batch_size: int, capacity_pages: int) -> None:
        self.pool = pool
        self._requests = [_Request() for _ in range(batch_size)]
        device = pool.device
        self.block_table = torch.zeros(max(1, capacity_pages), dtype=torch.int32, device=device)
        self.kv_indptr = torch.zeros(batch_size + 1, dtype=torch.int32, device=device)
        self.last_page_len = torch.zeros(batch_size, dtype=torch.int32, device=device)

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
        """Pages of the longest request."""
        return max(self.num_pages, default=0)

    @property
    def total_pages(self) -> int:
        """Logical pages of all requests: the host's copy of kv_indptr[-1]."""
        return sum(self.num_pages)

    def physical_pages(self, request: int) -> tuple[int, ...]:
        """Physical pages of `request` in logical order."""
        return tuple(self._requests[request].pages)

    def extend(self, new_tokens: Sequence[int]) -> torch.Tensor:
        """Make room for `new_tokens[r]` more tokens of each request r, before stage `append` writes them.

        A tail page that another request shares is copied first, so that no branch changes
        another's keys or box. Returns new_indptr, int32 [batch_size + 1]: request r's tokens are
        rows new_indptr[r]:new_indptr[r+1] of the keys and values given to `append`.
        Raises ValueError, with nothing changed, when pool or block table is too small.
        """
        if len(new_tokens) != self.batch_size or min(new_tokens, default=0) < 0:
            raise ValueError(f"new_tokens {tuple(new_tokens)} does not fit {self.batch_size} requests")
        page_size = self.pool.page_size
        copies = [self._must_copy_tail(r, n) for r, n in zip(self._requests, new_tokens, strict=True)]
        grown = [
            -(-(r.seq_len + n) // page_size) - len(r.pages)
            for r, n in zip(self._requests, new_tokens, strict=True)
        ]
        if self.total_pages + sum(grown) > len(self.block_table):
            raise ValueError(
                f"{self.total_pages + sum(grown)} logical pages exceed capacity_pages {len(self.block_table)}"
            )
        fresh = iter(self.pool.take(sum(grown) + sum(copies)))
        for request, count, extra, copy in zip(self._requests, new_tokens, grown, copies, strict=True):
            if copy:
                old, new = request.pages[-1], next(fresh)
                self.pool.copy_page(old, new)
                self.pool.release([old])
                request.pages[-1] = new
            request.seq_len += count
            request.pages += islice(fresh, extra)
        self._mirror()
        bounds = torch.tensor([0, *new_tokens], dtype=torch.int32).cumsum(0).to(torch.int32)
        return bounds.to(self.pool.device)

    def fork(self, source: int, target: int) -> None:
        """Let the empty request `target` share every page of `source` (copied on the first write)."""
        if self._requests[target].seq_len:
            raise ValueError(f"request {target} is not empty")
        request = self._requests[source]
        if self.total_pages + len(request.pages) > len(self.block_table):
            raise ValueError(f"the fork exceeds capacity_pages {len(self.block_table)}")
        self.pool.share(request.pages)
        self._requests[target] = _Request(request.seq_len, list(request.pages))
        self._mirror()

    def roll_back(self, request: int, num_tokens: int) -> None:
        """Drop the newest `num_tokens` of `request`; a tail page cut inside gets its box rescanned.

        A shared tail page is copied first. Raises ValueError, with nothing changed, when the request has
        fewer tokens or the copy finds no free page.
        """
        entry = self._requests[request]
        if not 0 <= num_tokens <= entry.seq_len:
            raise ValueError(f"cannot drop {num_tokens} of {entry.seq_len} tokens")
        seq_len = entry.seq_len - num_tokens
        kept = -(-seq_len // self.pool.page_size)
        tail_len = _last_page_len(seq_len, self.pool.page_size)
        cut = num_tokens > 0 and 0 < tail_len < self.pool.page_size
        if cut and self.pool.is_shared(entry.pages[kept - 1]):
            freed = sum(not self.pool.is_shared(page) for page in entry.pages[kept:])
            if self.pool.num_free + freed == 0:
                raise ValueError("a shared tail page must be copied and no page is free")
        entry.seq_len = seq_len
        self.pool.release(entry.pages[kept:])
        del entry.pages[kept:]
        if cut:
            self._own_tail(entry)
            tail = entry.pages[-1]
            self.pool.summary.rescan(tail, self.pool.k[tail, :, :tail_len])
        self._mirror()

    def free(self, request: int) -> None:
        """Give back every page of `request`; it is empty afterwards."""
        self.pool.release(self._requests[request].pages)
        self._requests[request] = _Request()
        self._mirror()

    def _must_copy_tail(self, request: _Request, new_tokens: int) -> bool:
        partial = request.seq_len % self.pool.page_size != 0
        return new_tokens > 0 and partial and self.pool.is_shared(request.pages[-1])

    def _own_tail(self, request: _Request) -> None:
        old = request.pages[-1]
        if self.pool.is_shared(old):
            (new,) = self.pool.take(1)
            self.pool.copy_page(old, new)
            self.pool.release([old])
            request.pages[-1] = new

    def _mirror(self) -> None:
        """Copy the host's page lists and lengths to the device tensors."""
        flat = [page for request in self._requests for page in request.pages]
        starts = [0]
        for request in self._requests:
            starts.append(starts[-1] + len(request.pages))
        lens = [_last_page_len(request.seq_len, self.pool.page_size) for request in self._requests]
        if flat:
            self.block_table[: len(flat)] = torch.tensor(flat, dtype=torch.int32)
        self.kv_indptr.copy_(torch.tensor(starts, dtype=torch.int32))
        self.last_page_len.copy_(torch.tensor(lens, dtype=torch.int32))


def default_num_workers(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; torch's thread count on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return torch.get_num_threads()

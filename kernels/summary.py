"""The page summary: min and max of the keys per page, KV head and dimension (equation (1)), in two layouts.

Both classes answer the same calls. A request is named by what it holds: `pages`, its physical pages, and
`blocks`, its summary blocks, each in logical order; the paired layout goes by the pages and has no blocks,
the transposed one goes by the blocks. An empty box is min +inf, max -inf.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from questprof_kernels import cpu_memory
from questprof_kernels.pieces import Pieces
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, summary_blocks

INF = float("inf")
Bounds = tuple[torch.Tensor, torch.Tensor]


class PairedSummary:
    """A page's min and max vectors side by side: [num_pages, num_kv_heads, 2, head_dim].

    In the order of K and V, so that scoring all heads streams a page's boxes, wherever the page lies; indexed
    by physical page, so that a shared page has one summary and the summary takes exactly as many boxes as the
    cache has pages.
    """

    layout = "paired"

    def __init__(
        self, num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = cpu_memory.empty((num_pages, num_kv_heads, 2, head_dim), dtype, device)
        self.data[:, :, 0] = INF
        self.data[:, :, 1] = -INF
        self.blocks = Pieces("summary block", 0, _copy_nothing)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the stored bounds."""
        return self.data.dtype

    def num_blocks(self, num_pages: int) -> int:
        """Blocks that a request of `num_pages` holds: none."""
        return 0

    def block_of(self, page: int) -> int:
        """Which of a request's blocks holds logical `page`: the first of none."""
        return 0

    def bounds(self, pages: Sequence[int], blocks: Sequence[int]) -> Bounds:
        """(min, max) of every page of a request, each [num_pages, num_kv_heads, head_dim]."""
        picked = self.data[self._index(pages)]
        return picked[:, :, 0], picked[:, :, 1]

    def empty(self, pages: Sequence[int], blocks: Sequence[int], first: int) -> None:
        """Make the boxes of a request's pages from logical page `first` on empty."""
        index = self._index(pages[first:])
        if len(index):
            self.data[index, :, 0] = INF
            self.data[index, :, 1] = -INF

    def rescan(self, pages: Sequence[int], blocks: Sequence[int], page: int, keys: torch.Tensor) -> None:
        """Set the box of logical `page` to the box of `keys` [num_kv_heads, num_valid, head_dim]."""
        self.data[pages[page], :, 0], self.data[pages[page], :, 1] = _box(keys)

    def copy_page(self, src: int, dst: int) -> None:
        """Copy the box of physical page `src` to `dst`, as K and V are copied."""
        self.data[dst] = self.data[src]

    def _index(self, pages: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(pages), dtype=torch.long, device=self.data.device)


class TransposedSummary:
    """One row of bounds per dimension: [num_blocks, num_kv_heads, head_dim, 2, SUMMARY_BLOCK_PAGES].

    A block holds the boxes of 64 logical pages of one request: logical page p lies in the request's block
    p // 64, slot p % 64. Index 0 of axis 3 is the row of minima, 1 that of maxima, so that scoring reads per
    dimension only the row that the sign of q picks. What it costs beside that:

    - allocation: blocks are whole, up to 63 pages' boxes of slack a request;
    - prefix sharing: a box lies by logical page, not by physical one, so that requests share whole blocks,
      and the block a request writes into is copied first when another holds it;
    - writing: the numbers of one box lie a row apart, each in a memory sector of its own.
    """

    layout = "transposed"

    def __init__(
        self, num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_blocks, num_kv_heads, head_dim, 2, SUMMARY_BLOCK_PAGES)
        self.data = cpu_memory.empty(shape, dtype, device)
        self.data[..., 0, :] = INF
        self.data[..., 1, :] = -INF
        self.blocks = Pieces("summary block", num_blocks, self._copy_block)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the stored bounds."""
        return self.data.dtype

    def num_blocks(self, num_pages: int) -> int:
        """Blocks that a request of `num_pages` holds."""
        return summary_blocks([num_pages])

    def block_of(self, page: int) -> int:
        """Which of a request's blocks holds logical `page`."""
        return page // SUMMARY_BLOCK_PAGES

    def bounds(self, pages: Sequence[int], blocks: Sequence[int]) -> Bounds:
        """(min, max) of every page of a request, each [num_pages, num_kv_heads, head_dim]."""
        index = torch.tensor(list(blocks), dtype=torch.long, device=self.data.device)
        lower, upper = self.data[index].permute(3, 0, 4, 1, 2).flatten(1, 2)[:, : len(pages)]
        return lower, upper

    def empty(self, pages: Sequence[int], blocks: Sequence[int], first: int) -> None:
        """Make the boxes of a request's pages from logical page `first` on empty, slack slots included."""
        for index in range(self.block_of(first), len(blocks)):
            slot = max(0, first - index * SUMMARY_BLOCK_PAGES)
            self.data[blocks[index], :, :, 0, slot:] = INF
            self.data[blocks[index], :, :, 1, slot:] = -INF

    def rescan(self, pages: Sequence[int], blocks: Sequence[int], page: int, keys: torch.Tensor) -> None:
        """Set the box of logical `page` to the box of `keys` [num_kv_heads, num_valid, head_dim]."""
        block, slot = blocks[self.block_of(page)], page % SUMMARY_BLOCK_PAGES
        self.data[block, :, :, 0, slot], self.data[block, :, :, 1, slot] = _box(keys)

    def copy_page(self, src: int, dst: int) -> None:
        """Nothing: a page's box lies in its request's block, wherever K and V lie."""

    def _copy_block(self, src: int, dst: int) -> None:
        self.data[dst] = self.data[src]


Summary = PairedSummary | TransposedSummary


def _box(keys: torch.Tensor) -> Bounds:
    """(min, max) [num_kv_heads, head_dim] of keys [num_kv_heads, num_valid, head_dim]; NaN has no bounds."""
    has_nan = keys.isnan().any(dim=1)
    return keys.amin(dim=1).masked_fill(has_nan, -INF), keys.amax(dim=1).masked_fill(has_nan, INF)


def _copy_nothing(src: int, dst: int) -> None:
    """Stand in for copying a block where there are none."""

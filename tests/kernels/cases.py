"""Hostile paged caches and plain eager code for the kernel tests of every device.

A `Case` holds a filled cache and the tokens it was filled with. By default the pool's free pages are
shuffled, and every slot and box that no valid token owns is NaN. Only torch and the cache are used here,
so that the Triton and the CPU tests share it; `append` may be any stage `append` to fill the cache with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from questprof_kernels.paged_cache import PagedCache, PagePool

HOSTILE_LENGTHS = (0, 1, 15, 16, 17, 31, 33)
PAGE_SIZES = (1, 3, 12, 16, 128)
ROUNDING_UNITS = 4
"""fp32 roundings that eager code does not make: the base-2 scale folded into q, the polynomial of exp2, a
factor per tile and one per merged split."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A filled cache; request r's tokens are rows new_indptr[r]:new_indptr[r + 1] of keys and values."""

    cache: PagedCache
    keys: torch.Tensor  # [sum(seq_lens), num_kv_heads, head_dim]
    values: torch.Tensor
    new_indptr: torch.Tensor

    def tokens(self, request: int, page: int) -> slice:
        """Rows of keys and values that lie on logical `page` of `request`."""
        start, stop = self.new_indptr[request : request + 2].tolist()
        page_size = self.cache.pool.page_size
        return slice(start + page * page_size, min(start + (page + 1) * page_size, stop))


def make_cache(
    seq_lens: Sequence[int],
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    seed: int,
    device: str = "cpu",
    *,
    shuffled: bool = True,
    poison: bool = True,
    summary_dtype: torch.dtype | None = None,
    summary_layout: str = "paired",
    spare_pages: int = 5,
    num_workers: int | None = None,
    keys: torch.Tensor | None = None,
    values: torch.Tensor | None = None,
    append: Callable[..., None] | None = None,
) -> Case:
    """A cache of `seq_lens` tokens, filled by `append` or by plain torch when that is None."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(seq_lens), num_kv_heads, head_dim)
    keys = gaussian(shape, dtype, generator) if keys is None else keys
    values = gaussian(shape, dtype, generator) if values is None else values
    total = sum(-(-n // page_size) for n in seq_lens)
    pool = PagePool(
        total + spare_pages,
        num_kv_heads,
        page_size,
        head_dim,
        dtype,
        summary_dtype=summary_dtype,
        summary_layout=summary_layout,
        device=device,
        num_workers=num_workers,
    )
    if poison:
        for storage in (pool.k, pool.v, pool.summary.data):
            storage.fill_(float("nan"))
    if shuffled:
        for pieces in (pool.pages, pool.summary.blocks):
            pieces.reorder_free(torch.randperm(pieces.num_free, generator=generator).tolist())
    cache = PagedCache(pool, len(seq_lens), total + spare_pages)
    new_indptr = cache.extend(list(seq_lens))
    case = Case(cache, keys.to(device), values.to(device), new_indptr)
    if append is None:
        fill(case)
    else:
        append(cache, case.keys, case.values, new_indptr)
    return case


def fill(case: Case) -> None:
    """Write the tokens of `case` and the boxes of their pages with plain torch."""
    pool = case.cache.pool
    for request in range(case.cache.batch_size):
        for logical, page in enumerate(case.cache.physical_pages(request)):
            rows = case.tokens(request, logical)
            keys = case.keys[rows].transpose(0, 1)
            pool.k[page, :, : keys.shape[1]] = keys
            pool.v[page, :, : keys.shape[1]] = case.values[rows].transpose(0, 1)
            case.cache.rescan(request, logical)


def gaussian(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers with outlier channels, as real keys have them: every 13th is eight times wider."""
    numbers = torch.randn(tuple(shape), generator=generator)
    numbers[..., ::13] *= 8.0
    return numbers.to(dtype)


def make_q(case: Case, num_qo_heads: int, seed: int, *, contiguous: bool = True) -> torch.Tensor:
    """Queries [batch_size, num_qo_heads, head_dim] like the keys of `case`, on its device."""
    generator = torch.Generator().manual_seed(seed)
    shape = (case.cache.batch_size, num_qo_heads, case.cache.pool.head_dim)
    q = torch.randn(shape, generator=generator).to(case.keys)
    return q if contiguous else non_contiguous(q)


def non_contiguous(tensor: torch.Tensor, *, inner_stride: int = 1) -> torch.Tensor:
    """The same [n, heads, dim] numbers with the first two axes swapped in memory and NaN in the gaps."""
    n, heads, dim = tensor.shape
    storage = torch.full((heads + 1, n, dim * inner_stride + 8), float("nan")).to(tensor)
    view = storage.transpose(0, 1)[:, :heads, : dim * inner_stride : inner_stride]
    view.copy_(tensor)
    return view


def make_select_indptr(cache: PagedCache, num_selected: int | Sequence[int]) -> torch.Tensor:
    """int32 [batch_size + 1] for K pages a request (one K for all or one each), at most P each."""
    wanted = [num_selected] * cache.batch_size if isinstance(num_selected, int) else num_selected
    counts = [min(k, p) for k, p in zip(wanted, cache.num_pages, strict=True)]
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32).to(cache.pool.device)


def make_page_ids(
    cache: PagedCache, num_qo_heads: int, select_indptr: torch.Tensor, seed: int, *, ascending: bool = True
) -> torch.Tensor:
    """Random picks int32 [num_qo_heads, select_indptr[-1]]: logical ids, no repeats, every head its own."""
    generator = torch.Generator().manual_seed(seed)
    bounds = select_indptr.tolist()
    ids = torch.empty((num_qo_heads, bounds[-1]), dtype=torch.int32)
    for request, num_pages in enumerate(cache.num_pages):
        start, stop = bounds[request : request + 2]
        for head in range(num_qo_heads):
            picked = torch.randperm(num_pages, generator=generator)[: stop - start]
            ids[head, start:stop] = (picked.sort().values if ascending else picked).to(torch.int32)
    return ids.to(cache.pool.device)


def make_outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) full of NaN, for attend and dense to write."""
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], float("nan"), dtype=torch.float32, device=q.device)
    return out, lse


def eager_score(case: Case, q: torch.Tensor) -> torch.Tensor:
    """Equation (3) in the dtype of `q`, [num_qo_heads, total_pages]: boxes from the tokens, no paging."""
    group_size = q.shape[1] // case.keys.shape[1]
    columns = []
    for request, num_pages in enumerate(case.cache.num_pages):
        for page in range(num_pages):
            keys = case.keys[case.tokens(request, page)]
            lower, upper = keys.amin(0), keys.amax(0)
            lower, upper = (box.repeat_interleave(group_size, 0) for box in (lower, upper))
            columns.append(torch.maximum(q[request] * lower, q[request] * upper).sum(-1))
    return torch.stack(columns, 1) if columns else q.new_zeros((q.shape[1], 0))


def eager_attend(
    case: Case,
    q: torch.Tensor,
    page_ids: torch.Tensor | None = None,
    select_indptr: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention in the dtype of `q` over gathered pages (all pages without ids): (out, lse).

    With q in kv_dtype it is eager code of that dtype; with q.float() a stricter yardstick for fp16 and bf16.
    """
    group_size = q.shape[1] // case.keys.shape[1]
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))
    for request, num_pages in enumerate(case.cache.num_pages):
        for head in range(q.shape[1]):
            if page_ids is None or select_indptr is None:
                ids = range(num_pages)
            else:
                start, stop = select_indptr[request : request + 2].tolist()
                ids = page_ids[head, start:stop].tolist()
            rows = [row for page in ids for row in _rows(case.tokens(request, page))]
            if rows:
                keys = case.keys[rows, head // group_size].to(q.dtype)
                values = case.values[rows, head // group_size].to(q.dtype)
                logits = keys @ q[request, head] * q.shape[-1] ** -0.5
                out[request, head] = logits.softmax(0) @ values
                lse[request, head] = logits.logsumexp(0)
    return out, lse


def _rows(rows: slice) -> range:
    return range(rows.start, rows.stop)


def assert_close(
    kernel: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor, dtype: torch.dtype, what: str = ""
) -> None:
    """Kernel error <= 2x the error of eager code in `dtype`, plus ROUNDING_UNITS of the largest number.

    All three of one shape; `oracle` is float64. Infinite entries must agree exactly, NaN is a failure.
    """
    assert kernel.shape == oracle.shape == eager.shape
    kernel, eager, oracle = (t.detach().cpu().double() for t in (kernel, eager, oracle))
    finite = oracle.isfinite()
    assert torch.equal(kernel[~finite], oracle[~finite]), f"{what}: infinities differ"
    if not finite.any():
        return
    error = (kernel - oracle)[finite].abs().max().item()
    eager_error = (eager - oracle)[finite].abs().max().item()
    unit = ROUNDING_UNITS * torch.finfo(torch.float32).eps
    if dtype != torch.float32:
        unit += torch.finfo(dtype).eps / 2  # the output's own rounding
    floor = unit * oracle[finite].abs().max().item()
    assert error <= 2 * eager_error + floor, f"{what}: error {error:.3g}, eager code {eager_error:.3g}"

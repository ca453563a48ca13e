"""The stages on the CPU: launchers of the compiled code in `cpu_device.py`, over the same paged cache.

numba compiles a stage for a dtype on its first call and caches it on disk. `cache.pool.num_workers` is the
number of equal parts the work is cut into, `numba.set_num_threads` the number of threads that take them.
Unlike a GPU's, these launchers return when the work is done, and refuse lengths and page ids that would read
outside the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from questprof_kernels.arguments import (
    check_cache,
    check_outputs,
    check_queries,
    check_rows,
    check_tensor,
)
from questprof_kernels.cpu_device import (
    LOG2_E,
    append_tokens,
    attend_pages,
    out_of_range,
    score_paired,
    score_transposed,
    select_pages,
)
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, ceil_div, equal_shares

_STORED = {torch.float16: np.uint16, torch.bfloat16: np.int16}
_NO_IDS = np.zeros(0, np.int32)


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """The memory that `tensor` spans, as a 1-D array; fp16 as uint16, bf16 as int16 bits."""
    stored = _STORED.get(tensor.dtype)
    bits = tensor if stored is None else tensor.view(torch.int16)
    if bits.is_contiguous():
        flat = bits.numpy().reshape(-1)
    else:
        extent = 1 + sum((n - 1) * stride for n, stride in zip(bits.shape, bits.stride(), strict=True))
        flat = bits.as_strided((extent if bits.numel() else 0,), (1,)).numpy()
    return flat if stored is None else flat.view(stored)


def _cached(cache: PagedCache) -> tuple[np.ndarray, ...]:
    """What the compiled code knows as `cached`."""
    table = cache.block_table, cache.kv_indptr, cache.last_page_len
    return _flat(cache.pool.k), _flat(cache.pool.v), *(tensor.numpy() for tensor in table)


def _boxes(cache: PagedCache) -> tuple[np.ndarray, int, np.ndarray, np.ndarray, bool]:
    """What the compiled code knows as `boxes`."""
    summary, table = cache.pool.summary, (cache.summary_table.numpy(), cache.summary_indptr.numpy())
    return _flat(summary.data), cache.pool.num_pages, *table, summary.layout == "transposed"


def _shape(cache: PagedCache) -> tuple[int, int, int]:
    return cache.pool.num_kv_heads, cache.pool.page_size, cache.pool.head_dim


def _num_shares(cache: PagedCache, num_units: int, pages: int) -> int:
    return equal_shares(num_units=num_units, num_pages=pages, num_workers=cache.pool.num_workers)


def _check_indptr(name: str, indptr: torch.Tensor, cache: PagedCache, most: tuple[int, ...]) -> int:
    """Refuse anything but int32 [batch_size + 1] rising from 0 by at most most[r]; returns its last entry."""
    check_tensor(name, indptr, (cache.batch_size + 1,), torch.int32, cache.pool.device)
    bounds = indptr.tolist()
    steps = zip(bounds, bounds[1:], most, strict=False)
    if bounds[0] != 0 or not all(0 <= end - start <= limit for start, end, limit in steps):
        raise ValueError(f"{name} {bounds} must rise from 0, by at most {list(most)}")
    return bounds[-1]


def append(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """Write the newest tokens' K, V and the boxes of the pages they touch (equations (1), (8), (14)).

    After `new_indptr = cache.extend(...)`. keys, values [num_new_tokens, num_kv_heads, head_dim] in kv_dtype,
    any strides; request r's tokens are rows new_indptr[r]:new_indptr[r + 1], int32 [batch_size + 1]. A page
    with older tokens gets its stored box widened, others the box of the new keys. Launching it again changes
    nothing. TypeError and ValueError on arguments that do not fit.
    """
    _launch_append(cache, keys, values, new_indptr, True)


def append_kv(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """`append` without the summary."""
    _launch_append(cache, keys, values, new_indptr, False)


def _launch_append(
    cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor, summarise: bool
) -> None:
    check_cache(cache)
    pool = cache.pool
    num_new = _check_indptr("new_indptr", new_indptr, cache, cache.seq_lens)
    for name, new in (("keys", keys), ("values", values)):
        shape = (num_new, pool.num_kv_heads, pool.head_dim)
        check_tensor(name, new, shape, pool.k.dtype, pool.device, contiguous=False)
    num_shares = _num_shares(cache, pool.num_kv_heads, 1 + num_new // pool.page_size)
    append_tokens(
        num_shares,
        (_flat(keys), _flat(values)),
        (*keys.stride(), *values.stride()),
        new_indptr.numpy(),
        _cached(cache),
        _shape(cache),
        _boxes(cache),
        summarise,
    )


def score(q: torch.Tensor, cache: PagedCache, scores: torch.Tensor) -> None:
    """Bound of every page, equation (3), unscaled: scores fp32 [num_qo_heads, total_pages].

    q [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; columns of scores are flat logical pages,
    ragged by kv_indptr. Of a transposed summary only the rows that the signs of the queries pick are read.
    TypeError and ValueError on arguments that do not fit.
    """
    check_queries(q, cache)
    pool = cache.pool
    check_rows("scores", scores, q.shape[1], cache.total_pages, torch.float32, pool.device)
    transposed = pool.summary.layout == "transposed"
    pieces = ceil_div(cache.max_pages, SUMMARY_BLOCK_PAGES) if transposed else cache.total_pages
    (score_transposed if transposed else score_paired)(
        _num_shares(cache, pool.num_kv_heads, pieces),
        _flat(q),
        q.stride(),
        _boxes(cache),
        _cached(cache),
        _shape(cache),
        q.shape[1] // pool.num_kv_heads,
        _flat(scores),
        scores.stride(0),
    )


def select(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool = True,
) -> None:
    """The best pages of every (request, query head), ascending logical ids; exact, linear in the pages.

    scores fp32 [num_qo_heads, total_pages]; select_indptr int32 [batch_size + 1], rising by K_r <= P_r;
    page_ids int32 [num_qo_heads, select_indptr[-1]]. Equal scores (-0.0 equals 0.0) go to the lower page, NaN
    ranks above every number. take_tail: the last page is always taken and counts in K. TypeError and
    ValueError on arguments that do not fit.
    """
    check_rows("scores", scores, scores.shape[0], cache.total_pages, torch.float32, cache.pool.device)
    total = _check_indptr("select_indptr", select_indptr, cache, cache.num_pages)
    check_rows("page_ids", page_ids, scores.shape[0], total, torch.int32, cache.pool.device)
    select_pages(
        _flat(scores),
        scores.stride(0),
        cache.kv_indptr.numpy(),
        select_indptr.numpy(),
        take_tail,
        scores.shape[0],
        _flat(page_ids),
        page_ids.stride(0),
    )


def attend_splits(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
    """Splits of each (request, query head) that `attend` makes, so that every worker has an equal number."""
    return _num_shares(cache, q.shape[1], page_ids.shape[1] // max(1, cache.batch_size))


def dense_splits(cache: PagedCache) -> int:
    """Splits of each request that `dense` makes: one a worker; a split covers all heads of its pages."""
    return _num_shares(cache, 1, cache.total_pages)


def attend_scratch_floats(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
    """fp32 numbers of scratch `attend` needs for these arguments (contents do not matter)."""
    return attend_splits(q, cache, page_ids) * q.shape[0] * q.shape[1] * (q.shape[2] + 2)


def dense_scratch_floats(q: torch.Tensor, cache: PagedCache) -> int:
    """fp32 numbers of scratch `dense` needs for these arguments (contents do not matter)."""
    return dense_splits(cache) * q.shape[0] * q.shape[1] * (q.shape[2] + 2)


def attend(
    q: torch.Tensor,
    cache: PagedCache,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
) -> None:
    """Exact attention over the valid tokens of the listed pages, equation (6), read in place.

    q and out [batch_size, num_qo_heads, head_dim] in kv_dtype, any strides; page_ids int32 [num_qo_heads,
    select_indptr[-1]], logical, any order, no repeats; lse fp32 [batch_size, num_qo_heads], natural log;
    scratch fp32, `attend_scratch_floats` long. An empty request gives 0 and -inf. softmax_scale None is
    head_dim ** -0.5. TypeError and ValueError on arguments that do not fit.
    """
    check_queries(q, cache)
    total = _check_indptr("select_indptr", select_indptr, cache, cache.num_pages)
    check_rows("page_ids", page_ids, q.shape[1], total, torch.int32, cache.pool.device)
    listed = _flat(page_ids), page_ids.stride(0), select_indptr.numpy()
    if out_of_range(listed[0], listed[1], q.shape[1], listed[2], cache.kv_indptr.numpy()):
        raise ValueError(f"page_ids must lie below the requests' pages {list(cache.num_pages)}")
    check_outputs(q, out, lse, scratch, attend_scratch_floats(q, cache, page_ids))
    _launch_attend(q, cache, listed, attend_splits(q, cache, page_ids), 1, out, lse, scratch, softmax_scale)


def dense(
    q: torch.Tensor,
    cache: PagedCache,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None = None,
) -> None:
    """Exact attention over all pages (the reads of equation (9)); each KV head's pages are read once.

    Arguments as in `attend`; scratch is `dense_scratch_floats` long.
    """
    check_queries(q, cache)
    check_outputs(q, out, lse, scratch, dense_scratch_floats(q, cache))
    every = _NO_IDS, -1, cache.kv_indptr.numpy()
    _launch_attend(q, cache, every, dense_splits(cache), q.shape[1], out, lse, scratch, softmax_scale)


def _launch_attend(
    q: torch.Tensor,
    cache: PagedCache,
    pages: tuple[np.ndarray, int, np.ndarray],
    num_splits: int,
    num_heads: int,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
    softmax_scale: float | None,
) -> None:
    pool = cache.pool
    scale = pool.head_dim**-0.5 if softmax_scale is None else softmax_scale
    attend_pages(
        _flat(q),
        q.stride(),
        pages,
        _cached(cache),
        _shape(cache),
        q.shape[1] // pool.num_kv_heads,
        np.float32(scale * LOG2_E),
        num_splits,
        num_heads,
        scratch.numpy(),
        _flat(out),
        out.stride(),
        _flat(lse),
    )

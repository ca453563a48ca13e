"""A decode step with Quest in plain torch, on a CPU or in a CUDA graph: score, select, attend at once.

Check it: questprof sweep --kernel my_kernel.py:kernel --check-only
Time it:  questprof sweep --kernel my_kernel.py:kernel --lengths 8k --budgets 1024
"""

from types import SimpleNamespace

import torch


def prepare(cache):  # type: ignore[no-untyped-def]
    """Once a cache, untimed: its block table and boxes, padded to the longest request. Host calls go here."""
    pool, shape = cache.pool, (cache.batch_size, cache.max_pages)
    table = torch.zeros(shape, dtype=torch.long, device=pool.device)
    low, high = torch.zeros((2, *shape, pool.num_kv_heads, 1, pool.head_dim), device=pool.device)
    for request, num_pages in enumerate(cache.num_pages):
        table[request, :num_pages] = torch.tensor(cache.physical_pages(request))
        least, greatest = cache.bounds(request)  # [num_pages, num_kv_heads, head_dim] each
        low[request, :num_pages, :, 0], high[request, :num_pages, :, 0] = least, greatest
    lengths = torch.tensor(cache.seq_lens, device=pool.device)
    return SimpleNamespace(pool=pool, table=table, low=low, high=high, lengths=lengths)


def decode(q, ready, out, page_ids, select_indptr, num_selected, take_tail):  # type: ignore[no-untyped-def]
    """Write out [batch, heads, dim] and the ids it attended to; `ready` is what prepare returned."""
    pool, (batch, heads, dim), inf = ready.pool, q.shape, float("inf")
    grouped = q.float().view(batch, 1, pool.num_kv_heads, -1, dim)
    scores = (
        torch.maximum(grouped * ready.low, grouped * ready.high).sum(-1).flatten(2)
    )  # [batch, page, head]
    page = torch.arange(scores.shape[1], device=q.device)[None, :, None]
    tail = ((ready.lengths - 1) // pool.page_size)[:, None, None]
    scores = scores.masked_fill(page > tail, -inf).masked_fill((page == tail) & take_tail, inf)
    best = scores.topk(max(num_selected), dim=1).indices.transpose(1, 2)  # [batch, head, rank]
    for request, count in enumerate(num_selected):
        start = sum(num_selected[:request])
        page_ids[:, start : start + count] = best[request, :, :count]

    rows = torch.arange(batch, device=q.device)[:, None, None]
    kv_head = (torch.arange(heads, device=q.device) // (heads // pool.num_kv_heads))[None, :, None]
    physical = ready.table[rows, best]
    position = best[..., None] * pool.page_size + torch.arange(pool.page_size, device=q.device)
    rank = torch.arange(best.shape[2], device=q.device)
    keep = (position < ready.lengths[:, None, None, None]) & (rank < select_indptr.diff()[:, None, None])[
        ..., None
    ]
    k, v = (
        pool.k[physical, kv_head].float(),
        pool.v[physical, kv_head].float(),
    )  # [batch, head, rank, slot, dim]
    logits = torch.einsum("bhd,bhrsd->bhrs", q.float(), k) * dim**-0.5
    weights = logits.masked_fill(~keep, -inf).flatten(2).softmax(-1)
    v = v.masked_fill(~keep[..., None], 0).flatten(2, 3)  # slots behind the last token hold NaN
    out.copy_(torch.einsum("bhn,bhnd->bhd", weights, v))


kernel = {"prepare": prepare, "decode": decode}

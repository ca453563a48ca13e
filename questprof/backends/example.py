"""A decode step with Quest in plain torch, on a CPU or in a CUDA graph: score, select, attend at once.

Check it: questprof sweep --kernel my_kernel.py:kernel --check-only
Time it:  questprof sweep --kernel my_kernel.py:kernel --lengths 8k --budgets 1024
"""

import torch


def prepare(cache):  # type: ignore[no-untyped-def]
    """Once a cache, untimed: physical pages, boxes and length of each request. Host calls go here."""
    requests = range(cache.batch_size)
    pages = [torch.tensor(cache.physical_pages(r), device=cache.pool.device) for r in requests]
    return cache.pool, [(pages[r], *cache.bounds(r), cache.seq_lens[r]) for r in requests]


def decode(q, ready, out, page_ids, select_indptr, num_selected, take_tail):  # type: ignore[no-untyped-def]
    """Write out [batch, heads, dim] and the ids it attended to; `ready` is what prepare returned."""
    pool, requests = ready
    slots = torch.arange(pool.page_size, device=q.device)
    kv_head = torch.arange(q.shape[1], device=q.device)[:, None] // (q.shape[1] // pool.num_kv_heads)
    start = 0
    for request, (pages, low, high, length) in enumerate(requests):
        own, count = q[request].float(), num_selected[request]
        grouped = own.view(pool.num_kv_heads, -1, own.shape[1])
        products = torch.maximum(grouped * low[:, :, None], grouped * high[:, :, None])
        scores = products.sum(-1).flatten(1)  # [page, head]
        if take_tail:
            scores[-1:] = float("inf")
        best = scores.topk(count, dim=0).indices.T  # [head, rank]
        page_ids[:, start : start + count] = best
        start += count

        k = pool.k[pages[best], kv_head].float().flatten(1, 2)  # [head, rank * slot, dim]
        v = pool.v[pages[best], kv_head].float().flatten(1, 2)
        behind = ((best[..., None] * pool.page_size + slots) >= length).flatten(1)
        logits = torch.einsum("hd,hnd->hn", own, k) * own.shape[1] ** -0.5
        weights = logits.masked_fill(behind, float("-inf")).softmax(-1)
        v = v.masked_fill(behind[..., None], 0)  # slots behind the last token hold NaN
        out[request] = torch.einsum("hn,hnd->hd", weights, v)


kernel = {"prepare": prepare, "decode": decode}

"""Floating-point operations of each stage, modelled: what arithmetic intensity is worked out from. Pure."""

from __future__ import annotations

from questprof.model import Point


def stage_flops(point: Point) -> dict[str, int]:
    """Floating-point operations of one launch of each stage at `point`; a fused multiply-add is two.

    - `dense`: each of num_qo_heads query heads multiplies and adds head_dim numbers a key and again a value:
      4 head_dim a token. The exponential and the rescaling, some 5 a token, are left out.
    - `attend`: the same over its K pages, each query head for itself, whatever the union of a group. Policy
      `quest` always holds the tail page, whose empty slots are left out; where others may or may not, its
      pages are counted as full, but never more than all tokens.
    - `score`, paired: equations (2) and (3) take two products, a maximum and a sum a dimension: 4 head_dim a
      query head and page (as relu(q).M - relu(-q).m it is two products and two sums, the same). Transposed:
      the sign of q picks one row, one product and one sum: 2 head_dim.
    - `select` compares and counts: none. `append_kv` copies: none.
    - `append`: equation (14), a minimum and a maximum a dimension, KV head and new token: 2 head_dim; none
      for a token that opens its page.
    """
    shape, size = point.shape, point.page_size
    heads_dims = shape.num_qo_heads * shape.head_dim
    widened = sum(1 for n in point.lengths if n and (n - 1) % size)
    score = (2 if point.summary_layout == "transposed" else 4) * heads_dims * sum(point.num_pages)
    attend = 4 * heads_dims * sum(_attended(point))
    return {
        "dense": 4 * heads_dims * sum(point.lengths),
        "score": score,
        "select": 0,
        "attend": attend,
        "quest": score + attend,
        "append": 2 * shape.num_kv_heads * shape.head_dim * widened,
        "append_kv": 0,
    }


def _attended(point: Point) -> list[int]:
    """Tokens that one query head attends to in each request."""
    tokens = []
    for length, pages, selected in zip(point.lengths, point.num_pages, point.num_selected, strict=True):
        empty = pages * point.page_size - length if selected and point.policy == "quest" else 0
        tokens.append(min(length, selected * point.page_size - empty))
    return tokens

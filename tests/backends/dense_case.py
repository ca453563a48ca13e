"""A small hostile cache for the dense baselines: ragged, shuffled pages, NaN where no token is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from questprof.backends import Backend, load
from questprof.checks import check
from questprof.model import Point, Shape
from questprof.policies import Bound, bind
from questprof.workload import make_cache, make_pool, make_query

LENGTHS = (1, 15, 16, 17, 200)
GROUPED = Shape("toy", num_qo_heads=8, num_kv_heads=2, head_dim=64, kv_dtype="fp16")


def point_of(lengths: Sequence[int] = LENGTHS, shape: Shape = GROUPED) -> Point:
    return Point(
        shape=shape,
        batch_size=len(lengths),
        seq_len=max(lengths),
        seq_lens=tuple(lengths),
        policy="dense",
        device="cpu",
    )


def shaped(**changes: int | str) -> Point:
    """A point of one request with `changes` to the shape."""
    return point_of((64,), msgspec.structs.replace(GROUPED, **changes))


def bound_to(backend: Backend, lengths: Sequence[int] = LENGTHS) -> Bound:
    """The dense step of `backend`, bound to a cache of `lengths`."""
    point = point_of(lengths)
    pool = make_pool(point, 1, 2)
    pool.k.fill_(torch.nan)
    pool.v.fill_(torch.nan)
    cache = make_cache(point, pool, load("questprof", "cpu"), 0)
    cache.block_table.zero_()  # what reads all pages goes by dense_table
    query = make_query(point, pool, point.data, 0)
    return bind("dense", backend, cache, query, point.num_selected)


def assert_holds(bound: Bound) -> None:
    """The dense launch's output passes its check; an lse the library does not give is not checked."""
    results = check(bound, bound.steps[-1:], "before", seed=0)
    assert [result.stage for result in results] == ["dense"]
    assert all(result.holds for result in results), results

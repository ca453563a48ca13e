from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from questprof.counters.ncu_batches import batches, by_cache, cache_key, halves
from questprof.model import Point, Shape

SHAPE = Shape("test", 4, 4, 64)
POINTS = st.builds(
    lambda length, size, budget, layout: Point(
        SHAPE, length, page_size=size, token_budget=budget, summary_layout=layout
    ),
    st.sampled_from([1024, 2048]),
    st.sampled_from([8, 16]),
    st.sampled_from([256, 512, 1024]),
    st.sampled_from(["paired", "transposed"]),
)


@given(st.lists(POINTS, max_size=24), st.integers(1, 8))
def test_every_point_is_in_one_batch_and_a_cache_in_as_few_as_can_be(points, size):
    found = batches(points, size)
    ids = [point.point_id for batch in found for point in batch]
    assert sorted(ids) == sorted({point.point_id for point in points})
    assert all(1 <= len(batch) <= size for batch in found)
    for group in by_cache(points):
        holding = [batch for batch in found if any(p in group for p in batch)]
        assert len(holding) == -(-len(group) // size)


@given(st.lists(POINTS, min_size=1, max_size=24, unique_by=lambda point: point.point_id))
def test_points_of_one_cache_stand_together(points):
    keys = [cache_key(point) for group in by_cache(points) for point in group]
    changes = sum(a != b for a, b in pairwise(keys))
    assert changes == len(set(keys)) - 1


@given(st.lists(POINTS, min_size=1, max_size=24, unique_by=lambda point: point.point_id))
def test_halves_are_the_batch_and_none_is_empty(points):
    batch = tuple(point for group in by_cache(points) for point in group)
    parts = halves(batch)
    assert sum(parts, ()) == batch
    assert all(parts)
    assert len(parts) == min(2, len(batch))


def test_budgets_dense_and_backends_share_a_cache_and_all_else_does_not():
    point = Point(SHAPE, 1024, token_budget=256)
    same = [Point(SHAPE, 1024, token_budget=512), Point(SHAPE, 1024, policy="dense", backend="sdpa")]
    other = [
        Point(SHAPE, 1025, token_budget=256),
        Point(SHAPE, 1024, page_size=8, token_budget=256),
        Point(SHAPE, 1024, token_budget=256, summary_layout="transposed"),
        Point(SHAPE, 1024, token_budget=256, data="ramp"),
        Point(SHAPE, 1024, token_budget=256, seed=1),
        Point(SHAPE, 1024, token_budget=256, page_order="sequential"),
        Point(SHAPE, 1024, token_budget=256, batch_size=2),
    ]
    assert {cache_key(p) for p in same} == {cache_key(point)}
    assert cache_key(point) not in {cache_key(p) for p in other}

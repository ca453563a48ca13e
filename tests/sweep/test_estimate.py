"""Shards are a split of the grid; costs grow with what is asked for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import CPU, GPU, SHAPE
from questprof.grid import Block, Grid, plan_blocks
from questprof.sweep.estimate import Cost, cost, shard, weight
from questprof.sweep.settings import Settings
from questprof.timing.stopping import Rule, fixed
from questprof.workload import cache_bytes

RULE = Rule(0.01, 10, 50, 3.0)


def _blocks(
    lengths: tuple[int, ...], pages: tuple[int, ...] = (16,), device: str = "cpu"
) -> tuple[Block, ...]:
    return plan_blocks(
        Grid((SHAPE,), lengths, pages, (1024,), (1,), device, backends=("questprof", "sdpa"))  # type: ignore[arg-type]
    )


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 1 << 17), min_size=1, max_size=12, unique=True),
    st.lists(st.sampled_from([8, 16, 32, 64]), min_size=1, max_size=4, unique=True),
    st.integers(1, 60),
)
def test_shards_are_disjoint_and_hold_every_block_in_order(
    lengths: list[int], pages: list[int], count: int
) -> None:
    blocks = _blocks(tuple(lengths), tuple(pages))
    shards = [shard(blocks, number, count) for number in range(1, count + 1)]
    assert sorted(blocks.index(b) for each in shards for b in each) == list(range(len(blocks)))
    for each in shards:
        assert [blocks.index(b) for b in each] == sorted(blocks.index(b) for b in each)
    assert shards == [shard(blocks, number, count) for number in range(1, count + 1)]
    loads = [sum(map(weight, each)) for each in shards]
    assert max(loads) - min(loads) <= max(map(weight, blocks))  # greedy: one block apart at most


def test_one_shard_of_one_is_the_grid() -> None:
    blocks = _blocks((1024, 2048))
    assert shard(blocks, 1, 1) == blocks


def test_memory_on_a_cpu_is_one_cache_and_the_copy_of_a_baseline() -> None:
    (block,) = _blocks((4096,))
    assert cost(block, CPU, Settings("cpu", RULE)).memory_bytes == 2 * cache_bytes(block.points[0])


def test_memory_on_a_gpu_is_that_of_a_cold_rotation() -> None:
    """Half of the transposed summary is least, 4096 / 16 x 512 / 2 = 64 KiB: 3 MiB / 64 KiB + 1 = 49."""
    (block,) = _blocks((4096,), device="cuda")
    assert cost(block, GPU, Settings("cuda", RULE)).memory_bytes == 2 * 49 * cache_bytes(block.points[0])


@pytest.mark.parametrize("environment", [CPU, GPU], ids=["cpu", "gpu"])
def test_what_takes_longer_is_estimated_longer(environment: object) -> None:
    device = environment.device  # type: ignore[attr-defined]
    short, long = _blocks((4096, 65536), device=device)

    def seconds(block: Block, rule: Rule = RULE, **asked: float) -> float:
        found: Cost = cost(block, environment, Settings(device, rule, **asked))  # type: ignore[arg-type]
        return found.seconds

    assert seconds(short) < seconds(long)
    assert seconds(short, fixed(10)) < seconds(short, fixed(100))
    # append_kv and dense, dense, then append, score, select, attend, quest: 8 stages of 1 s
    assert seconds(short, energy_seconds=1.0) == pytest.approx(seconds(short) + 8)
    assert seconds(short, single_steps=1) - seconds(short) > 1e-3
    assert seconds(long, single_steps=100) - seconds(long) > seconds(short, single_steps=100) - seconds(short)
    assert seconds(long, replace(RULE, max_seconds=0.0)) < seconds(long)


def test_seconds_by_hand() -> None:
    """Dense and append_kv of one cache: 1.3 x 4.4 ms, 1000 launches of 1.7 us, and 0.3 ms before each.

    Of 10 to 50 samples 30 are planned with, 10 are taken however short the bound.
    """
    (block,) = plan_blocks(Grid((SHAPE,), (1 << 17,), (16,), (1024,), (1,), "cuda", backends=("questprof",)))
    dense = replace(block, points=tuple(point for point in block.points if point.policy == "dense"))
    a_round = 1.3 * 4.4e-3 + 1000 * 1.7e-6 + 2 * 0.3e-3

    def seconds(max_seconds: float) -> float:
        return cost(dense, GPU, Settings("cuda", replace(RULE, max_seconds=max_seconds))).seconds

    assert seconds(3.0) - seconds(0.2) == pytest.approx((30 - 200e-3 / a_round) * a_round)
    assert seconds(0.2) - seconds(0.01) == pytest.approx(0.2 - 10 * a_round)


def test_a_turn_longer_than_a_sample_is_taken_twice() -> None:
    """512 requests of 64 MiB are read at 3 TB/s in 11.5 ms, once timed and once before that."""
    (block,) = plan_blocks(
        Grid((SHAPE,), (1 << 17,), (16,), (1024,), (512,), "cuda", backends=("questprof", "sdpa"))
    )
    dense = replace(block, points=tuple(point for point in block.points if point.backend == "sdpa"))
    fewer, more = (cost(dense, GPU, Settings("cuda", fixed(count))).seconds for count in (10, 20))
    assert (more - fewer) / 10 == pytest.approx(2 * 512 * 2**26 / 3e12, rel=1e-3)

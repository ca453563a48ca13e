"""What a block of points will take, before anything is measured: memory exactly, seconds roughly. Pure.

The seconds are modelled from bytes and launches at assumed rates (ASSUMED), which a run corrects by what its
first blocks really took; they plan a run, and appear beside no measured figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questprof import ledger
from questprof.backends import CACHES_HELD
from questprof.grid import QUEST_BACKENDS, Block
from questprof.model import CACHE_MULTIPLE, Environment, Point
from questprof.sweep.settings import Settings
from questprof.timing.cuda import LEAD_US, MAX_LAUNCHES, MIN_REPLAY_US
from questprof.workload import cache_bytes


@dataclass(frozen=True)
class Rates:
    """What a device is assumed to do, in seconds and bytes a second."""

    read_gb_s: float
    fill_gb_s: float
    replay_s: float
    """One sample of one stage, unless MAX_LAUNCHES are less: on a GPU a replay of a graph."""
    launch_s: float
    """One launch at the least, in such a sample."""
    lead_s: float
    """What runs untimed before such a sample, if anything: so long and a turn of the rotation at least."""
    point_s: float
    """Binding, capturing and launching a point for the first time."""
    token_check_s: float
    """Checking a point against the reference, per cached token of the checked requests."""
    start_s: float
    """Imports, compilation and the streaming-read ceiling."""


ASSUMED = {
    "cpu": Rates(12.0, 0.4, 1e-4, 1e-4, 0.0, 0.05, 8e-7, 12.0),
    "cuda": Rates(3000.0, 60.0, 1.1e-6 * MIN_REPLAY_US, 1.7e-6, 1e-6 * LEAD_US, 0.15, 4e-6, 15.0),
}
"""Orders of magnitude, chosen to plan with."""
REPLAY_MARGIN = 1.3
"""A replay is made of whole turns, and so lasts a little longer than the least."""


@dataclass(frozen=True)
class Cost:
    """Memory in bytes and seconds of one block."""

    memory_bytes: int
    seconds: float


def cost(block: Block, environment: Environment, settings: Settings) -> Cost:
    """The cost of timing `block` as `settings` say."""
    rates, rule = ASSUMED[environment.device], settings.rule
    caches = max(_rotation(point, environment) for point in block.points)
    held = max(CACHES_HELD.get(point.backend, 1) for point in block.points)
    one = cache_bytes(block.points[0])
    memory = max(one * caches + (held - 1) * one * caches, block.points[0].pool_bytes)
    rounds = rule.max_samples if rule.fixed else (rule.min_samples + rule.max_samples) / 2
    a_round = _round_seconds(block, environment, rates)
    timing = max(rule.min_samples * a_round, min(rule.max_seconds, rounds * a_round))
    stages = sum(len(_stages(point)) for point in block.points)
    steps = settings.single_steps * _step_seconds(block, environment, rates) if settings.single_steps else 0.0
    seconds = (
        caches * held * one / rates.fill_gb_s / 1e9
        + len(block.points) * (rates.point_s + rates.token_check_s * block.points[0].seq_len)
        + timing
        + steps
        + stages * settings.energy_seconds
    )
    return Cost(memory, seconds)


def weight(block: Block) -> float:
    """About how long a block takes beside others: filling and timing grow with the cache."""
    return 64e6 + cache_bytes(block.points[0]) * len(block.points)


def shard(blocks: Sequence[Block], number: int, count: int) -> tuple[Block, ...]:
    """Shard `number` (from 1) of `count`: disjoint from the others, together the grid, about equally heavy.

    The heaviest block goes first, each to the lightest shard so far (the first of equals), so that the
    split depends on nothing but the grid. Blocks keep their order.
    """
    loads, chosen = [0.0] * count, []
    for index in sorted(range(len(blocks)), key=lambda index: (-weight(blocks[index]), index)):
        lightest = loads.index(min(loads))
        loads[lightest] += weight(blocks[index])
        if lightest == number - 1:
            chosen.append(index)
    return tuple(blocks[index] for index in sorted(chosen))


def _round_seconds(block: Block, environment: Environment, rates: Rates) -> float:
    """One sample of every stage of every point."""
    evicted = CACHE_MULTIPLE * environment.last_level_cache_bytes if environment.device == "cpu" else 0
    total = 0.0
    for point in block.points:
        counts = ledger.stage_bytes(ledger.entries(point, environment.num_workers))
        for stage in _stages(point):
            touched = counts[stage].read + counts[stage].write if stage in counts else 0
            launch = max(touched / rates.read_gb_s / 1e9, rates.launch_s)
            turn = _rotation(point, environment) * launch
            total += max(turn, min(REPLAY_MARGIN * rates.replay_s, MAX_LAUNCHES * launch))
            total += max(turn, rates.lead_s) if rates.lead_s else 0.0
        total += evicted / rates.read_gb_s / 1e9
    return total


def _step_seconds(block: Block, environment: Environment, rates: Rates) -> float:
    """One step of every point: a quest chain or a dense pass, behind a wait of half a millisecond."""
    counted = (ledger.counted_bytes(ledger.entries(p, environment.num_workers)) for p in block.points)
    touched = sum(max(each.values(), default=0) for each in counted)
    return 1e-3 + touched / rates.read_gb_s / 1e9


def _stages(point: Point) -> tuple[str, ...]:
    if point.policy != "dense":
        return ("append", "score", "select", "attend", "quest")
    return ("append_kv", "dense") if point.backend in QUEST_BACKENDS else ("dense",)


def _rotation(point: Point, environment: Environment) -> int:
    """Caches of a cold rotation; one on the CPU, where eviction makes them cold."""
    if environment.device == "cpu":
        return 1
    counted = ledger.counted_bytes(ledger.entries(point, environment.num_workers))
    least = min(counted[s] for s in (("dense",) if point.policy == "dense" else ("score", "attend")))
    return CACHE_MULTIPLE * environment.last_level_cache_bytes // max(1, least) + 1

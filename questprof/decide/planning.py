"""The minutes of `decide` shared among its parts, and which decode steps fit. Pure.

Estimates plan a run and appear beside no measured figure; a run corrects them by what it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from questprof.amdahl.plan import Block as StepBlock
from questprof.decode.config import Device, kv_bytes, step_weight_bytes
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Environment
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.pacing import num_ends, planned, priority
from questprof.sweep.settings import Settings
from questprof.timing.stopping import Rule
from questprof.units import format_seconds

SWEEP_SHARE: Final = 0.5
BYTES_SHARE: Final = 0.2
"""The steps take what the others leave."""
PAGE_SECONDS: Final = 4.0
"""For the page and the answer, when all is measured."""
LEAST_BLOCK_SECONDS: Final = 1.0
BLOCK_MARGIN: Final = 1.5
"""A block takes more than its timing: filling caches, checks."""


@dataclass(frozen=True)
class StepRates:
    """What a device is assumed to do in a decode step; seconds and bytes a second."""

    load_s: float
    """Making the weights, choosing how to multiply by them."""
    point_s: float
    """Capturing, checking and timing the parts of a step."""
    read_gb_s: float
    fill_gb_s: float
    passes: int
    """Runs of a step for each of its samples, parts and warm-up included."""


STEP_RATES: Final[dict[Device, StepRates]] = {
    "cpu": StepRates(2.0, 1.0, 5.0, 1.0, 3),
    "cuda": StepRates(20.0, 8.0, 3000.0, 60.0, 5),
}
"""Orders of magnitude, chosen to plan with."""


@dataclass(frozen=True)
class SweepPlan:
    """The blocks that are measured, and the titles of those that time does not allow."""

    blocks: tuple[Block, ...]
    dropped: tuple[str, ...]
    seconds: float


def plan_sweep(
    blocks: Sequence[Block], environment: Environment, settings: Settings, seconds: float
) -> SweepPlan:
    """The blocks that fit into `seconds`, those that tell most first; QuestprofError where none does."""
    costs = [cost(block, environment, settings).seconds for block in blocks]
    start = ASSUMED[environment.device].start_s
    order = telling(blocks)
    chosen = planned(costs, order, seconds - start)
    if not chosen:
        least = (start + min(costs)) / SWEEP_SHARE
        raise QuestprofError(
            f"--time {format_seconds(seconds / SWEEP_SHARE)} is too short",
            "not even the smallest part of the sweep fits into its half of it",
            f"Give about {format_seconds(ceil(1.1 * least))} or more, or shorter --lengths.",
        )
    kept = tuple(block for index, block in enumerate(blocks) if index in chosen)
    left_out = tuple(block.title for index, block in enumerate(blocks) if index not in chosen)
    return SweepPlan(kept, left_out, start + sum(costs[index] for index in chosen))


def telling(blocks: Sequence[Block]) -> list[int]:
    """Indices of `blocks` by `priority`; of the ends those within the budget, which decide nothing, last."""
    order, ends = priority(blocks), num_ends(blocks)
    return sorted(order[:ends], key=lambda index: not _above(blocks[index])) + order[ends:]


def _above(block: Block) -> bool:
    return any(
        point.policy != "dense" and point.seq_len > (point.token_budget or 0) for point in block.points
    )


def paced_rule(rule: Rule, num_blocks: int, seconds: float, start_s: float) -> Rule:
    """`rule` with each block's seconds bounded, so that `num_blocks` of them end within `seconds`."""
    if rule.fixed:
        return rule
    each = max(LEAST_BLOCK_SECONDS, (seconds - start_s) / (BLOCK_MARGIN * max(1, num_blocks)))
    return replace(rule, max_seconds=min(rule.max_seconds, round(each, 1)))


def step_seconds(block: StepBlock, device: Device, num_steps: int, page_size: int) -> float:
    """About how long the decode steps of one block take, without loading the weights."""
    rates = STEP_RATES[device]
    cache = kv_bytes(block.config, block.dense[0].shape.kv_dtype, block.seq_lens, page_size)
    step = (step_weight_bytes(block.config, block.weight_format, device) + cache) / rates.read_gb_s / 1e9
    return cache / rates.fill_gb_s / 1e9 + len(block.points) * (
        rates.point_s + num_steps * rates.passes * step
    )


class StepPacer:
    """Which blocks of one batch still fit; corrected by what earlier batches took.

    `slowness`: how many times as long as planned what came before took, until a batch has been measured.
    """

    def __init__(self, device: Device, num_steps: int, page_size: int, slowness: float = 1.0) -> None:
        self._device, self._num_steps, self._page_size = device, num_steps, page_size
        self._slowness = slowness
        self._expected = self._spent = 0.0

    def expects(self, blocks: Sequence[StepBlock]) -> float:
        """Seconds of `blocks` of one batch, the weights included, as far as is known now."""
        return self._expect(blocks) * (self._spent / self._expected if self._expected else self._slowness)

    def _expect(self, blocks: Sequence[StepBlock]) -> float:
        times = (step_seconds(block, self._device, self._num_steps, self._page_size) for block in blocks)
        return STEP_RATES[self._device].load_s + sum(times)

    def took(self, blocks: Sequence[StepBlock], seconds: float) -> None:
        """`blocks` have taken `seconds`."""
        self._expected += self._expect(blocks)
        self._spent += seconds

    def choose(self, blocks: Sequence[StepBlock], wanted: int, seconds: float) -> tuple[StepBlock, ...]:
        """Of the blocks of one batch those that fit into `seconds`: the one of length `wanted` first."""
        first = sorted(blocks, key=lambda block: (max(block.seq_lens) != wanted, -max(block.seq_lens)))
        chosen: list[StepBlock] = []
        for block in first:
            if self.expects([*chosen, block]) <= seconds:
                chosen.append(block)
        return tuple(block for block in blocks if block in chosen)

"""Source `trace`: the Triton stages in the interpreter, in processes of their own, every access recorded.

Whether Triton interprets is settled when it is imported, so that this process starts children, one a core
and at most one for each set of points that share a cache. What a child has said when its time is over, or
when it crashed, is kept; the reason stands where the rest should be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from questprof.counters import Counted
from questprof.counters.trace_process import NUM_WORKERS, Order, TraceProcess, said
from questprof.model import Point

MOST_CHILDREN = 8
"""Each child starts torch and Triton, which costs seconds and half a gigabyte."""

__all__ = ["NUM_WORKERS", "block_of", "count", "stream"]


def count(
    points: Sequence[Point],
    *,
    kernels: str = "",
    timeout_s: float,
    prefill: bool = False,
    num_workers: int = NUM_WORKERS,
    processes: int = 0,
) -> list[Counted]:
    """What the trace says of each of `points`, in their order; arguments as `stream` takes them."""
    counted = stream(
        points,
        kernels=kernels,
        timeout_s=timeout_s,
        prefill=prefill,
        num_workers=num_workers,
        processes=processes,
    )
    by_id = {one.point_id: one for one in counted}
    return [by_id[point.point_id] for point in points]


def stream(
    points: Sequence[Point],
    *,
    kernels: str = "",
    timeout_s: float,
    prefill: bool = False,
    num_workers: int = NUM_WORKERS,
    processes: int = 0,
) -> Iterator[Counted]:
    """What the trace says of `points`, as it comes; at last those of which nothing came, with the reason.

    `kernels` is a stage set MODULE:ATTRIBUTE laid over the project's Triton stages, `prefill` adds the append
    of whole prompts, `num_workers` is what the kernels are planned for (give the ledger the same),
    `processes` 0 takes a child a core, MOST_CHILDREN at most. After `timeout_s` seconds, or when the
    iteration is interrupted or closed, the children are killed. No kernel's error is raised here: it is a
    reason.
    """
    deadline = time.monotonic() + timeout_s
    missing = {point.point_id: point for point in points}
    hands = _dealt(list(missing.values()), processes or min(_cores(), MOST_CHILDREN))
    with ExitStack() as stack:
        children = [
            stack.enter_context(TraceProcess(Order(tuple(hand), kernels, num_workers, prefill)))
            for hand in hands
        ]
        for one in said(children, deadline):
            if missing.pop(one.point_id, None):
                yield one
        reasons = {point.point_id: child.reason() for child in children for point in child.order.points}
    for point_id in missing:
        reason = reasons[point_id] or f"not traced within {timeout_s:g} s"
        yield Counted(point_id, "trace", kernels or "triton", status="unavailable", reason=reason)


def block_of(point: Point) -> str:
    """An id of the point without budget and policy: points of one share cache, dense, append and score."""
    return replace(
        point, token_budget=0, token_budgets=(), policy="dense", variant="", policy_params={}
    ).point_id


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on a Mac
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _dealt(points: Sequence[Point], processes: int) -> list[list[Point]]:
    """`points` for each of at most `processes` children: blocks whole, work about equal, the least first."""
    blocks: dict[str, list[Point]] = {}
    for point in points:
        blocks.setdefault(block_of(point), []).append(point)
    hands: list[list[Point]] = [[] for _ in range(min(processes, len(blocks)))]
    loads = [0] * len(hands)
    for block in sorted(blocks.values(), key=_work, reverse=True):
        least = loads.index(min(loads))
        hands[least] += block
        loads[least] += _work(block)
    return [hand[::-1] for hand in hands]


def _work(block: Sequence[Point]) -> int:
    """Tokens that the kernels of a block walk, times heads: dense once, attend for every point."""
    shape = block[0].shape
    attended = sum(
        min(budget, length)
        for point in block
        for budget, length in zip(point.budgets, point.lengths, strict=True)
    )
    return shape.num_kv_heads * sum(block[0].lengths) + shape.num_qo_heads * attended

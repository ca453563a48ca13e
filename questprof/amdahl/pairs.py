"""Which dense step a Quest step is compared with: the fastest of the same model, weights, requests. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from questprof.amdahl.breakdown import Breakdown, breakdown
from questprof.amdahl.check import Check, check, speedup_interval, why_not
from questprof.amdahl.doubts import doubts
from questprof.model import Point, Profile, Record
from questprof.scan import best_ceiling, point_key
from questprof.units import count, format_count


@dataclass(frozen=True)
class Pair:
    """A Quest step beside the fastest dense one; `check` is None for the reason `unchecked`."""

    dense: Breakdown
    quest: Breakdown
    interval: tuple[float, float]
    """The middle 95 % of the speed-ups that resamples of both steps' samples give."""
    check: Check | None
    unchecked: str = ""
    doubts: tuple[str, ...] = ()
    """Why the two steps give no verdict; the interval knows nothing of it."""

    @property
    def point(self) -> Point:
        """The Quest step's point."""
        return self.quest.point

    @property
    def warm(self) -> bool:
        """Whether the time of one of the two steps is of a cache, not of memory."""
        return self.dense.warm or self.quest.warm

    @property
    def speedup(self) -> float:
        """Measured: the dense step over the Quest step."""
        return self.dense.us / self.quest.us


@dataclass(frozen=True)
class Steps:
    """Every usable step of a profile: all dense ones, and the pairs."""

    dense: tuple[Breakdown, ...]
    pairs: tuple[Pair, ...]
    alone: tuple[Breakdown, ...] = ()
    """Quest steps without a dense one to compare with."""

    @property
    def all(self) -> tuple[Breakdown, ...]:
        """Every step once: each pair's dense one before its Quest steps, the others last."""
        found: dict[str, Breakdown] = {}
        for pair in self.pairs:
            found.setdefault(pair.dense.point.point_id, pair.dense)
            found.setdefault(pair.point.point_id, pair.quest)
        for one in (*self.alone, *self.dense):
            found.setdefault(one.point.point_id, one)
        return tuple(found.values())


def steps_of(profile: Profile) -> Steps:
    """The steps of the records of kind `amdahl` that are `ok`, in the profile's order.

    Of several records of one point the last counts, and of several dense backends the fastest step. A pair is
    of one run: of a joined profile the steps of each.
    """
    found = [_run_steps(run) for run in profile.runs]
    return Steps(
        tuple(step for one in found for step in one.dense),
        tuple(pair for one in found for pair in one.pairs),
        tuple(step for one in found for step in one.alone),
    )


def _run_steps(profile: Profile) -> Steps:
    ceiling = best_ceiling(profile.header.ceilings)
    usable = {
        (record.env_id, record.point_id): (record, dataclasses.replace(found, ceiling_gb_s=ceiling))
        for record in profile.records
        if record.status == "ok" and not _wrong(record) and (found := breakdown(record))
    }
    fastest: dict[tuple[str, bytes], Breakdown] = {}
    for record, one in usable.values():
        key = record.env_id, dense_key(record.point)
        if record.point.policy == "dense" and (key not in fastest or one.us < fastest[key].us):
            fastest[key] = one
    pairs, alone = [], []
    for record, one in usable.values():
        if record.point.policy == "dense":
            continue
        dense = fastest.get((record.env_id, dense_key(record.point)))
        if dense is None:
            alone.append(one)
        else:
            interval = speedup_interval(dense, one)
            pairs.append(
                Pair(dense, one, interval, check(dense, one), why_not(dense, one), doubts(dense, one))
            )
    return Steps(
        tuple(one for record, one in usable.values() if record.point.policy == "dense"),
        tuple(pairs),
        tuple(alone),
    )


def _wrong(record: Record) -> bool:
    return any(not one.holds for one in record.checks)


def dense_key(point: Point) -> bytes:
    """What a dense step depends on: not policy, budgets, dense layers, layout or backend."""
    setup = point.decode and replace(
        point.decode, dense_layers=0, layer_budgets=(), dense_backend="questprof"
    )
    return point_key(
        point,
        decode=setup,
        shape=replace(point.shape, summary_dtype=""),
        policy="dense",
        policy_params={},
        token_budget=0,
        token_budgets=(),
        backend="",
        variant="",
        summary_layout="paired",
    )


def series_of(pairs: Iterable[Pair], **free: object) -> dict[bytes, list[Pair]]:
    """`pairs` whose points differ in the fields of `free` alone (given with neutral values), by their key."""
    found: dict[bytes, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(_setting_key(pair.point, free), []).append(pair)
    return found


def _setting_key(point: Point, free: dict[str, object]) -> bytes:
    """A point's key without `free`; whichever dense backend was the fastest sets nothing apart."""
    setup = point.decode and replace(point.decode, dense_backend="questprof")
    return point_key(point, decode=setup, **free)


def title(point: Point) -> str:
    """Model, weights, length, budget and batch of a step in words."""
    setup = point.decode
    said = [point.shape.name if setup is None else f"{setup.model}, {setup.weight_format} weights"]
    said.append(lengths_text(point))
    if point.policy != "dense":
        said.append(budget_text(point))
    if point.batch_size > 1:
        said.append(f"batch {point.batch_size}")
    if point.page_size != 16:
        said.append(f"page {point.page_size}")
    if point.policy not in ("dense", "quest"):
        said.append(f"policy {point.policy}")
    return ", ".join(said)


def step_title(point: Point) -> str:
    """A step in words, the dense ones with their backend."""
    if point.policy != "dense" or point.decode is None:
        return title(point)
    return f"{title(point)}, dense ({point.decode.dense_backend})"


def lengths_text(point: Point) -> str:
    """`32k`, or from the shortest to the longest request of a ragged batch."""
    shortest, longest = min(point.lengths), max(point.lengths)
    one = format_count(longest)
    return one if shortest == longest else f"ragged {format_count(shortest)} to {one}"


def budget_text(point: Point) -> str:
    """`budget 2048`, with the dense first layers where they are not two; a table by its mean."""
    setup = point.decode
    if setup and setup.layer_budgets:
        served = [budget for budget in setup.layer_budgets if budget]
        mean = sum(served) / len(served) if served else 0
        return f"budgets by layer, {mean:.0f} on average in {len(served)} layers"
    said = f"budget {point.token_budget}"
    if setup and setup.dense_layers != 2:
        said += f", {count(setup.dense_layers, 'dense layer')}"
    return said

"""What a worker is asked, what it says it launched, and which rows of a report are which launch. Pure.

The worker writes one line of JSON per range before the range opens, one per point behind its ranges, and
one at its end. Rows come in launch order, so that order, the number of kernels and their names decide which
row is whose; the label that a row carries is a further check where the profiler prints one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from questprof.counters.ncu_csv import Row
from questprof.counters.statuses import CountStatus
from questprof.model import Point
from questprof.structs import ByValue, Struct

DOMAIN = "questprof"
"""NVTX domain of every range."""
CALIBRATION = "calibration"
"""The range around the streaming read of known size."""
CALIBRATION_BYTES = 256 << 20
NOT_COUNTED = "copy or fill by the driver, not counted"
"""Stands among a range's kernels for a copy or fill, which no counter of a kernel sees."""

Mode = Literal["isolated", "pipelined"]


class Request(ByValue, frozen=True, tag="request"):
    """One run of the worker. `limit_s`: it ends itself after so long, whatever became of its parents."""

    points: tuple[Point, ...]
    mode: Mode
    plan_path: str
    kernels: str = ""
    prefill: bool = False
    fused: bool = True
    """Whether a pipelined chain is launched fused where the backend fuses."""
    limit_s: float = 600.0


class Range(Struct, frozen=True, tag="range"):
    """One NVTX range. `kernels`: mangled names of what it launches; None where that could not be recorded."""

    stage: str
    kernels: tuple[str, ...] | None = None


class Measured(ByValue, frozen=True, tag="point"):
    """One point behind its ranges, which are named by their numbers in the plan."""

    point_id: str
    variant: str = ""
    ranges: tuple[int, ...] = ()
    union_ratio: float | None = None
    sign_share: float | None = None
    status: CountStatus = "ok"
    reason: str = ""
    """Why it has no ranges, or what is wrong with its results."""


class Ended(Struct, frozen=True, tag="ended"):
    """The last line of a worker that came to its end; `error` is what stopped it otherwise."""

    error: str = ""


class Plan(Struct, frozen=True):
    """All that a worker wrote; `ended` is absent when it was killed or crashed."""

    ranges: tuple[Range, ...] = ()
    points: tuple[Measured, ...] = ()
    ended: Ended | None = None


class Mismatch(Exception):  # noqa: N818 -- a finding, not a failure of the program
    """The report does not hold what the worker launched; the message says what differs."""


_LINE = msgspec.json.Decoder(Range | Measured | Ended)


def read_plan(lines: Iterable[str]) -> Plan:
    """The plan of a worker's lines; a torn last line, left by a worker that was killed, is dropped."""
    found = []
    for line in lines:
        try:
            found.append(_LINE.decode(line))
        except msgspec.DecodeError:
            break
    return Plan(
        tuple(item for item in found if isinstance(item, Range)),
        tuple(item for item in found if isinstance(item, Measured)),
        next((item for item in found if isinstance(item, Ended)), None),
    )


def match(rows: Sequence[Row], plan: Plan, mode: Mode) -> list[tuple[Row, ...]]:
    """The rows of each range of `plan`, in its order.

    A plan that did not come to its end gives its complete ranges only. In a pipelined run a range is one
    row. Raises Mismatch when rows are missing, left over, or carry the name or label of something else.
    """
    found: list[tuple[Row, ...]] = []
    start = 0
    complete = plan.ended is not None and not plan.ended.error
    for number, expected in enumerate(plan.ranges):
        count = 1 if mode == "pipelined" else _count(rows, start, expected, plan.ranges[number + 1 :])
        own = tuple(rows[start : start + count])
        if len(own) < count and not complete:
            return found
        if len(own) < count:
            what = f"range {number} ({expected.stage}) launches {count} kernels"
            raise Mismatch(f"{what}, the report ends after {len(own)} of them")
        _check(number, expected, own, mode)
        found.append(own)
        start += count
    if complete and start < len(rows):
        more = ", ".join(dict.fromkeys(row.kernel for row in rows[start:]))
        raise Mismatch(f"{len(rows) - start} kernels more than launched on purpose: {more}")
    return found


def _count(rows: Sequence[Row], start: int, expected: Range, later: Sequence[Range]) -> int:
    """Kernels of a range: as recorded, or else the run of rows with its label."""
    if expected.kernels is not None:
        return sum(name != NOT_COUNTED for name in expected.kernels)
    if later and later[0].stage == expected.stage:
        raise Mismatch(f"two ranges of {expected.stage} follow one another, their kernels are not known")
    if start < len(rows) and not rows[start].ranges:
        raise Mismatch(f"the kernels of {expected.stage} are not known, and the report carries no labels")
    count = 0
    while start + count < len(rows) and expected.stage in rows[start + count].ranges:
        count += 1
    return count


def _check(number: int, expected: Range, rows: Sequence[Row], mode: Mode) -> None:
    """Mismatch unless the rows' names and labels are those of the range."""
    for row in rows:
        if row.ranges and expected.stage not in row.ranges:
            labels = ", ".join(row.ranges)
            raise Mismatch(
                f"range {number} is {expected.stage}, its kernel {row.kernel} is labelled {labels}"
            )
    if mode == "pipelined" or expected.kernels is None:
        return
    left = [name for name in expected.kernels if name != NOT_COUNTED]
    for row in sorted(rows, key=lambda row: -len(base_name(row.kernel))):
        mine = next((name for name in left if not name or base_name(row.kernel) in name), None)
        if mine is None:
            wanted = ", ".join(left)
            raise Mismatch(f"range {number} ({expected.stage}) launches {wanted}, not {row.kernel}")
        left.remove(mine)


def base_name(kernel: str) -> str:
    """The function's own name in a printed one: without return type, namespace, template and arguments."""
    head = kernel.split("(", 1)[0].split("<", 1)[0].strip()
    return head.split(" ")[-1].split("::")[-1]

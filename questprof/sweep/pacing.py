"""`--time 5m`: the blocks of a grid in the order in which they tell most, as many as fit. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Point
from questprof.structs import canonical_json
from questprof.units import format_seconds

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MARGIN = 1.1
"""What is planned with above an estimate: a block often takes a little longer, and the time is a bound."""


def parse_duration(text: str) -> float:
    """`90s`, `5m`, `1.5h` in seconds; QuestprofError otherwise."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        why = "it is 0" if match else "it is no number with its unit, s, m or h"
        raise QuestprofError(f"--time {text.strip()!r}", why, "Write 90s, 5m or 1h.")
    return float(match[1]) * _SECONDS[match[2].lower()]


def duration(seconds: float) -> str:
    """A `--time` that holds `seconds` and MARGIN, rounded up: `90s` below two minutes, else `5m`."""
    wanted = MARGIN * seconds
    return f"{math.ceil(wanted)}s" if wanted < 120 else f"{math.ceil(wanted / 60)}m"


class Late(NamedTuple):
    """A block that was left out: what it needs and what was left of the time then, in seconds."""

    title: str
    needs: float
    left: float


class Spent(NamedTuple):
    """Seconds that a run took, and those of it that a run with more time may spend more of."""

    seconds: float
    cut: float = 0.0
    """Of them on the ceiling, where the bound in time cut it short."""
    cut_share: float = 0.0
    """Share of its time that a run may take for what was cut."""

    def time_for(self, needs: float) -> float:
        """Seconds that a run must have for `needs` more, without MARGIN."""
        return max(self.seconds + needs, (self.seconds - self.cut + needs) / (1 - self.cut_share))


def shortfall(late: Sequence[Late], spent: Spent, measured_any: bool, share: float = 1.0) -> list[str]:
    """What was left out for want of time and why, and which `--time` would do, after what a run has `spent`.

    Where nothing was measured at all, also the time that the cheapest block wants. `share`: of `--time`, what
    the sweep has of it.
    """
    if not late:
        return []
    said = [
        f"left out for want of time: {one.title} (up to about {format_seconds(MARGIN * one.needs)}, "
        f"{format_seconds(max(0.0, one.left))} were left)"
        for one in late
    ]
    times = [spent.time_for(needs(one.needs for one in late)) / share for needs in (sum, min)]
    whole = f"--time {duration(times[0])} would do for all of it"
    least = f"--time {duration(times[1])} for one block"
    return [*said, whole if measured_any or len(late) == 1 else f"{whole}, {least}"]


def priority(blocks: Sequence[Block]) -> list[int]:
    """Indices of `blocks`: every setting's shortest and longest first, then what halves the widest gap.

    So the blocks that any time allows span the range of lengths, for all page sizes, batches and layouts.
    """
    groups: dict[bytes, list[int]] = {}
    for index, block in enumerate(blocks):
        groups.setdefault(canonical_json(_setting(block.points[0])), []).append(index)
    spread = [_halving(sorted(group, key=lambda i: blocks[i].points[0].seq_len)) for group in groups.values()]
    longest = max(map(len, spread), default=0)
    return [group[rank] for rank in range(longest) for group in spread if rank < len(group)]


def num_ends(blocks: Sequence[Block]) -> int:
    """How many of `priority` come first as the shortest and the longest lengths of their settings."""
    groups: dict[bytes, int] = {}
    for block in blocks:
        key = canonical_json(_setting(block.points[0]))
        groups[key] = groups.get(key, 0) + 1
    return sum(min(2, count) for count in groups.values())


def _setting(point: Point) -> Point:
    return replace(point, seq_len=0, seq_lens=())


def _halving(ordered: Sequence[int]) -> list[int]:
    """First, last, middle, middles of the halves, ..."""
    found: list[int] = []
    if ordered:
        found += [0, len(ordered) - 1]
    gaps = [(0, len(ordered) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            found.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [ordered[position] for position in dict.fromkeys(found)]


class Pacer:
    """Says which blocks still fit, correcting the estimates by what blocks have taken.

    `estimates` in seconds, one a block; `budget` in seconds from `started`, both by the caller's clock.
    """

    def __init__(self, estimates: Sequence[float], budget: float, started: float) -> None:
        self._estimates = estimates
        self._end = started + budget
        self._expected = self._spent = 0.0

    def fits(self, index: int, now: float) -> bool:
        """Whether block `index` would end in time if begun at `now`, MARGIN included."""
        return MARGIN * self.needs(index) <= self.left(now)

    def needs(self, index: int) -> float:
        """Seconds that block `index` will take, as far as is known."""
        return self._estimates[index] * self._correction

    def left(self, now: float) -> float:
        """Seconds of the budget that are left at `now`."""
        return self._end - now

    def took(self, index: int, seconds: float) -> None:
        """Block `index` has taken `seconds`."""
        self._expected += self._estimates[index]
        self._spent += seconds

    @property
    def _correction(self) -> float:
        return self._spent / self._expected if self._expected else 1.0


def planned(estimates: Sequence[float], order: Sequence[int], budget: float) -> frozenset[int]:
    """Which blocks fit into `budget` seconds by the estimates and MARGIN, taken in `order`."""
    found, left = set(), budget
    for index in order:
        if MARGIN * estimates[index] <= left:
            left -= MARGIN * estimates[index]
            found.add(index)
    return frozenset(found)

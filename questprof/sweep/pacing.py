"""`--time 5m`: the blocks of a grid in the order in which they tell most, as many as fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Point
from questprof.structs import canonical_json

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """`90s`, `5m`, `1.5h` in seconds; QuestprofError otherwise."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise QuestprofError(f"--time {text.strip()!r}", "it is no time above 0", "Write 90s, 5m or 1h.")
    return float(match[1]) * _SECONDS[match[2].lower()]


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
        """Whether block `index` would end in time if begun at `now`."""
        return now + self._estimates[index] * self._correction <= self._end

    def took(self, index: int, seconds: float) -> None:
        """Block `index` has taken `seconds`."""
        self._expected += self._estimates[index]
        self._spent += seconds

    @property
    def _correction(self) -> float:
        return self._spent / self._expected if self._expected else 1.0


def planned(estimates: Sequence[float], order: Sequence[int], budget: float) -> frozenset[int]:
    """Which blocks fit into `budget` seconds by the estimates alone, taken in `order`."""
    found, left = set(), budget
    for index in order:
        if estimates[index] <= left:
            left -= estimates[index]
            found.add(index)
    return frozenset(found)

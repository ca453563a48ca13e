"""Which 32-byte sectors of which tensors were accessed, and how often: the arithmetic of an address trace.

A visit is one sector of one access: an access is what one load, store or atomic of one program reaches with
its unmasked lanes, and lanes that fall into one sector are one visit, as memory coalesces them. A tensor's
bytes are its distinct sectors; every further visit of a sector is a repeat. An element that crosses a border
between sectors visits both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from questprof.counts import SECTOR_BYTES, TensorCount

_SHIFT = np.uint64(5)
OTHER = "other"
"""The tensor of every address outside the known ones."""

Direction = Literal["read", "write"]
Addresses = npt.NDArray[np.uint64]
Sectors = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """The bytes `start` to `end` (exclusive) of the address space, under a tensor's name."""

    name: str
    start: int
    end: int


class SpanVisits:
    """Visits of the sectors `first` to `first + count` (exclusive), in one direction."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.seen = np.zeros(count, dtype=np.bool_)
        self.visits = 0
        self._lane = np.zeros(count, dtype=np.int32)

    @property
    def distinct(self) -> int:
        """Sectors visited at all."""
        return int(np.count_nonzero(self.seen))

    def visit(self, sectors: Sectors) -> None:
        """One access: absolute sector numbers in any order, repeated or not."""
        inside = sectors - self.first
        self.seen[inside] = True
        if len(inside) == 1:
            self.visits += 1
            return
        # Of the lanes that write their number into a sector one remains: one visit a sector, without a sort.
        lanes = _numbers(len(inside))
        self._lane[inside] = lanes
        self.visits += int(np.count_nonzero(self._lane[inside] == lanes))


@dataclass
class OtherVisits:
    """Visits outside all spans, in one direction."""

    seen: set[int] = field(default_factory=set)
    visits: int = 0

    @property
    def distinct(self) -> int:
        """Sectors visited at all."""
        return len(self.seen)

    def visit(self, sectors: Sectors) -> None:
        """One access, as `SpanVisits.visit` takes it."""
        once = set(sectors.tolist())
        self.seen |= once
        self.visits += len(once)


Visits = dict[Direction, SpanVisits | OtherVisits]
"""Visits of one span, or outside all, by direction."""


class SectorLog:
    """All accesses of one launch, by span and direction. Spans must not overlap (ValueError).

    A sector that two spans share counts in each under whose bytes it was reached.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = sorted((span for span in spans if span.end > span.start), key=lambda span: span.start)
        for before, after in pairwise(self.spans):
            if before.end > after.start:
                raise ValueError(f"tensors {before.name} and {after.name} overlap in memory")
        self._starts = [span.start for span in self.spans]
        self._visits: list[Visits] = [{"read": _visits(span), "write": _visits(span)} for span in self.spans]
        self._other: Visits = {"read": OtherVisits(), "write": OtherVisits()}

    def record(
        self,
        direction: Direction,
        addresses: Addresses,
        mask: npt.NDArray[np.bool_] | None,
        element_bytes: int,
    ) -> None:
        """One access: the first byte of each lane's element, of any shape; lanes off in `mask` do nothing."""
        if mask is not None and not mask.all():
            addresses = addresses[np.broadcast_to(mask, addresses.shape)]
        lanes = addresses.reshape(-1)
        if not lanes.size:
            return
        lowest, highest = int(lanes.min()), int(lanes.max()) + element_bytes
        index = bisect_right(self._starts, lowest) - 1
        if index >= 0 and highest <= self.spans[index].end:
            self._visits[index][direction].visit(_sectors(lanes, element_bytes))
        else:
            self._split(direction, lanes, element_bytes)

    def _split(self, direction: Direction, lanes: Addresses, element_bytes: int) -> None:
        """An access that leaves its span: every byte goes where it lies."""
        reached = lanes[:, None] + np.arange(element_bytes, dtype=np.uint64)
        each_byte: Addresses = np.unique(reached)
        outside = np.ones(len(each_byte), dtype=np.bool_)
        for span, visits in zip(self.spans, self._visits, strict=True):
            first, stop = np.searchsorted(each_byte, np.array([span.start, span.end], dtype=np.uint64))
            if stop > first:
                outside[first:stop] = False
                visits[direction].visit(_sectors(each_byte[first:stop], 1))
        if outside.any():
            self._other[direction].visit(_sectors(each_byte[outside], 1))

    def seen(self, name: str, direction: Direction) -> npt.NDArray[np.bool_]:
        """Which sectors of the only span called `name` were visited, from its first on."""
        (index,) = (i for i, span in enumerate(self.spans) if span.name == name)
        visits = self._visits[index][direction]
        assert isinstance(visits, SpanVisits)
        return visits.seen

    def counts(self) -> dict[str, TensorCount]:
        """Bytes by tensor, `other` last; spans of one name add up, what was not accessed is left out."""
        sums: dict[str, dict[str, int]] = {}
        names = [*(span.name for span in self.spans), OTHER]
        for name, visits in zip(names, [*self._visits, self._other], strict=True):
            bytes_of = sums.setdefault(
                name, dict.fromkeys(("read", "write", "repeat_read", "repeat_write"), 0)
            )
            for direction, one in visits.items():
                bytes_of[direction] += SECTOR_BYTES * one.distinct
                bytes_of[f"repeat_{direction}"] += SECTOR_BYTES * (one.visits - one.distinct)
        return {name: TensorCount(**bytes_of) for name, bytes_of in sums.items() if any(bytes_of.values())}


def _visits(span: Span) -> SpanVisits:
    first = span.start // SECTOR_BYTES
    return SpanVisits(first, (span.end - 1) // SECTOR_BYTES - first + 1)


def _sectors(lanes: Addresses, element_bytes: int) -> Sectors:
    """Sectors of the elements, neighbours that fall into one already joined."""
    sectors = lanes >> _SHIFT
    if element_bytes > 1 and int(np.bitwise_or.reduce(lanes)) % element_bytes:
        ends = (lanes + np.uint64(element_bytes - 1)) >> _SHIFT
        sectors = np.stack([sectors, ends], axis=1).reshape(-1)
    if len(sectors) > 1:
        kept = np.empty(len(sectors), dtype=np.bool_)
        kept[0] = True
        np.not_equal(sectors[1:], sectors[:-1], out=kept[1:])
        sectors = sectors[kept]
    return sectors.astype(np.int64)


@lru_cache(maxsize=4096)
def _numbers(count: int) -> npt.NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)

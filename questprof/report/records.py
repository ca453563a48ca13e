"""Where each record stands: the line of its file, so that a figure leads back to its samples."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from questprof.model import Point, Profile, Record
from questprof.points import kernels, told_apart
from questprof.scan import dense_key
from questprof.units import format_count

MOST_LISTED: Final = 2000
"""Records of a profile that the page lists one by one; figures name the lines of all."""
_SKIPPED: Final = re.compile(r"line (\d+) skipped")
Line = tuple[str, int]
"""(file, line), from 1."""


@dataclass(frozen=True)
class Lines:
    """Lines of records by (kind, point_id); of each baseline its last dense one by file and `dense_key`."""

    by_id: Mapping[tuple[str, str], tuple[Line, ...]]
    dense: Mapping[tuple[str, bytes], tuple[Line, ...]]

    def of_points(self, points: Iterable[Point], kind: str = "sweep") -> str:
        """`grid.jsonl, lines 2-43`: the records of the points."""
        return ranges(line for point in points for line in self.by_id.get((kind, point.point_id), ()))

    def of_rows(self, points: Iterable[Point]) -> str:
        """The records of points of a sweep, and the dense ones that `scan_rows` sets beside them."""
        found: dict[Line, None] = {}
        for point in points:
            own = self.by_id.get(("sweep", point.point_id), ())
            found |= dict.fromkeys(own)
            beside, paired = dense_key(point), dense_key(point, "paired")
            for name in dict.fromkeys(name for name, _ in own):
                found |= dict.fromkeys(self.dense.get((name, beside)) or self.dense.get((name, paired), ()))
        return ranges(found)

    def of_kinds(self, kinds: Collection[str]) -> str:
        """The records of some kinds, in words."""
        return ranges(line for (kind, _), found in self.by_id.items() if kind in kinds for line in found)


def lines(profiles: Sequence[Profile]) -> Lines:
    """The lines of every record of `profiles`, which are as they were read."""
    by_id: dict[tuple[str, str], list[Line]] = {}
    dense: dict[tuple[str, bytes], dict[str, Line]] = {}
    for number, profile in enumerate(profiles, start=1):
        for record, line in zip(profile.records, numbers(profile), strict=True):
            place = profile.name or f"profile {number}", line
            by_id.setdefault((record.kind, record.point_id), []).append(place)
            if record.kind == "sweep" and record.point.policy == "dense":
                beside = dense.setdefault((place[0], dense_key(record.point)), {})
                beside[kernels(record.point)] = place
    return Lines(
        {key: tuple(found) for key, found in by_id.items()},
        {key: tuple(found.values()) for key, found in dense.items()},
    )


def numbers(profile: Profile) -> list[int]:
    """The line of each record in its file: line 1 is the header, and lines that were skipped count."""
    skipped = {int(found[1]) for warning in profile.warnings for found in _SKIPPED.finditer(warning)}
    found, line = [], 1
    for _ in profile.records:
        line += 1
        while line in skipped:
            line += 1
        found.append(line)
    return found


def ranges(found: Iterable[Line]) -> str:
    """Lines in words, neighbours as a range: `a.jsonl, lines 2-5, 9; b.jsonl, line 3`."""
    by_file: dict[str, list[int]] = {}
    for name, line in found:
        by_file.setdefault(name, []).append(line)
    return "; ".join(f"{name}, {_ranges(sorted(set(own)))}" for name, own in by_file.items())


def _ranges(own: Sequence[int]) -> str:
    starts = [own[0], *(b for a, b in pairwise(own) if b != a + 1)]
    ends = [*(a for a, b in pairwise(own) if b != a + 1), own[-1]]
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True)]
    return f"line{'s' * (len(own) > 1)} {', '.join(texts)}"


def listing(profile: Profile) -> dict[str, Any]:
    """The first MOST_LISTED records for the page: line, kind, point_id, status, point."""
    shown = profile.records[:MOST_LISTED]
    where = _unique(shown)
    rows = [
        f"line {line}  {record.kind}  {record.point_id}  {record.status}  {text}"
        for record, line, text in zip(shown, numbers(profile), where, strict=False)
    ]
    return {"rows": rows, "more": len(profile.records) - len(rows)}


def _unique(records: Sequence[Record]) -> list[str]:
    """Where each record is, in words; points of one kind that read the same with what tells them apart."""
    by_kind: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        by_kind.setdefault(record.kind, []).append(place)
    found = [_where(record) for record in records]
    for places in by_kind.values():
        told = told_apart([found[place] for place in places], [records[place].point for place in places])
        for place, text in zip(places, told, strict=True):
            found[place] = text
    return found


def _where(record: Record) -> str:
    point = record.point
    said = f"{point.shape.name}, {format_count(point.seq_len)}, page {point.page_size}"
    said += f", budget {point.token_budget}" * bool(point.token_budget)
    said += f", batch {point.batch_size}" * (point.batch_size > 1)
    return f"{said}, {point.policy}, {kernels(point)}"

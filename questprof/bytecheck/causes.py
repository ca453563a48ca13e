"""Why counted bytes are not those predicted: rules from the counts of tensors, or of whole stages.

A trace names tensors, so that its causes follow from them. Hardware counts totals of a stage, and what fits
them is the probable cause only. Every rule stands in the docstring of its function. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from questprof.bytecheck.judgement import Cause
from questprof.bytecheck.tolerance import GATHER_SHARE, HARDWARE_SHARE, LAUNCH_BYTES, is_users
from questprof.counts import SECTOR_BYTES, Entry, StageCount, TensorCount
from questprof.model import Point
from questprof.units import dtype_bytes, format_bytes

TILES: Final = (2, 4, 8, 16, 32, 64, 128, 256)
REPEAT_SHARE: Final = 0.01
"""Reads of a sector beyond its expected ones, over the distinct sectors, from which it is read twice."""
L2_FACTOR: Final = 1.5
"""Bytes read from the L2 cache over those expected, from which they are read twice.

Half way between once and twice; the project's dense and attend are at 1.02 at most on an H200, score, whose
every warp reads a query of 256 B beside 4 KiB of boxes, at 1.06 (profiles/h200/bytes.jsonl).
"""
NOTHING: Final = TensorCount()


@dataclass(frozen=True)
class Sizes:
    """What the rules compare with, in bytes of one launch; of `stage` at `point`."""

    point: Point
    stage: str
    counted: int
    """K and V, or the summary: what equation (12) counts of the stage."""
    extras: int
    """The stage's other reads."""
    whole_kv: int
    """K and V of all pages."""
    copied: int = 0
    """What a gather would copy: K and V that the stage reads, or the summary."""

    @property
    def page_bytes(self) -> int:
        """K (or V) of one whole page of one KV head."""
        shape = self.point.shape
        return self.point.page_size * shape.head_dim * dtype_bytes(shape.kv_dtype)

    @property
    def visited(self) -> int:
        """Bytes of K read of valid tokens: by every query head in attend, once a group in dense."""
        shape = self.point.shape
        heads = shape.num_qo_heads if self.stage == "attend" else shape.num_kv_heads
        tokens = sum(full * self.point.page_size + tail for full, tail in self._pages())
        return heads * tokens * self.page_bytes // self.point.page_size

    @property
    def expected_repeats(self) -> float:
        """Reads of K and V beyond the first, over the first, that heads of a group cause by picking alike."""
        if self.stage != "attend" or not self.counted:
            return 0.0
        return max(0.0, 2 * self.visited / self.counted - 1)

    @property
    def allowed_repeats(self) -> float:
        """The same; in a user's score and dense, every head of a group may read for itself."""
        own = is_users(self.point.variant) and self.stage != "attend"
        return self.point.shape.group_size - 1 if own else self.expected_repeats

    def tiled(self, tile: int) -> float:
        """Tokens read with a physical tile of `tile` tokens, over the valid ones, by one query head."""
        valid, read = 0, 0
        for full, tail in self._pages():
            valid += full * self.point.page_size + tail
            read += full * _up(self.point.page_size, tile) + _up(tail, tile)
        return read / valid if valid else 1.0

    def _pages(self) -> list[tuple[int, int]]:
        """Whole pages read of each request by one head, and the valid tokens of its tail page."""
        point = self.point
        found = []
        for length, total, chosen in zip(point.lengths, point.num_pages, point.num_selected, strict=True):
            pages = chosen if self.stage == "attend" else total
            tail = length % point.page_size
            if self.stage == "attend" and point.policy != "quest" and chosen < total:
                tail = 0
            found.append((pages - (tail > 0), tail) if pages else (0, 0))
        return found


def sizes(point: Point, stage: str, ledger: Sequence[Entry]) -> Sizes:
    """The sizes of `stage` from the whole ledger of `point`."""
    own = [entry for entry in ledger if entry.stage == stage]
    counted = sum(entry.read_bytes for entry in own if entry.in_eq12)
    kv = sum(entry.read_bytes for entry in own if entry.in_eq12 and entry.tensor in ("k", "v"))
    shape = point.shape
    vectors = sum(point.lengths) * shape.num_kv_heads * shape.head_dim
    return Sizes(
        point=point,
        stage=stage,
        counted=counted,
        extras=sum(entry.read_bytes for entry in own) - counted,
        whole_kv=2 * vectors * dtype_bytes(shape.kv_dtype),
        copied=kv or counted,
    )


# From a trace: by tensor.


def trace_cause(
    found: Mapping[str, TensorCount], size: Sizes, unselected: int | None, too_much_written: int
) -> tuple[Cause, str]:
    """The cause of a deviation of a traced stage, and what the counts say of it; see the rules below.

    `unselected` bytes of K and V in unselected pages; `too_much_written` bytes beyond the stage's ledger.
    """
    if size.stage == "score":
        return _trace_score(found, size)
    if size.stage in ("attend", "dense"):
        return _trace_attention(found, size, unselected or 0, too_much_written)
    return "unnamed", ""


def _trace_score(found: Mapping[str, TensorCount], size: Sizes) -> tuple[Cause, str]:
    """K or V instead: whole cache read. Below a tenth, or a sector of each row of a transposed summary: not
    read. Half: one of min and max. Repeats: twice.
    """
    summary, whole = found.get("summary", NOTHING), size.whole_kv
    instead = sum(found.get(name, NOTHING).read for name in ("k", "v"))
    if whole and instead >= whole // 2:
        return "whole cache read", f"score read {_size(instead)} of K and V"
    if summary.read < size.counted / 10 or 0 < summary.read <= _a_sector_a_row(size.point) < size.counted:
        return "summary not read", f"{_size(summary.read)} of {_size(size.counted)} of the summary"
    if size.counted and 2 * summary.read == size.counted:
        return "half of the summary read", "min without max, or max without min"
    if summary.read == size.counted and repeats(found, size) > REPEAT_SHARE:
        return "read twice", f"{_size(summary.repeat_read)} of the summary read again"
    return "unnamed", ""


def _a_sector_a_row(point: Point) -> int:
    """Bytes of the first sector of every row that `score` reads of a transposed summary; else 0."""
    if point.summary_layout != "transposed":
        return 0
    rows = point.shape.num_kv_heads * point.shape.head_dim * (1 if point.shape.group_size == 1 else 2)
    return rows * SECTOR_BYTES


def _trace_attention(
    found: Mapping[str, TensorCount], size: Sizes, unselected: int, too_much_written: int
) -> tuple[Cause, str]:
    """In this order, with K and V the distinct bytes read of each and c the predicted ones of either:

    - writes beyond the ledger of a quarter of K and V or more: a gather through a temporary;
    - one of K and V is 0 and the other is not: K without V, V without K; both 0: a temporary read instead;
    - attend, K and V those of all pages, more than c: whole cache read;
    - the expected bytes, all read equally often, but too often: read twice;
    - all reads, repeats included, are exactly those of a tile of T tokens a page: tile larger than page;
    - attend, bytes of unselected pages: unselected page touched;
    - K = V, short of c by whole pages: duplicate ids;
    - sectors read again beyond what heads that pick alike read again: read twice as well.
    """
    k, v = found.get("k", NOTHING), found.get("v", NOTHING)
    expected = size.counted // 2
    if size.copied and too_much_written >= GATHER_SHARE * size.copied:
        return "gather through a temporary", f"{_size(too_much_written)} written beside its outputs"
    if expected and not (k.read and v.read):
        if k.read or v.read:
            return ("K without V", "V was not read") if k.read else ("V without K", "K was not read")
        return "gather through a temporary", "neither K nor V was read"
    if size.stage == "attend" and k.read == v.read == size.whole_kv // 2 > expected:
        return "whole cache read", f"all {_size(size.whole_kv)} of K and V, not {_size(size.counted)}"
    visits = k.read + k.repeat_read
    if k.read == v.read == expected and visits > size.visited > 0 and visits % size.visited == 0:
        return _twice(k, v)
    if tiles := _traced_tiles(visits, size, unselected):
        return "tile larger than page", _tiles_text(tiles)
    if size.stage == "attend" and unselected:
        return "unselected page touched", f"{_size(unselected)} in pages that no query head selected"
    short, pages = expected - k.read, size.page_bytes
    if size.stage == "attend" and k.read == v.read and short > 0 and short % pages == 0:
        return "duplicate ids", f"{short // pages} of {expected / pages:.4g} pages of the heads are missing"
    if k.read == v.read == expected and repeats(found, size) > REPEAT_SHARE:
        return _twice(k, v)
    return "unnamed", ""


def _twice(k: TensorCount, v: TensorCount) -> tuple[Cause, str]:
    return "read twice", f"{_size(k.repeat_read + v.repeat_read)} of K and V read again"


def repeats(found: Mapping[str, TensorCount], size: Sizes) -> float:
    """Reads of K, V and summary beyond the expected ones, over the distinct bytes; never below 0."""
    own = [found.get(name, NOTHING) for name in ("k", "v", "summary")]
    distinct, again = sum(count.read for count in own), sum(count.repeat_read for count in own)
    return max(0.0, again / distinct - size.allowed_repeats) if distinct else 0.0


def _traced_tiles(visits: int, size: Sizes, unselected: int) -> list[int]:
    """The tiles T whose reads K's visits (distinct and again) are; none when they are the valid tokens'.

    A tile that divides a page reads too much of the tail page alone, and nothing of an unselected one. At the
    pool's last page a tile may be cut off, by every query head that reads it.
    """
    shape, page_size = size.point.shape, size.point.page_size
    vector_bytes = shape.head_dim * dtype_bytes(shape.kv_dtype)
    found = []
    for tile in TILES:
        factor, cut = size.tiled(tile), (_up(page_size, tile) - page_size) * vector_bytes * shape.num_qo_heads
        missing = factor * size.visited - visits
        fits = -factor / 2 < missing < cut + factor / 2 and visits > size.visited
        if factor > 1 and fits and not (unselected and page_size % tile == 0):
            found.append(tile)
    return found


def _tiles_text(tiles: Sequence[int]) -> str:
    return f"the reads are those of a tile of {' or '.join(map(str, tiles))} tokens"


# From hardware: by the totals of a stage.


def hardware_cause(count: StageCount, size: Sizes, allowed: int, predicted_write: int) -> tuple[Cause, str]:
    """The probable cause of a deviation of a stage that hardware counted; see the rules below.

    Writes of a gather's size come first, whatever was read.
    """
    if gathers(count, size, predicted_write):
        return "gather through a temporary", f"{_size(count.write - predicted_write)} written too much"
    if size.stage in ("score", "attend", "dense") and size.counted:
        rules = _hardware_score if size.stage == "score" else _hardware_attention
        cause, text = rules(count, size, allowed)
        if cause != "unnamed":
            return cause, text
    if count.read < size.counted + size.extras:
        return "cache hits", "reads were served by a cache"
    return "unnamed", ""


def _hardware_score(count: StageCount, size: Sizes, allowed: int) -> tuple[Cause, str]:
    """Below a tenth of the summary: not read. Half, twice, all of K (or K and V): as their names say."""
    seen = count.read - size.extras
    if seen < size.counted / 10:
        return "summary not read", f"{_size(max(0, seen))} beside the small tensors"
    if _fits(seen, size.counted / 2, allowed):
        return "half of the summary read", "min without max, or max without min"
    if size.whole_kv > size.counted and seen >= size.whole_kv / 2 - allowed:
        return "whole cache read", f"{_size(seen)} of a cache of {_size(size.whole_kv)}"
    if _fits(seen, 2 * size.counted, 2 * allowed):
        return "read twice", "twice the summary"
    return "unnamed", ""


def _hardware_attention(count: StageCount, size: Sizes, allowed: int) -> tuple[Cause, str]:
    """In this order: half of K and V; all pages (attend); twice; a tile's; heads of a group that read shared
    pages again (between the union and every head for itself).
    """
    seen, kv = count.read - size.extras, size.counted
    if _fits(seen, kv / 2, allowed):
        return "K without V", "half of K and V; totals cannot tell it from V without K"
    if size.stage == "attend" and size.whole_kv > kv and _fits(seen, size.whole_kv, allowed):
        return "whole cache read", f"all {_size(size.whole_kv)} of K and V"
    if _fits(seen, 2 * kv, 2 * allowed):
        other = next((tile for tile in TILES if size.tiled(tile) == 2), None)
        return "read twice", "twice K and V" + (f", or a tile of {other} tokens" if other else "")
    factors = {tile: size.tiled(tile) - 1 for tile in TILES}
    if tiles := [t for t, more in factors.items() if more * kv > allowed and _between(seen / kv - 1, more)]:
        return "tile larger than page", _tiles_text(tiles)
    if kv < seen <= kv * (1 + size.expected_repeats) + allowed:
        return "read twice", "pages that heads of a group share were read again"
    return "unnamed", ""


def gathers(count: StageCount, size: Sizes, predicted_write: int) -> bool:
    """Whether writes exceed the predicted ones by a gather's size: GATHER_SHARE of K and V (or summary).

    Less is not judged: lines that a stage before left dirty may be written back while this one runs, and of
    63 points on an H200 375 KB (dense) were the most, and 0.4 % of what it reads (profiles/h200/bytes.jsonl).
    """
    if size.stage not in ("score", "attend", "dense", "quest") or not size.copied:
        return False
    return count.write - predicted_write >= GATHER_SHARE * size.copied + LAUNCH_BYTES


def _between(excess: float, tile_excess: float) -> bool:
    """A tile's surplus partly overlaps the rows of neighbouring heads: half of it at least, none above."""
    return tile_excess / 2 <= excess <= tile_excess * (1 + HARDWARE_SHARE) + HARDWARE_SHARE


def _fits(seen: float, expected: float, allowed: int) -> bool:
    return abs(seen - expected) <= allowed


def _up(tokens: int, tile: int) -> int:
    return -(-tokens // tile) * tile


def _size(num_bytes: float) -> str:
    return format_bytes(num_bytes)

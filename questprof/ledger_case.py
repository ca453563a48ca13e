"""A point as the byte ledger multiplies it: checked, with the sizes of its tensors. Pure Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from questprof_kernels.plan import (
    AttentionPlan,
    BlockPlan,
    ceil_div,
    equal_shares,
    plan_attention,
    plan_blocks,
    summary_blocks,
)

from questprof.equations import picked_row_share
from questprof.errors import QuestprofError
from questprof.model import Point, validate_shape
from questprof.units import count, dtype_bytes

VARIANTS = ("triton", "cuda", "cpu")
"""Implementations whose splits are known."""


@dataclass(frozen=True)
class Case:
    """A checked point with the sizes that the entries multiply; sums run over the requests."""

    point: Point
    num_workers: int
    union_ratio: float
    physical_tile: int | None
    batch_size: int
    vector_bytes: int  # M: one key or value vector
    bound_bytes: int  # one min or one max vector
    query_bytes: int  # q or out: the cache's dtype, 16 bits over an 8-bit cache
    total_pages: int
    total_selected: int
    row_share: float  # of the summary's min and max rows that score reads
    num_blocks: int  # of a transposed summary
    variant: str  # triton, cuda or cpu

    def plan(self, stage: str) -> AttentionPlan:
        """The plan of `attend` (a page set per query head) or `dense`, as their launchers ask for it."""
        shape, attend = self.point.shape, stage == "attend"
        return plan_attention(
            num_qo_heads=shape.num_qo_heads,
            num_kv_heads=shape.num_kv_heads,
            per_query_head=attend,
            head_dim=shape.head_dim,
            page_size=self.point.page_size,
            batch_size=self.batch_size,
            pages_per_request=ceil_div(self.total_selected if attend else self.total_pages, self.batch_size),
            num_workers=self.num_workers,
            element_bytes=dtype_bytes(shape.kv_dtype),
        )

    def block_plan(self, stage: str) -> BlockPlan:
        """The CUDA variant's plan of `attend` or `dense`, as their launchers ask for it."""
        shape, attend = self.point.shape, stage == "attend"
        return plan_blocks(
            num_qo_heads=shape.num_qo_heads,
            num_kv_heads=shape.num_kv_heads,
            per_query_head=attend,
            head_dim=shape.head_dim,
            batch_size=self.batch_size,
            pages_per_request=ceil_div(self.total_selected if attend else self.total_pages, self.batch_size),
            num_workers=self.num_workers,
        )

    def splits(self, stage: str, num_pages: Iterable[int]) -> list[int]:
        """Splits of each request that leave partials: on a CPU all, on a GPU those of more than one split."""
        if self.variant == "cpu":
            return self._cpu_splits(stage)
        plan = self.block_plan(stage) if self.variant == "cuda" else self.plan(stage)
        return [n for n in map(plan.active_splits, num_pages) if n > 1]

    def _cpu_splits(self, stage: str) -> list[int]:
        attend = stage == "attend"
        shares = equal_shares(
            num_units=self.point.shape.num_qo_heads if attend else 1,
            num_pages=self.total_selected // self.batch_size if attend else self.total_pages,
            num_workers=self.num_workers,
        )
        return [shares] * self.batch_size

    def tile(self, stage: str) -> int:
        """Tokens that `stage` reads at least of a page it touches."""
        return self.physical_tile or int(self.plan(stage).physical_tile)

    def dense_tokens(self, stage: str) -> list[int]:
        """Tokens that one KV head reads of each request, all pages."""
        size, tile = self.point.page_size, self.tile(stage)
        return [
            (length // size) * _tiled(size, tile) + _tiled(length % size, tile)
            for length in self.point.lengths
        ]

    def most_union_pages(self) -> list[int]:
        """Pages of the union of a group's page sets in each request, at most."""
        pairs = zip(self.point.num_selected, self.point.num_pages, strict=True)
        return [min(self.point.shape.group_size * k, p) for k, p in pairs]

    def attend_tokens(self) -> float:
        """Tokens that one KV head reads in `attend`, all requests together: by the ratio, or at most.

        The ratio is that of all requests and tells nothing of one. Policy `quest` always holds the tail
        page. Where others may or may not, its empty slots are counted as read unless all pages are: at most
        S - 1 tokens too many a request.
        """
        full, held = _tiled(self.point.page_size, self.tile("attend")), self.point.policy == "quest"
        most, missing = 0, 0
        for tokens, pages, union in zip(
            self.dense_tokens("attend"), self.point.num_pages, self.most_union_pages(), strict=True
        ):
            empty = pages * full - tokens if held and union else 0
            most += min(union * full - empty, tokens)
            missing += empty
        return min(self.union_ratio * self.total_selected * full - missing, most)


def _tiled(num_tokens: int, tile: int) -> int:
    """`num_tokens` rounded up to whole physical tiles."""
    tiles: int = ceil_div(num_tokens, tile)
    return tiles * tile


def checked_case(
    point: Point,
    num_workers: int,
    union_ratio: float | None = None,
    physical_tile: int | None = None,
    sign_share: float | None = None,
    variant: str = "",
) -> Case:
    """The case of a point that can be; QuestprofError says which part cannot. Arguments as in the ledger."""
    shape = validate_shape(point.shape)
    check_lengths(point)
    _check_reading(point, num_workers, union_ratio, physical_tile)
    _check_signs(point, sign_share)
    transposed = point.summary_layout == "transposed"
    if sign_share is None:
        sign_share = picked_row_share(1 if point.data == "shared" else shape.group_size)
    query_heads = len(point.lengths) * shape.num_qo_heads
    return Case(
        point=point,
        num_workers=num_workers,
        union_ratio=shape.group_size if union_ratio is None else union_ratio,
        physical_tile=physical_tile,
        batch_size=len(point.lengths),
        vector_bytes=shape.head_dim * dtype_bytes(shape.kv_dtype),
        bound_bytes=shape.head_dim * dtype_bytes(shape.effective_summary_dtype),
        query_bytes=query_heads * shape.head_dim * max(2, dtype_bytes(shape.kv_dtype)),
        total_pages=sum(point.num_pages),
        total_selected=sum(point.num_selected),
        row_share=sign_share if transposed else 1.0,
        num_blocks=summary_blocks(point.num_pages) if transposed else 0,
        variant=variant if variant in VARIANTS else "cpu" if point.device == "cpu" else "triton",
    )


def check_lengths(point: Point) -> None:
    """QuestprofError unless the pages and requests of `point` can be."""
    if point.page_size < 1:
        why = "a page holds at least one token"
        raise QuestprofError(f"page size {point.page_size}", why, "Give tokens a page, for example 16.")
    if not point.lengths or min(point.lengths) < 0 or len(point.budgets) != len(point.lengths):
        what = f"lengths {point.lengths} with token budgets {point.budgets}"
        why = "a batch has at least one request, each with a length of at least 0 and one budget"
        raise QuestprofError(what, why, "Give as many budgets as lengths, or one for all.")


def _check_reading(
    point: Point, num_workers: int, union_ratio: float | None, physical_tile: int | None
) -> None:
    """QuestprofError unless budgets, workers, union and tile can be."""
    pairs = zip(point.budgets, point.lengths, strict=True)
    small = [budget for budget, length in pairs if length and budget < point.page_size]
    if small and (any(point.budgets) or point.policy != "dense"):
        why = f"it is below the page size {point.page_size}, so that no page can be selected"
        fix = f"Give at least {point.page_size}; a budget counts tokens, not pages."
        raise QuestprofError(f"token budget {small[0]}", why, fix)
    if num_workers < 1:
        raise QuestprofError(
            f"{num_workers} workers", "at least one works", "Give multiprocessors or threads."
        )
    if physical_tile is not None and physical_tile < 1:
        why = "a kernel reads at least one token at once"
        raise QuestprofError(f"physical tile {physical_tile}", why, "Give 1 when it reads valid tokens only.")
    group_size = point.shape.group_size
    if union_ratio is not None and not 1 <= union_ratio <= group_size:
        why = f"|union| / K lies in 1..{group_size} for {count(group_size, 'query head')} a KV head"
        fix = "Give 1 when a group shares one page set, otherwise the measured ratio."
        raise QuestprofError(f"union ratio {union_ratio:g}", why, fix)


def _check_signs(point: Point, sign_share: float | None) -> None:
    """QuestprofError unless the signs of a group can pick this share of the rows of bounds."""
    if sign_share is None:
        return
    what = f"sign share {sign_share:g}"
    if point.summary_layout != "transposed":
        why = "a paired summary is read whole, whatever the signs"
        raise QuestprofError(what, why, "Leave it out, or take the transposed layout.")
    most = 0.5 if point.shape.group_size == 1 else 1.0
    if not 0.5 <= sign_share <= most:
        why = f"a group of {point.shape.group_size} picks a share of the min and max rows in 0.5..{most:g}"
        raise QuestprofError(what, why, "Count the dimensions where a sign occurs, over 2 head_dim.")

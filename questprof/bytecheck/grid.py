"""The points whose bytes are counted: named grids, and corners where a wrong kernel or formula would show.

A trace interprets kernels on the CPU, thousands of times slower than a GPU: it takes shorter lengths, and two
KV heads with their query heads, as every head of a shape moves the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.grid import check_pages, default_layout, resolve_shape
from questprof.model import Data, Point, Shape, SummaryLayout

Device = Literal["cpu", "cuda"]
"""Where the kernels run: interpreted on the CPU (a trace), or on a GPU (hardware counters)."""

TRACED_KV_HEADS = 2
"""KV heads of a traced shape: more than one, so that a head's stride is part of every address."""
LONGEST_TRACE = 8192
"""Tokens up to which a trace beside hardware counters stays short."""
GROUPED_SHAPE = "llama-3.1-8b"
"""The corner of a group of query heads a KV head."""


@dataclass(frozen=True)
class NamedGrid:
    """Sizes in tokens, by device where they differ."""

    lengths: dict[Device, tuple[int, ...]]
    page_sizes: tuple[int, ...]
    budgets: dict[Device, tuple[int, ...]]
    help: str


def _doubled(first: int, last: int) -> tuple[int, ...]:
    return (first, *(_doubled(2 * first, last) if first < last else ()))


GRIDS: dict[str, NamedGrid] = {
    "default": NamedGrid(
        {"cpu": _doubled(2048, 8192), "cuda": (8192, 32768, 131072)},
        (8, 16, 32),
        {"cpu": (1024, 2048), "cuda": (1024, 2048, 4096)},
        "every term at a few lengths, and corners",
    ),
    "series": NamedGrid(
        {"cpu": _doubled(2048, 8192), "cuda": _doubled(2048, 131072)},
        (8, 16, 32),
        {"cpu": (2048,), "cuda": (2048,)},
        "S = 8, 16, 32 at B = 2048, L from 2k",
    ),
    "plane": NamedGrid(
        {"cpu": (8192,), "cuda": _doubled(2048, 131072)},
        (8, 16, 32),
        {"cpu": (1024, 2048, 4096), "cuda": (1024, 2048, 4096)},
        "S by B, L from 2k on a GPU",
    ),
}


@dataclass(frozen=True)
class Asked:
    """What `bytes` was asked for; None stands for what the named grid has."""

    shapes: tuple[Shape, ...]
    grid: str = "default"
    lengths: tuple[int, ...] | None = None
    page_sizes: tuple[int, ...] | None = None
    budgets: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] = (1,)
    summary_layouts: tuple[SummaryLayout, ...] = ("paired", "transposed")
    """None: the layout that is faster for each shape on a GPU."""
    data: tuple[Data, ...] = ("independent",)
    policies: tuple[str, ...] = ("quest",)
    seed: int = 0
    all_heads: bool = False
    """A trace too takes all heads."""
    corners: bool = False


def named_grid(name: str) -> NamedGrid:
    """The grid `name`; QuestprofError for an unknown one."""
    if name not in GRIDS:
        raise QuestprofError(f"grid {name!r}", "it is unknown", f"Choose one of {', '.join(GRIDS)}.")
    return GRIDS[name]


def plan_points(asked: Asked, device: Device) -> tuple[Point, ...]:
    """The points of `asked` on `device`, those over one cache together; each once.

    QuestprofError for an unknown grid, a page that the cache does not take, a budget below a page.
    """
    named = named_grid(asked.grid)
    budgets = asked.budgets or named.budgets[device]
    page_sizes = asked.page_sizes or named.page_sizes
    check_pages(budgets, page_sizes)
    shapes = [traced_shape(s) if device == "cpu" and not asked.all_heads else s for s in asked.shapes]
    found = [
        Point(
            shape=shape,
            seq_len=length,
            page_size=page_size,
            token_budget=budget,
            batch_size=batch,
            policy=policy,
            summary_layout=layout,
            device=device,
            data=data,
            seed=asked.seed,
        )
        for shape in shapes
        for batch in asked.batch_sizes
        for length in asked.lengths or named.lengths[device]
        for page_size in page_sizes
        for layout in asked.summary_layouts or (default_layout(shape, "cuda"),)
        for data in asked.data
        for policy in asked.policies
        for budget in budgets
    ]
    if asked.corners:
        found += _corners(asked, shapes[0], device)
    return once(found)


def beside_hardware(asked: Asked) -> tuple[Point, ...]:
    """The points of a trace that runs beside hardware counters: short, the sizes that were asked for."""
    short = tuple(n for n in asked.lengths or () if n <= LONGEST_TRACE)
    lengths = short[-1:] or ((LONGEST_TRACE,) if asked.lengths else None)
    few = asked.batch_sizes[:1]
    return plan_points(dataclasses.replace(asked, lengths=lengths, batch_sizes=few), "cpu")


def traced_shape(shape: Shape) -> Shape:
    """The first TRACED_KV_HEADS KV heads of `shape` with their query heads; all where it has no more."""
    if shape.num_kv_heads <= TRACED_KV_HEADS:
        return shape
    heads = TRACED_KV_HEADS * shape.group_size
    return replace(shape, name=f"{shape.name}*", num_qo_heads=heads, num_kv_heads=TRACED_KV_HEADS)


def heads_note(asked: Iterable[Shape]) -> str:
    """Which heads of the shapes a trace takes, in words; '' when it takes all."""
    said = [
        f"{traced_shape(shape).num_qo_heads} of {shape.num_qo_heads} query heads of {shape.name}"
        for shape in asked
        if traced_shape(shape) != shape
    ]
    return f"traced over {', '.join(said)}: every head moves the same bytes" if said else ""


def _corners(asked: Asked, shape: Shape, device: Device) -> Iterator[Point]:
    """Where the ledger has a term of its own: a group, a partial last page, an odd page, ragged requests.

    They are as short as a device can tell the term from the rest.
    """
    length, budget = {"cpu": (2048, 512), "cuda": (32768, 2048)}[device]
    grouped = resolve_shape(
        GROUPED_SHAPE, kv_dtype=shape.kv_dtype, summary_dtype=shape.effective_summary_dtype
    )
    plain = Point(shape=shape, seq_len=length, token_budget=budget, device=device, seed=asked.seed)
    group = replace(plain, shape=traced_shape(grouped) if device == "cpu" else grouped)
    yield group
    yield replace(group, data="shared")
    if "transposed" in asked.summary_layouts:
        yield replace(group, summary_layout="transposed")
    yield replace(plain, seq_len=length + 5)
    yield replace(plain, seq_len=length + 5, policy="quest-open")
    yield replace(plain, page_size=12)
    yield replace(plain, batch_size=3, seq_len=length + 5, seq_lens=(length // 3, 0, length + 5))


def once(points: Iterable[Point]) -> tuple[Point, ...]:
    """`points` in their order, each once."""
    return tuple({point.point_id: point for point in points}.values())

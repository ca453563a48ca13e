"""The paper's own table of whole steps beside the measured ones. Pure.

Another device, another implementation: it is there to be looked at, and enters no figure of the tool.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from questprof.amdahl.breakdown import Breakdown
from questprof.amdahl.pairs import Pair
from questprof.model import Point


@dataclass(frozen=True)
class PaperCell:
    """One entry: the paper's ms a token beside the measured one. Budget 0 is the dense ("full") step."""

    weight_format: str
    label: str
    seq_len: int
    token_budget: int
    paper_ms: float
    paper_speedup: float | None
    ms: float | None
    """Measured; None where no such step was."""
    speedup: float | None
    doubtful: bool = False
    """Whether the measured steps give no verdict."""


@dataclass(frozen=True)
class PaperTable:
    """The paper's table with what it is of."""

    source: str
    device: str
    model: str
    unit: str
    cells: tuple[PaperCell, ...]


_Cell = tuple[str, int, int]
"""Weight format, length, token budget (0: dense)."""
_Own = tuple[float | None, float | None, bool]
"""Measured ms, speed-up over the dense step, whether the two give no verdict."""
_NONE: _Own = (None, None, False)


@lru_cache(maxsize=1)
def _stored() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("paper.toml").read_text())


def beside_paper(dense: Iterable[Breakdown], pairs: Sequence[Pair]) -> PaperTable | None:
    """The paper's table where steps of its model, batch 1, were measured; None where none was.

    Whole rows of a weight format that was measured at none of the paper's lengths are left out.
    """
    table = _stored()
    own: dict[_Cell, _Own] = {}
    for one in sorted(dense, key=lambda one: -one.us):  # the fastest last
        if cell := _cell(one.point, table):
            own[cell] = one.us / 1e3, None, False
    for pair in pairs:
        setup, cell = pair.point.decode, _cell(pair.point, table)
        if cell and setup and setup.dense_layers == 2 and not setup.layer_budgets:
            own[cell] = pair.quest.us / 1e3, pair.speedup, bool(pair.doubts)
    cells = [
        PaperCell(
            name, table[name]["label"], length, budget, ms, times, *own.get((name, length, budget), _NONE)
        )
        for name in ("fp16", "int4")
        for length, budget, ms, times in _entries(table, name)
    ]
    measured = {cell.weight_format for cell in cells if cell.ms is not None}
    kept = tuple(cell for cell in cells if cell.weight_format in measured)
    if not kept:
        return None
    return PaperTable(table["source"], table["device"], table["model"], table["unit"], kept)


def _cell(point: Point, table: dict[str, Any]) -> _Cell | None:
    """The entry of the paper's table that a step belongs to; None where it is of something else."""
    setup = point.decode
    if setup is None or setup.model != table["model"] or point.batch_size != 1:
        return None
    if point.page_size != table["page_size"] or point.policy not in ("dense", "quest"):
        return None
    return setup.weight_format, point.seq_len, point.token_budget


def _entries(table: dict[str, Any], name: str) -> Iterable[tuple[int, int, float, float | None]]:
    """(length, budget, ms, speed-up over full) of one weight format."""
    for length, row in table[name].items():
        if length != "label":
            full, *rest = row
            yield int(length), 0, full, None
            for budget, ms in zip(table["budgets"], rest, strict=True):
                yield int(length), budget, ms, full / ms

"""What is timed of the ablation: attention in place and over the copy, in one loop."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from questprof.bytecheck import times as bytes_times
from questprof.bytecheck.times import gather_times
from questprof.ceilings import CpuReader
from questprof.environment import capture
from questprof.grid import Block
from questprof.model import Point, Record, Shape
from questprof.sweep.block import Machine
from questprof.timing.cpu import CpuExecutor
from questprof.timing.stopping import fixed

SHAPE = Shape("tiny", 2, 2, 64, kv_dtype="fp32")
POINT = Point(SHAPE, 256, token_budget=64, device="cpu")


def test_each_cache_is_timed_once_whatever_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[Block] = []

    def run(block: Block, _: object) -> Iterator[Record]:
        blocks.append(block)
        return iter(())

    monkeypatch.setattr(bytes_times, "run_block", run)
    transposed = Point(SHAPE, 256, token_budget=64, device="cpu", summary_layout="transposed")
    other = Point(SHAPE, 256, token_budget=128, device="cpu")
    list(gather_times([POINT, transposed, other], None))  # type: ignore[arg-type]
    assert [block.points[0] for block in blocks] == [POINT, other]
    assert [[p.backend for p in block.points] for block in blocks] == [["questprof", "gather"]] * 2


def test_a_real_loop_times_both() -> None:
    environment = msgspec.structs.replace(capture("cpu"), last_level_cache_bytes=1 << 20)
    reader = CpuReader("none", lambda: None, 1 << 40)
    machine = Machine(environment, CpuExecutor(environment, reader, fixed(3)))
    records = list(gather_times([POINT], machine))
    assert [(r.kind, r.point.backend, r.status) for r in records] == [
        ("sweep", "questprof", "ok"),
        ("sweep", "gather", "ok"),
    ]
    assert all(len(r.times_us["attend"]) == 3 for r in records)
    assert len({r.timing["attend"].loop_id for r in records}) == 1

"""On a GPU: what a launch is made of, the counters against the ledger, and the proof of untouched pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from questprof import ledger
from questprof.counters import ncu, unmapped
from questprof.counters.launched import kernel_names
from questprof.counters.ncu_plan import NOT_COUNTED
from questprof.model import Point, Shape

SHAPE = Shape("test", 32, 32, 128)
SMALL_BYTES = 128 << 10
"""What code, parameters and tables may add to a launch."""


@pytest.mark.gpu
def test_a_launch_tells_its_kernels():
    from questprof_kernels import streaming

    buffer = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    sums = torch.empty(streaming.out_size(buffer), dtype=torch.int32, device="cuda")
    streaming.read(buffer, sums)
    (name,) = kernel_names(lambda: streaming.read(buffer, sums))
    assert "read_kernel" in name
    assert kernel_names(lambda: buffer.copy_(buffer.clone())) is not None
    other = buffer.clone()
    assert kernel_names(lambda: other.copy_(buffer)) == (NOT_COUNTED,)


@pytest.mark.gpu
def test_a_launch_that_waits_tells_nothing_and_breaks_nothing():
    buffer = torch.ones(8, device="cuda")
    assert kernel_names(lambda: buffer.sum().item()) is None
    assert float(buffer.sum()) == 8


@pytest.mark.counters
def test_the_counters_agree_with_the_ledger():
    if (refusal := ncu.why_not()) is not None:
        pytest.skip(str(refusal))
    points = [Point(SHAPE, 32768, token_budget=2048), Point(SHAPE, 32768, token_budget=4096)]
    for one in ncu.count(points, ncu=None, timeout_s=200):
        assert one.reason == ""
        point = next(p for p in points if p.point_id == one.point_id)
        entries = ledger.entries(point, 132, union_ratio=one.union_ratio, variant=one.variant)
        predicted = ledger.stage_bytes(entries)
        found = {count.stage: count for count in one.counts}
        for stage in ("dense", "score", "attend", "quest"):
            wanted = predicted[stage].read
            assert abs(found[stage].read - wanted) <= 0.01 * wanted + SMALL_BYTES * len(found[stage].kernels)
        for calibration in one.calibration:
            assert abs(calibration.counted_bytes / calibration.known_bytes - 1) < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["questprof", "triton"])
def test_attend_completes_without_the_unselected_pages(backend):
    proof = unmapped.prove(Point(SHAPE, 32768, token_budget=2048, backend=backend))
    assert (proof.completed, proof.reason) == (True, "")
    assert proof.unmapped_bytes >= proof.granule_bytes


@pytest.mark.gpu
def test_one_touched_page_ends_it(monkeypatch):
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(Path(__file__).parent)
    proof = unmapped.prove(Point(SHAPE, 32768, token_budget=2048), kernels="test_ncu_native:ReadsTheLastPage")
    assert not proof.completed
    assert "touched a page that no query head selected" in proof.reason


class ReadsTheLastPage:
    """A stage set: the project's attend, and one number of the last physical page beside it."""

    @staticmethod
    def attend(q, cache, page_ids, select_indptr, out, lse, scratch):
        from questprof import backends

        backends.load("questprof", "cuda").stages["attend"](
            q, cache, page_ids, select_indptr, out, lse, scratch
        )
        out += 0 * cache.pool.k[-1, 0, 0, 0]

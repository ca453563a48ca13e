"""On a GPU every stage is launched from a CUDA graph as well: what none can hold is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from questprof.kernelcheck.display import kernel_lines
from questprof.kernelcheck.findings import KernelFinding, Order, Setting
from questprof.kernelcheck.process import Patience, check_kernel

SETTINGS = (
    Setting(8, 2, 128, "fp16", "fp16", 16, "paired", take_tail=True),
    Setting(2, 2, 128, "bf16", "bf16", 16, "transposed", take_tail=False),
)


def check(source: str, monkeypatch: pytest.MonkeyPatch) -> KernelFinding:
    """In a child, as a capture that fails may leave its process unusable."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    return check_kernel("mine", Order(source, "cuda", SETTINGS), Patience(total_s=300.0))


@pytest.mark.gpu
def test_the_example_holds_in_a_graph_and_its_allocations_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check("questprof.backends.example:kernel", monkeypatch)
    assert found.passed, found
    assert len(found.stages) == 2
    assert all(stage.allocations > 0 for stage in found.stages)
    assert sum("which a graph keeps" in line for line in kernel_lines(found)) == 1


@pytest.mark.gpu
def test_a_stage_that_waits_for_the_device_is_told_that_no_graph_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = check("plain_stages:scoring", monkeypatch)
    assert [stage.status for stage in found.stages] == ["fail", "fail"]
    assert "a CUDA graph could not capture it" in found.stages[0].why
    assert "prepare" in found.stages[0].fix

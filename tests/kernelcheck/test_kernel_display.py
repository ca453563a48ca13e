"""The lines of a check: as many as there are stages, and one for what all of them allocate."""

from __future__ import annotations

from msgspec.structs import replace

from questprof.kernelcheck.display import kernel_lines
from questprof.kernelcheck.findings import KernelFinding, Setting, StageFinding
from questprof.kernelcheck.run import _passed
from questprof.kernelcheck.turns import Outcome

SETTING = Setting(4, 2, 64, "fp16", "fp16", 16, "paired", take_tail=True)
STAGE = StageFinding("score", "page 16", "pass")
FOUND = KernelFinding("mine", "mine.py:stages", "cuda", ())


def notes(*stages: StageFinding) -> list[str]:
    return [line for line in kernel_lines(replace(FOUND, stages=stages)) if "note" in line]


def test_one_line_tells_of_the_stage_that_allocates_most() -> None:
    """Four stages over two settings, of which three allocate."""
    stages = (
        replace(STAGE, allocations=2),
        replace(STAGE, stage="attend", allocations=7),
        STAGE,
        replace(STAGE, stage="attend", setting="page 32", status="approximate", allocations=5),
    )
    assert notes(*stages) == [
        "  note: attend allocates up to 7 blocks a launch, which a graph keeps: use prepare or scratch"
    ]
    assert "1 block a launch" in notes(replace(STAGE, allocations=1))[0]
    assert notes(STAGE) == notes() == []


def test_of_all_the_caches_of_a_stage_the_largest_number_counts() -> None:
    assert _passed("score", SETTING, [Outcome(allocations=n) for n in (3, 11, 0)]).allocations == 11

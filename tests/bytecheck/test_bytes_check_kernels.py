"""The judge over traces of real kernels: the project's hold at every corner, planted faults are named."""

from __future__ import annotations

import pytest
import triton
from msgspec.structs import replace

from profiles import CPU
from questprof.bytecheck.judge import judge, overall
from questprof.bytecheck.judgement import Judgement
from questprof.bytecheck.record import record_of
from questprof.counters.trace_point import PointTracer
from questprof.errors import Exit
from questprof.model import Point, Shape

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="traces the interpreter; beside a GPU kernels are compiled"
)

WORKERS = 2
MHA = Shape("mha", 2, 2, 64)
GQA = Shape("gqa", 4, 2, 64)
POINT = Point(MHA, 300, 16, 64)


def judged(point: Point, kernels: str = "", *, prefill: bool = False) -> Judgement:
    counted = PointTracer(kernels, WORKERS, prefill=prefill).count(point)
    return judge(record_of(point, counted, CPU, WORKERS, "triton", prefill=prefill))


@pytest.mark.parametrize(
    "point",
    [
        POINT,
        replace(POINT, page_size=12, token_budget=60),
        replace(POINT, page_size=32),
        replace(POINT, shape=replace(MHA, kv_dtype="fp32")),
        replace(POINT, shape=replace(MHA, kv_dtype="bf16", summary_dtype="fp32")),
        replace(POINT, summary_layout="transposed"),
        replace(POINT, shape=GQA),
        replace(POINT, shape=GQA, data="shared"),
        replace(POINT, shape=GQA, summary_layout="transposed"),
        replace(POINT, policy="quest-open"),
        replace(POINT, policy="quest-open", shape=GQA, data="needle"),
        replace(POINT, token_budget=304),
        replace(POINT, batch_size=3, seq_lens=(300, 0, 90)),
        replace(POINT, shape=GQA, batch_size=2, seq_lens=(300, 90), token_budgets=(64, 32)),
    ],
)
def test_the_projects_kernels_hold_to_the_byte(point):
    found = judged(point)
    assert found.holds, found.sentences
    assert overall([found]) is Exit.OK
    exact = [
        t.read for s in found.stages for t in s.terms if t.in_eq12 and t.read and point.policy == "quest"
    ]
    known = len({*zip(point.num_pages, point.num_selected, strict=True)}) == 1 or point.shape.group_size == 1
    if known and point.summary_layout == "paired":
        assert all(read.residual_bytes == 0 for read in exact)


def test_the_last_page_may_be_taken_from_the_table_or_from_beside_the_lengths():
    found = judged(POINT, "faults.last_page:stages")
    assert found.holds, found.sentences
    (appended,) = (stage for stage in found.stages if stage.stage == "append")
    (table,) = (term for term in appended.terms if term.tensor == "block_table")
    assert table.read


@pytest.mark.parametrize("layout", ["paired", "transposed"])
@pytest.mark.parametrize("page_size", [12, 16])
def test_the_append_of_a_whole_prompt_holds(layout, page_size):
    point = replace(POINT, page_size=page_size, token_budget=4 * page_size, summary_layout=layout)
    found = judged(point, prefill=True)
    assert found.holds, found.sentences
    assert "append_prefill" in [stage.stage for stage in found.stages]


@pytest.mark.parametrize("shape", [MHA, GQA])
def test_plain_kernels_of_a_user_hold(shape):
    found = judged(replace(POINT, shape=shape), "faults.right:stages")
    assert found.holds, found.sentences


@pytest.mark.parametrize(
    ("fault", "cause", "page_size", "stage"),
    [
        ("keys_only", "K without V", 16, "attend"),
        ("no_summary", "summary not read", 16, "score"),
        ("gather", "gather through a temporary", 16, "attend"),
        ("touches_one", "unselected page touched", 16, "attend"),
        ("wide_tile", "tile larger than page", 12, "attend"),
        ("duplicate_id", "duplicate ids", 16, "attend"),
    ],
)
def test_a_planted_fault_has_its_cause(fault, cause, page_size, stage):
    point = replace(POINT, page_size=page_size, token_budget=4 * page_size)
    found = judged(point, f"faults.{fault}:stages")
    assert overall([found]) is Exit.CHECK_FAILED
    assert found.causes[0] == cause
    (broken,) = [s for s in found.stages if s.stage == stage]
    assert (broken.holds, broken.cause) == (False, cause)
    assert any(cause in sentence for sentence in found.sentences)


@pytest.mark.parametrize("fault", ["keys_only", "no_summary", "gather", "touches_one", "wide_tile"])
def test_a_planted_fault_is_named_under_groups_too(fault):
    causes = {
        "keys_only": "K without V",
        "no_summary": "summary not read",
        "gather": "gather through a temporary",
        "touches_one": "unselected page touched",
        "wide_tile": "tile larger than page",
    }
    found = judged(replace(POINT, shape=GQA), f"faults.{fault}:stages")
    assert found.causes[0] == causes[fault]

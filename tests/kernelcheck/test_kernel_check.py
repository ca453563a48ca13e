"""Right stages pass; every planted fault is caught in its own stage, where it is, in the right words."""

from __future__ import annotations

from typing import Literal

import plain_stages
import pytest
from msgspec.structs import replace
from plain_stages import wrong

from questprof.backends import load
from questprof.kernelcheck.findings import Order, Place, Setting, StageFinding
from questprof.kernelcheck.run import check_stages
from questprof.kernelcheck.scene import scenes
from questprof.model import SummaryLayout

PAGE = 8
GROUPED = Setting(4, 2, 64, "fp32", "fp32", PAGE, "paired", take_tail=True)
LAST = 9
"""Logical page of the longest request's tail."""


def found(name: str, *settings: Setting) -> list[StageFinding]:
    order = Order(f"plain_stages:{name}", "cpu", settings or (GROUPED,))
    return [said for said in check_stages(order) if isinstance(said, StageFinding)]


def fault(name: str) -> StageFinding:
    """What checking the wrong set `name` says; it must fail in one stage."""
    (finding,) = found(f"fault_{list(wrong).index(name)}")
    assert finding.status == "fail"
    assert _has(wrong[name], finding.stage)
    assert finding.fix
    return finding


def _has(stages: object, stage: str) -> bool:
    return stage in stages if isinstance(stages, dict) else hasattr(stages, stage)


def test_right_stages_pass_with_their_accuracy() -> None:
    stages = found("right")
    assert [stage.stage for stage in stages] == ["append", "append_kv", "score", "select", "attend", "dense"]
    assert {stage.status for stage in stages} == {"pass"}
    for stage in stages:
        if stage.max_rel_err is not None:
            assert stage.tolerance is not None
            assert 0 < stage.max_rel_err <= stage.tolerance


@pytest.mark.parametrize(
    "setting",
    [
        Setting(2, 2, 64, "fp16", "fp16", 16, "transposed", take_tail=True),
        Setting(3, 1, 64, "bf16", "fp32", 1, "paired", take_tail=False),
    ],
)
def test_right_stages_pass_over_other_caches(setting: Setting) -> None:
    assert {stage.status for stage in found("right", setting)} == {"pass"}


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_the_projects_own_stages_pass(
    layout: SummaryLayout, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load("triton", device).stages
    stages = {name: own[name] for name in ("append", "append_kv", "select")}
    monkeypatch.setattr(plain_stages, "own", stages, raising=False)
    where: Literal["cuda", "cpu"] = "cuda" if device == "cuda" else "cpu"
    order = Order("plain_stages:own", where, (replace(GROUPED, summary_layout=layout),))
    said = [one for one in check_stages(order) if isinstance(one, StageFinding)]
    assert [(one.stage, one.status) for one in said] == [(name, "pass") for name in stages], said


def test_a_decode_passes_as_it_is_and_over_a_layout_of_its_own() -> None:
    assert [stage.status for stage in found("fused") + found("copied")] == ["pass", "pass"]


def test_stages_over_what_prepare_made_pass_and_one_that_raises_is_named() -> None:
    assert [stage.status for stage in found("prepared")] == ["pass", "pass"]
    (stage,) = found("unprepared")
    assert stage.why.startswith("stage prepare of plain_stages:unprepared: it raised AttributeError")


def test_a_decode_without_ids_is_approximate_and_says_how_far_off() -> None:
    (blind,) = found("blind")
    assert blind.status == "approximate"
    assert blind.max_rel_err is not None
    assert blind.max_rel_err > 0.1
    assert blind.tolerance is None


@pytest.mark.parametrize(
    ("name", "said", "head", "page"),
    [
        ("transposed heads", "out holds the result of request 0, head 2", 1, None),
        ("dropped tail page", "page 9 was left out", 0, LAST),
        ("no tail", "the tail page 9 was not selected", 0, LAST),
        ("NaN behind the last token", "NaN from beyond the last token", 0, LAST),
        ("one page scored high", "the score is", 1, 5),
        ("scores not written", "its score was not written", 0, 0),
        ("K for V", "K of slot", 0, 8),
        ("boxes as they were", "the box of KV head 0", 0, 8),
        ("ids that a decode did not read", "page 0 was left out", 2, 0),
        ("unscaled logits", "; all weigh as if logits were 8 times as large", 0, 0),
        ("a page twice", ": twice as much beside the others", 0, 2),
        ("a box that append_kv changed", "it changed the box of a page, which is append's", 0, 0),
        ("tokens of the launch before", "K of slot 1 is not what append was given", 0, 8),
        ("ids that count in dense_table", "page 0 was left out", 0, 0),
        ("tables mixed", "page 0 weighs 0.153 there, float64 says 0.138", 0, 0),
        ("pages of another cache", "not behind a launch over another with the same scratch", 0, None),
    ],
)
def test_a_fault_is_found_where_it_is(name: str, said: str, head: int, page: int | None) -> None:
    finding = fault(name)
    assert said in finding.why
    assert finding.place is not None
    assert (finding.place.request, finding.place.head) == (0, head)
    if page is not None:
        assert finding.place.page == page
    assert finding.case == "one request of 74 tokens"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ids one too high", "of 10 pages: [1, 3, 9, 10], not [0, 2, 8, 9]"),
        ("no ids", "no page was written: page_ids holds -1 alone, not [0, 2, 8, 9]"),
        ("one id left out", "page -1 was selected of 10 pages"),
        ("allocates absurdly", "it raised RuntimeError: "),
        ("allocates absurdly", "you tried to allocate 4611686018427387904 bytes"),
        ("allocates absurdly", "(plain_stages.py:"),
        ("absurd scratch", "it returned 1000000000000000: more scratch than the memory holds"),
        ("negative scratch", "it returned -3, a negative number"),
        ("unsorted ids", "the right pages in another order, [9, 8, 2, 0]"),
        ("duplicate ids", "page 8 was selected twice"),
        ("ids not written", "page_ids[0, 0] was not written"),
        ("NaN of an unselected page", "which was not selected, reached out"),
        ("result of the launch before", "it left the result of the launch before"),
        ("output not written", "out was not written"),
        ("outside its output", "it wrote outside out [1, 4, 64]: element 256 of 256"),
        ("into its input", "it wrote into its input q, at [0, 0, 0]"),
        ("base-2 lse", "that is its base-2 logarithm"),
        ("not normalised", "out is off by 0.01 of its norm"),
        ("raises", "it raised ZeroDivisionError: division by zero (plain_stages.py:"),
        ("steers the terminal", "it raised ValueError: boom ?[31mred? (plain_stages.py:"),
        ("leaves its process", "it raised SystemExit: 0 (plain_stages.py:"),
        ("another shape returned", "it returned float32 [3], and its output is float32 [1, 4, 64]"),
        ("a box of no request", ", 0, 0, 0], a box of no page of a request"),
        ("ids of the launch before", "it is right at the first launch over a cache, and not at the next"),
        ("the higher of equal pages", "score alike, and"),
        ("the higher of equal pages, fused", "score alike, and"),
        ("returns", "it returned float32 [4, 10], which nobody reads"),
        ("a decode's ids twice", "page_ids says [0, 2, 8, 8], of 10 pages"),
    ],
)
def test_a_fault_is_named(name: str, said: str) -> None:
    assert said in fault(name).why


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("unscaled logits", "head_dim ** -0.5"),
        ("a page twice", "Every page counts once"),
        ("dropped tail page", "Every page counts once"),
        ("ids that a decode did not read", "Every page counts once"),
        ("not normalised", "at the normalisation"),
        ("transposed heads", "Rows of out are [request, query head]"),
        ("pages of the first request", "block_table maps them"),
        ("pages of another cache", "layers of a model share it"),
    ],
)
def test_what_to_do_fits_the_fault(name: str, fix: str) -> None:
    assert fix in fault(name).fix


def test_a_fault_of_a_batch_is_found_in_the_request_that_shows_it() -> None:
    finding = fault("pages of the first request")
    assert finding.case == "a ragged batch"
    assert finding.place is not None
    assert finding.place.request == 1
    assert "pages of another KV head or request" in finding.why


def test_every_planted_fault_is_among_the_tests() -> None:
    tested = {"pages of the first request"} | {
        case[0]
        for test in (test_a_fault_is_found_where_it_is, test_a_fault_is_named)
        for case in test.pytestmark[0].args[1]
    }
    assert tested == set(wrong)


def test_places_are_told_in_words() -> None:
    assert Place(1, 3, 7).words == "request 1, head 3, page 7"
    assert Place(1, 3).words == "request 1, head 3"


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_the_two_tables_of_a_scene_differ(layout: SummaryLayout) -> None:
    """Wherever order is free: the last page is last in both, and of two pages the first is first."""
    for scene in scenes(Order("", "cpu", ()), replace(GROUPED, summary_layout=layout)):
        for request, pages in enumerate(scene.cache.num_pages):
            row = slice(scene.starts[request], scene.starts[request + 1])
            logical, walked = scene.cache.block_table[row].tolist(), scene.cache.dense_table[row].tolist()
            assert sorted(logical) == sorted(walked)
            assert (logical == walked) == (pages < 3)

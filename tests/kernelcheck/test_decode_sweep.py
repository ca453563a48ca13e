"""A fused decode of the user's in a sweep: timed as quest, checked over its ids, approximate without any."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from plain_stages import wrong

from profiles import CPU
from questprof.backends import user
from questprof.ceilings import CpuReader
from questprof.environment import capture
from questprof.errors import Exit, QuestprofError
from questprof.exports import flat_rows
from questprof.grid import Block
from questprof.model import Check, Header, Point, Profile, Record, Shape
from questprof.rows import describe_check
from questprof.scan import scan_rows
from questprof.sweep import block as sweep
from questprof.sweep.display import APPROXIMATE, problems
from questprof.timing.cpu import CpuExecutor
from questprof.timing.stopping import fixed

SHAPE = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
DENSE = Point(shape=SHAPE, seq_len=90, page_size=8, policy="dense", device="cpu")
QUEST = Point(shape=SHAPE, seq_len=90, page_size=8, token_budget=32, device="cpu", backend="mine")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "_registered", {})


def run(name: str) -> list[Record]:
    """Records of dense and of the set `name` of plain_stages as `mine`."""
    user.register(f"mine=plain_stages:{name}")
    executor = CpuExecutor(capture("cpu"), CpuReader("reader", lambda: None, 1 << 40), fixed(3))
    records = sweep.run_block(Block((DENSE, QUEST)), sweep.Machine(capture("cpu"), executor))
    return sorted(records, key=lambda record: record.point.policy)  # a wrong one comes before it is timed


def test_a_decode_is_quest_as_a_whole() -> None:
    dense, quest = run("fused")
    assert quest.status == "ok"
    assert sorted(quest.times_us) == ["append", "quest"]
    assert quest.timing["quest"].touched_bytes > 1 << 40
    assert {check.stage for check in quest.checks} == {"append", "decode.page_ids", "decode", "decode.lse"}
    assert {check.when for check in quest.checks} == {"before", "after"}
    assert quest.union_ratio is not None
    assert quest.variant == "plain_stages:fused"
    (row,) = scan_rows(Profile(Header(1, CPU, "questprof sweep", ""), (dense, quest)))
    assert (row.check, row.score_us) == ("ok", None)
    assert row.speed_up is not None
    assert "quest" in {line["stage"] for line in flat_rows(Profile(Header(1, CPU, "", ""), (quest,)))}


def test_a_layout_of_its_own_is_made_once_a_cache() -> None:
    _, quest = run("copied")
    assert quest.status == "ok"
    assert {check.stage for check in quest.checks} == {"append", "decode.page_ids", "decode"}


def test_stages_of_its_own_get_what_prepare_made_and_the_projects_the_cache() -> None:
    _, quest = run("prepared")
    assert quest.status == "ok"
    assert sorted(quest.times_us) == ["append", "attend", "quest", "score", "select"]


def test_a_prepare_that_raises_is_named() -> None:
    with pytest.raises(QuestprofError, match="stage prepare of plain_stages:unprepared: it raised Attr"):
        run("unprepared")


def test_a_decode_that_says_no_ids_is_timed_and_called_approximate() -> None:
    dense, quest = run("blind")
    assert quest.status == "ok"
    assert quest.union_ratio is None
    decode = [check for check in quest.checks if check.stage == "decode"]
    assert all(check.approximate and check.holds for check in decode)
    assert {check.max_rel_err for check in decode} != {0.0}
    (row,) = scan_rows(Profile(Header(1, CPU, "questprof sweep", ""), (dense, quest)))
    assert row.check == "approximate"
    assert row.check_ratio is not None
    assert row.check_ratio <= 1.0, "its error has no tolerance"
    assert "off dense attention in the worst row" in row.check_detail
    assert any(line.startswith(APPROXIMATE) for line in problems([quest]))


@pytest.mark.parametrize("number", [-1, -2])
def test_a_decode_whose_ids_are_not_its_own_is_refused_a_time(number: int) -> None:
    _, quest = run(f"fault_{len(wrong) + number}")
    assert quest.status == "wrong"
    assert not quest.times_us
    assert "decode" in quest.reason


def test_what_raises_ends_the_sweep_with_its_line() -> None:
    with pytest.raises(QuestprofError, match=r"it raised ZeroDivisionError.*plain_stages.py:"):
        run(f"fault_{list(wrong).index('raises')}")


def test_what_ends_the_process_ends_the_sweep_as_a_failed_check() -> None:
    with pytest.raises(QuestprofError, match=r"it raised SystemExit: 0 \(plain_stages.py:") as caught:
        run(f"fault_{list(wrong).index('leaves its process')}")
    assert caught.value.status == Exit.CHECK_FAILED


def test_an_approximation_holds_while_it_is_finite() -> None:
    off = Check("decode", "after", 0.9, 1e-6, approximate=True)
    assert off.holds
    assert not replace(off, approximate=False).holds
    assert not replace(off, max_rel_err=None).holds
    assert describe_check(off) == "decode is approximate: 0.9 off dense attention in the worst row"


@pytest.mark.parametrize("name", ["allocates absurdly", "absurd scratch"])
def test_a_kernel_that_wants_more_than_all_memory_fails_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import plain_stages

    monkeypatch.setattr(plain_stages, "greedy", wrong[name], raising=False)
    dense, quest = run("greedy")
    assert dense.status == "ok"
    assert dense.times_us["dense"]
    assert (quest.status, quest.times_us) == ("wrong", {})
    assert "plain_stages:greedy" in quest.reason

"""A grid that must fit a time: the range is spanned first, and estimates learn from what blocks took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import SHAPE
from questprof.errors import QuestprofError
from questprof.grid import Grid, plan_blocks
from questprof.sweep.pacing import (
    Late,
    Pacer,
    duration,
    num_ends,
    parse_duration,
    planned,
    priority,
    shortfall,
)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5H", 5400), (" 2m ", 120)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "0s", "-1m", "m", "1d", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(QuestprofError, match="--time"):
        parse_duration(text)


def test_both_ends_of_every_setting_come_first_then_the_middles() -> None:
    lengths = (1024, 2048, 4096, 8192, 16384)
    blocks = plan_blocks(Grid((SHAPE,), lengths, (16, 32), (1024,), (1,), "cpu"))
    found = [(blocks[i].points[0].page_size, blocks[i].points[0].seq_len // 1024) for i in priority(blocks)]
    assert found == [
        (16, 1), (32, 1), (16, 16), (32, 16), (16, 4), (32, 4), (16, 2), (32, 2), (16, 8), (32, 8),
    ]  # fmt: skip


def test_the_ends_are_two_of_every_setting_that_has_so_many() -> None:
    def ends(lengths: tuple[int, ...], page_sizes: tuple[int, ...]) -> int:
        return num_ends(plan_blocks(Grid((SHAPE,), lengths, page_sizes, (1024,), (1,), "cpu")))

    assert ends((1024, 2048, 4096), (16,)) == 2
    assert ends((1024, 2048, 4096), (16, 32)) == 4
    assert ends((1024,), (16, 32)) == 2


@given(st.lists(st.integers(1, 1 << 16), min_size=1, max_size=20, unique=True))
def test_every_block_has_its_turn_once(lengths: list[int]) -> None:
    blocks = plan_blocks(Grid((SHAPE,), tuple(sorted(lengths)), (16, 8), (1024,), (1, 2), "cpu"))
    assert sorted(priority(blocks)) == list(range(len(blocks)))


def test_a_pacer_learns_from_what_blocks_took() -> None:
    """Estimated 10 s each, 60 s in all; the first took 20: three of them fit, not six."""
    pacer = Pacer([10.0] * 6, budget=60.0, started=100.0)
    assert pacer.fits(0, 100.0)
    pacer.took(0, 20.0)
    assert pacer.fits(1, 120.0)
    pacer.took(1, 20.0)
    assert pacer.fits(2, 140.0)  # ends at 160, just in time
    assert not pacer.fits(3, 140.1)
    assert (pacer.needs(3), pacer.left(140.1)) == (20.0, pytest.approx(19.9))


def test_what_is_left_out_says_what_it_needs_and_which_time_would_do() -> None:
    """20 s went by, blocks of 25 and 70 s were left out: 1.1 x 115 s is 126.5 s, 1.1 x 45 s is 49.5 s."""
    late = [Late("length 2k", 25.0, 15.4), Late("length 4k", 70.0, -2.0)]
    assert shortfall(late, 20.0, measured_any=False) == [
        "left out for want of time: length 2k (about 25 s, 15 s were left)",
        "left out for want of time: length 4k (about 70 s, 0 s were left)",
        "--time 3m would do for all of it, --time 50s for one block",
    ]
    assert shortfall(late, 20.0, measured_any=True)[-1] == "--time 3m would do for all of it"
    assert shortfall([], 20.0, measured_any=True) == []


@given(st.floats(0.01, 1e6))
def test_the_time_that_is_offered_holds_what_it_is_offered_for(seconds: float) -> None:
    assert 1.1 * seconds <= parse_duration(duration(seconds)) <= 1.1 * seconds + 60


def test_a_plan_goes_on_past_what_does_not_fit() -> None:
    assert planned([5.0, 50.0, 4.0], [1, 0, 2], 10.0) == {0, 2}
    assert planned([5.0], [0], 1.0) == frozenset()

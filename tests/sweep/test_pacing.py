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
    Spent,
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


@pytest.mark.parametrize(
    ("text", "why"),
    [("0s", "it is 0")] + [(text, "with its unit") for text in ("", "5", "-1m", "m", "1d", "1e3s")],
)
def test_what_is_no_duration(text: str, why: str) -> None:
    with pytest.raises(QuestprofError, match="--time") as refused:
        parse_duration(text)
    assert why in refused.value.why


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
    """Estimated 10 s each, 62 s in all; the first took 20: three of them fit, not six."""
    pacer = Pacer([10.0] * 6, budget=62.0, started=100.0)
    assert pacer.fits(0, 100.0)
    pacer.took(0, 20.0)
    assert pacer.fits(1, 120.0)
    pacer.took(1, 20.0)
    assert pacer.fits(2, 140.0)  # ends at 160, or with a tenth more at 162, just in time
    assert not pacer.fits(3, 140.1)
    assert (pacer.needs(3), pacer.left(140.1)) == (20.0, pytest.approx(21.9))


def test_what_is_left_out_says_what_it_needs_and_which_time_would_do() -> None:
    """20 s went by, blocks of 25 and 70 s were left out: 1.1 x 115 s is 126.5 s, 1.1 x 45 s is 49.5 s.

    Each is said with a tenth more, 27.5 and 77 s, as that is what did not fit.
    """
    late = [Late("length 2k", 25.0, 15.4), Late("length 4k", 70.0, -2.0)]
    assert shortfall(late, Spent(20.0), measured_any=False) == [
        "left out for want of time: length 2k (up to about 28 s, 15 s were left)",
        "left out for want of time: length 4k (up to about 77 s, 0 s were left)",
        "--time 3m would do for all of it, --time 50s for one block",
    ]
    assert shortfall(late, Spent(20.0), measured_any=True)[-1] == "--time 3m would do for all of it"
    assert shortfall([], Spent(20.0), measured_any=True) == []


def test_a_sweep_that_has_half_of_the_time_offers_twice_as_much() -> None:
    """1.1 x 44 s is 48.4 s for the sweep, so 97 s for the command that gives it half."""
    said = shortfall([Late("length 2k", 24.0, 15.4)], Spent(20.0), measured_any=True, share=0.5)
    assert said[-1] == "--time 97s would do for all of it"


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=6), st.floats(1.0, 500.0), st.floats(0.5, 50.0))
def test_who_follows_the_advice_gets_every_block_in_time(
    blocks: list[float], asked: float, ceiling: float
) -> None:
    """A ceiling that a quarter of the time cuts short takes more where there is more time.

    A run with the time that the first one offered begins every block, and ends in time where each takes a
    tenth more than expected.
    """

    def ceiling_in(time_s: float) -> float:
        return min(ceiling, 0.25 * time_s)

    took = ceiling_in(asked)
    spent = Spent(took, took, 0.25) if took < ceiling else Spent(took)
    late = [Late("block", seconds, 0.0) for seconds in blocks]
    offered = parse_duration(shortfall(late, spent, measured_any=True)[-1].split()[1])
    pacer, now = Pacer(blocks, offered, started=0.0), ceiling_in(offered)
    for index, seconds in enumerate(blocks):
        assert pacer.fits(index, now)
        now += seconds
    assert ceiling_in(offered) + 1.1 * sum(blocks) <= offered


def test_no_block_begins_that_a_tenth_more_would_make_late() -> None:
    """30 s and 10 s, of 40: the second would end just in time, had nothing taken any longer."""
    pacer = Pacer([30.0, 10.0], budget=40.0, started=0.0)
    assert pacer.fits(0, 0.0)
    assert not pacer.fits(1, 30.0)
    assert planned([30.0, 10.0], [0, 1], 40.0) == {0}
    assert planned([30.0, 10.0], [0, 1], 44.0) == {0, 1}


@given(st.floats(0.01, 1e6))
def test_the_time_that_is_offered_holds_what_it_is_offered_for(seconds: float) -> None:
    assert 1.1 * seconds <= parse_duration(duration(seconds)) <= 1.1 * seconds + 60


def test_a_plan_goes_on_past_what_does_not_fit() -> None:
    assert planned([5.0, 50.0, 4.0], [1, 0, 2], 10.0) == {0, 2}
    assert planned([5.0], [0], 1.0) == frozenset()

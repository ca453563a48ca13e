"""crossover.py: crossings worked by hand, the sentences, and what must hold for any curve."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import GQA_SHAPE, dense, profile, quest, two_baselines
from questprof.crossover.crossing import Resampled, resampled
from questprof.crossover.sentences import (
    crossover,
    format_length,
    format_speed_up,
    overhead_text,
    resampled_text,
    sentence,
    verdicts,
)
from questprof.model import Check
from questprof.rows import ALL, Series
from questprof.scan import scan_rows, series


def series_of(speed_ups: dict[int, float], *, budget: int = 16, scale: float = 1.0, **more) -> Series:
    """One series whose dense takes 100 us x scale and Quest 100 x scale / speed-up (no ceiling: no alarm)."""
    records = []
    for length, speed_up in speed_ups.items():
        third = 100.0 * scale / speed_up / 3
        records += [
            dense(length, 100.0 * scale),
            quest(length, (third, third, third), budget=budget, **more),
        ]
    (found,) = series(scan_rows(profile(*records, ceilings=())))
    return found


def test_crossing_worked_by_hand():
    """Speed-up 0.5 at 8k and 2 at 32k: log 0.5 = -log 2, so the crossing is the geometric mean, 16k."""
    found = crossover(series_of({8192: 0.5, 32768: 2.0}))
    assert (found.kind, found.bracket, found.steady, found.until) == ("length", (8192, 32768), True, None)
    assert found.seq_len == pytest.approx(16384)
    assert found.lengths == (8192, 32768)
    assert found.longest_speed_up == pytest.approx(2.0)


def test_crossing_at_a_third():
    """0.5 at 1k, 4 at 8k: log2 runs from -1 to 2, zero at one third, 1k x 8 ** (1/3) = 2k."""
    assert crossover(series_of({1024: 0.5, 8192: 4.0})).seq_len == pytest.approx(2048)


def test_the_fastest_baseline_counts_at_each_length():
    """At 2k sdpa (10 us) beats questprof (12): 10 / 10.5, then 20 / 11 at 4k.

    Share = ln 1.05 / (ln 1.05 + ln (20 / 11)) = 0.04879 / 0.64663 = 0.07545; 2048 x 2 ** 0.07545 = 2158.
    """
    found = series(scan_rows(profile(*two_baselines())))
    assert crossover(found[0]).seq_len == pytest.approx(2158, abs=0.5)
    assert sentence(found[0]) == "Budget 1024: Quest is faster from 2.1k tokens; 7.3x at 32k."
    # 132 / (32 / 4 + 10) = 7.33; budget 4096: 132 / (32 / 4 + 22) = 4.4, and 2k, 4k are within the budget
    assert crossover(found[1]).lengths == (8192, 16384, 32768)
    assert sentence(found[1]) == (
        "Budget 4096: Quest is faster at every length measured above the budget (8k to 32k); 4.4x at 32k."
    )


def test_never_in_range():
    one = series_of({2048: 0.5, 4096: 0.71})
    assert (crossover(one).kind, crossover(one).seq_len) == ("never in range", None)
    assert sentence(one) == (
        "Budget 16: Quest is not faster at any length measured above the budget (2k to 4k); 0.71x at 4k."
    )


@pytest.mark.parametrize(("times", "said", "shown"), [(2.0, "faster", "2.0"), (0.5, "not faster", "0.50")])
def test_one_length_is_not_every_length(times, said, shown):
    assert sentence(series_of({8192: times})) == (
        f"Budget 16: Quest is {said} at the only length measured above the budget (8k); {shown}x at 8k."
    )


def test_as_fast_is_not_faster():
    assert crossover(series_of({2048: 1.0, 4096: 1.0})).kind == "never in range"
    found = crossover(series_of({2048: 1.0, 4096: 2.0}))
    assert (found.kind, found.seq_len) == ("length", pytest.approx(2048))


def test_trivial_when_the_budget_covers_every_length():
    one = series_of({2048: 1.3, 4096: 1.3}, budget=4096)
    assert crossover(one).kind == "trivial"
    assert sentence(one).startswith("Budget 4096: it covers every length measured, so Quest reads every page")


def test_points_within_the_budget_do_not_count_for_always():
    """At 2k the budget covers the length and Quest loses; above, it wins everywhere."""
    found = crossover(series_of({2048: 0.8, 4096: 1.5, 8192: 2.0}, budget=2048))
    assert (found.kind, found.lengths) == ("always", (4096, 8192))


def test_the_last_of_several_crossings_is_taken_and_said():
    """0.5, 2, 0.5, 2 at 1k, 4k, 16k, 64k: upward at 2k and at 32k."""
    one = series_of({1024: 0.5, 4096: 2.0, 16384: 0.5, 65536: 2.0})
    found = crossover(one)
    assert (found.kind, found.steady, found.bracket) == ("length", False, (16384, 65536))
    assert found.seq_len == pytest.approx(32768)
    assert sentence(one) == (
        "Budget 16: Quest is faster from 32k tokens (the last crossing of several: below it the two take "
        "turns); 2.0x at 64k."
    )


def test_faster_in_the_middle_only():
    """0.5, 2, 0.5 at 1k, 4k, 16k: up at 2k, down again at 8k."""
    one = series_of({1024: 0.5, 4096: 2.0, 16384: 0.5})
    found = crossover(one)
    assert (found.kind, found.seq_len, found.until) == (
        "only between",
        pytest.approx(2048),
        pytest.approx(8192),
    )
    assert found.steady
    assert sentence(one) == "Budget 16: Quest is faster only between 2k and 8k tokens; 0.50x at 16k."
    falling = series_of({1024: 2.0, 4096: 0.5})
    assert sentence(falling) == "Budget 16: Quest is faster only up to 2k tokens; 0.50x at 4k."


def test_points_without_valid_figures_are_left_out_and_named():
    records = [dense(length, 100.0) for length in (2048, 8192, 16384, 32768)]
    records += [
        quest(2048, (100.0, 50.0, 50.0)),
        quest(8192, (20.0, 20.0, 10.0)),
        quest(16384, (1.0, 1.0, 1.0), checks=(Check("attend", "after", 2.0, 1.0),)),
        quest(32768, None, status="oom", reason="too large"),
        quest(65536, (1.0, 1.0, 1.0)),
    ]
    (one,) = series(scan_rows(profile(*records, ceilings=())))
    assert crossover(one).seq_len == pytest.approx(4096)
    assert sentence(one) == (
        "Budget 1024: Quest is faster from 4k tokens; 2.0x at 8k. "
        "Left out: 16k wrong; 32k oom; 64k without a valid dense baseline."
    )


def test_no_valid_point_gives_no_verdict():
    records = [dense(length, 100.0, status="unstable") for length in (2048, 4096)]
    records += [quest(length, (1.0, 1.0, 1.0)) for length in (2048, 4096)]
    (one,) = series(scan_rows(profile(*records)))
    assert crossover(one).kind == "no valid point"
    assert sentence(one) == (
        "Budget 1024: no verdict, no length above the budget has a valid pair of figures "
        "(2k, 4k dense unstable)."
    )


def test_alarmed_figures_are_no_evidence():
    records = [dense(8192, 0.001), quest(8192, (1.0, 1.0, 1.0))]
    (one,) = series(scan_rows(profile(*records)))
    assert crossover(one).kind == "no valid point"
    assert "8k faster than memory can be" in sentence(one)


def gqa(independent: dict[int, float | None], shared: dict[int, float | None]) -> tuple[Series, ...]:
    records = [dense(length, 100.0, shape=GQA_SHAPE) for length in independent]
    for data, speed_ups in (("independent", independent), ("shared", shared)):
        for length, speed_up in speed_ups.items():
            us = (100 / speed_up / 2, 100 / speed_up / 4, 100 / speed_up / 4) if speed_up else None
            status = "ok" if us else "oom"
            records.append(quest(length, us, shape=GQA_SHAPE, data=data, union_ratio=2.0, status=status))
    return series(scan_rows(profile(*records, ceilings=())))


def test_gqa_is_a_range():
    """Independent 0.5 at 8k, 2 at 32k: 16k. Shared 0.5 at 2k, 2 at 8k: 4k."""
    found = gqa({2048: 0.25, 8192: 0.5, 32768: 2.0}, {2048: 0.5, 8192: 2.0, 32768: 4.0})
    assert verdicts(found) == (
        "Budget 1024: Quest is faster from 4k tokens if the query heads of a group pick the same pages, "
        "and faster from 16k tokens if they pick independently; real models lie between "
        "(4.0x and 2.0x at 32k).",
    )


def test_gqa_with_one_answer_for_both():
    found = gqa({2048: 0.25, 8192: 0.5}, {2048: 0.5, 8192: 0.8})
    assert verdicts(found) == (
        "Budget 1024: Quest is not faster at any length measured above the budget (2k to 8k), whether the "
        "query heads of a group pick the same pages (0.80x at 8k) or pick independently (0.50x at 8k); "
        "real models lie between.",
    )


def test_gqa_with_one_data_set_unmeasured():
    assert verdicts(gqa({8192: None}, {8192: 2.0})) == (
        "Budget 1024, group picking the same pages: Quest is faster at the only length measured above "
        "the budget (8k); 2.0x at 8k. Budget 1024, group picking independently: no verdict, no length above "
        "the budget has a valid pair of figures (8k oom).",
    )


def test_verdicts_come_in_order_one_a_series():
    said = verdicts(series(scan_rows(profile(*two_baselines()))))
    assert [text.split(":")[0] for text in said] == ["Budget 1024", "Budget 4096"]
    assert verdicts(()) == ()


def test_sentences_of_several_settings_say_which():
    rows = scan_rows(profile(*two_baselines(), *two_baselines(batch_size=8)))
    said = verdicts(series(rows))
    assert [text.split(": Quest")[0] for text in said] == [
        "batch 1: Budget 1024",
        "batch 1: Budget 4096",
        "batch 8: Budget 1024",
        "batch 8: Budget 4096",
    ]
    rows = scan_rows(profile(*two_baselines(), *two_baselines(GQA_SHAPE, policy="quest-open", page_size=32)))
    assert verdicts(series(rows))[-1].startswith("toy-gqa, page 32, policy quest-open: Budget 4096: Quest")


@pytest.mark.parametrize(
    ("length", "text"),
    [(700.4, "700"), (1024.0, "1k"), (5200.0, "5.1k"), (11264.0, "11k"), (10180.0, "9.9k"), (10230.0, "10k"),
     (131072.0, "128k"), (1048576.0, "1m"), (1310720.0, "1.2m")],
)  # fmt: skip
def test_lengths_in_words(length, text):
    assert format_length(length) == text


@pytest.mark.parametrize(
    ("speed_up", "text"), [(0.714, "0.71x"), (1.04, "1.04x"), (5.23, "5.2x"), (9.96, "10x"), (12.3, "12x")]
)
def test_speed_ups_in_words(speed_up, text):
    assert format_speed_up(speed_up) == text


curves = st.lists(st.floats(0.05, 20.0), min_size=1, max_size=8)


def on_a_grid(speed_ups: list[float]) -> dict[int, float]:
    return {1024 * 2**i: speed_up for i, speed_up in enumerate(speed_ups)}


@given(curves)
def test_a_crossing_lies_between_its_bracketing_lengths(speed_ups):
    found = crossover(series_of(on_a_grid(speed_ups)))
    if found.seq_len is None:
        assert found.kind != "length"
        return
    low, high = found.bracket
    assert low <= found.seq_len <= high
    curve = on_a_grid(speed_ups)
    assert curve[low] <= 1.0 + 1e-9
    assert curve[high] > 1.0 - 1e-9


@given(curves, st.floats(1e-3, 1e3))
def test_scaling_every_time_changes_nothing(speed_ups, scale):
    assume(all(abs(math.log(s)) > 1e-9 for s in speed_ups))
    one, other = (crossover(series_of(on_a_grid(speed_ups), scale=scale)) for scale in (1.0, scale))
    assert (one.kind, one.bracket, one.steady) == (other.kind, other.bracket, other.steady)
    assert (one.seq_len is None) is (other.seq_len is None)
    if one.seq_len is not None:
        assert one.seq_len == pytest.approx(other.seq_len, rel=1e-6)


@given(curves)
def test_every_curve_gets_one_honest_sentence(speed_ups):
    one = series_of(on_a_grid(speed_ups))
    found, said = crossover(one), sentence(one)
    assert (found.kind == "always") is all(row.speed_up > 1 for row in one.rows)
    assert (found.kind == "never in range") is all(row.speed_up <= 1 for row in one.rows)
    assert ("not faster" in said) is (found.kind == "never in range")
    assert "None" not in said
    assert "nan" not in said


@given(curves)
def test_reversing_who_is_faster_reverses_the_answer(speed_ups):
    assume(all(abs(math.log(s)) > 1e-9 for s in speed_ups))
    one = crossover(series_of(on_a_grid(speed_ups)))
    other = crossover(series_of(on_a_grid([1 / s for s in speed_ups])))
    assert (one.kind == "always") is (other.kind == "never in range")
    assert (one.kind == "length") is (other.kind == "only between")


def settings_of(*settings: dict[str, str]) -> tuple[str, ...]:
    records = [dense(length, 100.0) for length in (2048, 8192)]
    for point in settings:
        records += [
            dense(length, 100.0, **{k: v for k, v in point.items() if k != "backend"})
            for length in (2048, 8192)
        ]
        records += [quest(2048, (100.0, 50.0, 50.0), **point), quest(8192, (20.0, 20.0, 10.0), **point)]
    return verdicts(series(scan_rows(profile(*records, ceilings=()))))


def test_a_transposed_summary_is_named():
    assert settings_of({"summary_layout": "transposed"}, {}) == (
        "Budget 1024: Quest is faster from 4k tokens; 2.0x at 8k.",
        "Budget 1024, transposed summary: Quest is faster from 4k tokens; 2.0x at 8k.",
    )


def test_kernels_pages_and_keys_open_the_sentence_where_they_differ():
    said = settings_of({"backend": "triton"}, {"page_order": "scattered"}, {"data": "ramp"})
    openings = [sentence.partition(": Budget")[0] for sentence in said]
    assert sorted(openings) == [
        "kernels questprof, scattered pages, normal keys",
        "kernels questprof, shuffled pages, ramp keys",
        "kernels triton, shuffled pages, normal keys",
    ]
    assert len(settings_of({"data": "needle"})) == 1


def test_gqa_pairs_by_layout():
    records = [dense(length, 100.0, shape=GQA_SHAPE) for length in (2048, 8192)]
    for layout in ("paired", "transposed"):
        for data in ("independent", "shared"):
            point = {"shape": GQA_SHAPE, "data": data, "summary_layout": layout}
            records += [quest(2048, (100.0, 50.0, 50.0), **point), quest(8192, (20.0, 20.0, 10.0), **point)]
    said = verdicts(series(scan_rows(profile(*records, ceilings=()))))
    assert [sentence.partition(":")[0] for sentence in said] == [
        "Budget 1024", "Budget 1024, transposed summary",
    ]  # fmt: skip
    assert all("real models lie between" in sentence for sentence in said)


def noisy(curve: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]) -> Series:
    """One series with the given samples of dense and Quest at each length."""
    records = []
    for length, (dense_us, quest_us) in curve.items():
        records += [
            replace(dense(length, 1.0), times_us={"dense": dense_us}),
            replace(quest(length, (1.0, 1.0, 1.0), budget=16), times_us={"quest": quest_us}),
        ]
    (found,) = series(scan_rows(profile(*records, ceilings=())))
    return found


def test_resampling_worked_by_hand():
    """8k: dense always 50, Quest 100 in 2 of 3 samples, otherwise 200; 32k: dense 200, Quest 100.

    A resample of 3 has 100 as its median unless it draws 200 at least twice: chance 3 x (1/3)^2 x (2/3) +
    (1/3)^3 = 7/27 of the time. Speed-ups 1/2 and 2 cross at 16k; 1/4 and 2 at 8k x 4 ** (2/3) = 20642.5.
    """
    one = noisy({8192: ((50.0,) * 3, (100.0, 100.0, 200.0)), 32768: ((200.0,) * 3, (100.0,) * 3)})
    found = resampled(one)
    assert crossover(one).seq_len == pytest.approx(16384)
    assert (found.low, found.high) == (pytest.approx(16384), pytest.approx(8192 * 4 ** (2 / 3)))
    assert found.same_answer == 1.0
    assert (
        sentence(one)
        == "Budget 16: Quest is faster from 16k tokens (16k to 20k in 95% of resamples); 2.0x at 32k."
    )


def test_what_slows_both_sides_moves_no_crossover():
    """Quest takes 2 and 1/2 of dense in every round: drawn by rounds the ratio never changes."""
    rounds = (100.0, 140.0, 90.0, 300.0, 110.0)
    doubled, halved = tuple(2 * us for us in rounds), tuple(us / 2 for us in rounds)
    found = resampled(noisy({8192: (rounds, doubled), 32768: (rounds, halved)}))
    assert (found.low, found.high) == (pytest.approx(16384), pytest.approx(16384))


def test_an_interval_may_leave_the_range():
    """At 8k Quest takes 90 or 110 against 100: about half of the resamples are faster everywhere."""
    one = noisy({8192: ((100.0,) * 3, (90.0, 110.0, 110.0)), 32768: ((100.0,) * 3, (50.0,) * 3)})
    found = resampled(one)
    assert found.low is None
    assert 0.6 < found.same_answer < 0.9  # 1 - 7/27 = 0.74
    assert resampled_text(crossover(one), found) == f"below 8k to {format_length(found.high, 2)}"
    one = noisy({8192: ((100.0,) * 3, (200.0,) * 3), 32768: ((100.0,) * 3, (99.0, 99.0, 101.0))})
    found = resampled(one)
    assert (found.low, found.high) == (pytest.approx(crossover(one).seq_len), None)
    assert resampled_text(crossover(one), found).endswith("to beyond 32k")


def test_a_point_of_one_sample_is_left_out():
    """Drawn again it is the same: what it says claims a precision that nobody knows."""
    one = noisy({8192: ((50.0,), (100.0,)), 32768: ((200.0,) * 3, (100.0,) * 3)})
    assert crossover(one).lengths == (32768,)
    assert resampled(one) == Resampled(None, None, 1.0)
    assert "16k" not in sentence(one)
    assert "8k dense samples too few" in sentence(one)


def test_answers_without_a_length_have_a_share_alone():
    shaky = noisy({8192: ((100.0,) * 3, (90.0, 90.0, 110.0)), 32768: ((100.0,) * 3, (50.0,) * 3)})
    found = resampled(shaky)
    assert crossover(shaky).kind == "always"
    assert (found.low, found.high) == (None, None)
    assert 0.6 < found.same_answer < 0.9
    assert resampled(series_of({8192: 0.5, 32768: 0.5})) == Resampled(None, None, 1.0)
    assert resampled(series_of({2048: 1.3}, budget=4096)) is None


spreads = st.lists(
    st.tuples(
        st.lists(st.floats(50.0, 150.0), min_size=3, max_size=6),
        st.lists(st.floats(50.0, 150.0), min_size=3, max_size=6),
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(spreads, st.floats(0.01, 100.0))
def test_the_interval_holds_the_crossover_whatever_the_clock_s_unit(samples, scale):
    lengths = [1024 * 2**i for i in range(len(samples))]
    one = noisy({n: (tuple(d), tuple(q)) for n, (d, q) in zip(lengths, samples, strict=True)})
    found, interval = crossover(one), resampled(one)
    assert 0 <= interval.same_answer <= 1
    if found.kind == "length":
        assert (interval.low or 0.0) <= found.seq_len <= (interval.high or math.inf)
    scaled = noisy(
        {
            n: (tuple(scale * us for us in d), tuple(scale * us for us in q))
            for n, (d, q) in zip(lengths, samples, strict=True)
        }
    )
    assume(all(abs(row.speed_up - 1) > 1e-9 for row in one.rows))
    again = crossover(scaled)
    assert again.kind == found.kind
    assert (again.seq_len or 0) == pytest.approx(found.seq_len or 0, rel=1e-6)


def whole(*costs: tuple[int, float, float]) -> Series:
    """Points whose budget is their length: (length, dense us, Quest us)."""
    records = [
        record
        for length, dense_us, quest_us in costs
        for record in (
            dense(length, dense_us),
            quest(length, (quest_us / 2, quest_us / 4, quest_us / 4), budget=length),
        )
    ]
    (found,) = series(scan_rows(profile(*records, ceilings=())))
    return found


def test_budgets_of_the_length_itself_make_one_series_of_overhead():
    """2k: 20 - 15 = 5 us, 1.33x dense; 8k: 66 - 60 = 6 us, 1.10x."""
    one = whole((2048, 15.0, 20.0), (4096, 30.0, 36.0), (8192, 60.0, 66.0))
    assert (one.token_budget, one.budget_text) == (ALL, "all")
    assert crossover(one).kind == "trivial"
    assert [row.overhead_us for row in one.rows] == [pytest.approx(5), pytest.approx(6), pytest.approx(6)]
    assert overhead_text(one.rows) == "5.00 us (1.33x dense) at 2k, 6.00 us (1.10x dense) at 8k"
    assert sentence(one) == (
        "Budget all: it covers every length measured, so Quest reads every page and the summary too: nothing "
        "to gain, and its cost on top, 5.00 us (1.33x dense) at 2k, 6.00 us (1.10x dense) at 8k."
    )


def test_a_cost_below_zero_is_said_as_such():
    assert overhead_text(whole((2048, 20.0, 16.0), (4096, 30.0, 36.0)).rows).startswith(
        "-4.00 us (0.80x dense)"
    )


def test_no_overhead_above_the_budget_or_without_evidence():
    above = series_of({8192: 2.0})
    assert [row.overhead_us for row in above.rows] == [None]
    unstable = [dense(2048, 10.0), quest(2048, (5.0, 5.0, 5.0), budget=2048, status="unstable")]
    assert [row.overhead_us for row in scan_rows(profile(*unstable))] == [None]

"""breakdown.py, pairs.py, check.py and sentences.py: by hand, by invariants, by planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from amdahl_steps import DENSE, OTHERS, QUEST, dense, pair_profile, quest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from questprof.amdahl.breakdown import UNEXPLAINED, breakdown, quest_layers, typical
from questprof.amdahl.check import check
from questprof.amdahl.doubts import sampling_share
from questprof.amdahl.finding import amdahl
from questprof.amdahl.pairs import Pair, steps_of
from questprof.amdahl.sentences import causes, check_sentence, check_summary, clock_sentence, is_told, verdict
from questprof.amdahl.tables import checks, overlaps, residuals, speedups, what_if
from questprof.decode.records import PartTime
from questprof.model import Ceiling, Clocks, Record, StageTiming
from questprof.model import Check as KernelCheck
from questprof.store import read_profile
from questprof.sweep.merge import merge_profiles

ROOT = Path(__file__).parents[2]


def the_pair(*records: Record) -> Pair:
    (pair,) = steps_of(pair_profile(*records)).pairs
    return pair


def test_shares_of_both_steps() -> None:
    """600 of 1000 us are 60 %; 150 + 20 + 10 + 45 = 225 of 625 us are 36 %."""
    pair = the_pair()
    assert pair.dense.attention_share == pytest.approx(0.6)
    assert pair.quest.attention_share == pytest.approx(0.36)
    assert pair.speedup == pytest.approx(1.6)
    assert pair.dense.small_us == pytest.approx(2 + 10 + 8 + 5 + 5)
    # 350 MB over 80 + 40 + 200 + 30 = 350 us is 1e6 B a us: 1000 GB/s.
    assert pair.dense.projection_gb_s == pytest.approx(1000)


def test_the_prediction_leaves_dense_layers_alone() -> None:
    """f = 0.6 x 3 / 4 = 0.45, s = 450 / 75 = 6: 0.55 + 0.45 / 6 = 0.625, 1.6x, as measured: residual 0."""
    found = the_pair().check
    assert found is not None
    assert found.attention_share == pytest.approx(0.6)
    assert found.served_share == pytest.approx(0.45)
    assert found.attention_speedup == pytest.approx(6)
    assert found.time_ratio == pytest.approx(0.625)
    assert found.predicted_speedup == found.speedup == pytest.approx(1.6)
    assert found.most_speedup == pytest.approx(1 / 0.55)
    assert found.residual_us == pytest.approx(0, abs=1e-9)
    low, high = the_pair().interval
    assert 1.59 < low <= 1.6 <= high < 1.61


def test_a_residual_is_explained_part_by_part() -> None:
    """append 5 -> 15 (new work), ffn 200 -> 210, gaps 20 -> 32, dense layer 150 -> 153, 4 us less than that.

    The step: 625 + 10 + 10 + 12 + 3 - 4 = 656 us, 31 more than predicted.
    """
    parts = QUEST | {"append": 15.0, "ffn": 210.0, "gaps": 32.0, "dense": 153.0}
    found = the_pair(dense(), quest(parts, us=656.0, result={"overlap_us": 7.0})).check
    assert found is not None
    assert found.residual_us == pytest.approx(31)
    terms = {term.part: round(term.us, 6) for term in found.terms if abs(term.us) > 1e-6}
    assert terms == {"append": 10, "ffn": 10, "gaps": 12, "dense": 3, UNEXPLAINED: -4}
    assert dict(causes(found)) == pytest.approx(
        {"new work": 10, "dense layers": 3, "same part": 10, "gaps": 12, "unexplained": -4}
    )
    # s with append: 450 / (75 + 10).
    assert found.with_append == pytest.approx(450 / 85)
    text = check_sentence(found)
    assert "31 us more than predicted" in text
    assert "gaps +12 us" in text
    assert "not explained" not in text


def test_ten_percent_that_no_part_explains_is_said() -> None:
    """The Quest step takes 62.5 us more than its parts: 62.5 / 687.5 = 9.1 % of it."""
    pair = the_pair(dense(), quest(us=687.5))
    assert pair.check is not None
    assert pair.check.unexplained_us == pytest.approx(62.5)
    assert "9.1% of the step is not explained by any part" in check_sentence(pair.check)
    assert "9.1% too little, more than 3%" in pair.quest.alarm
    found = amdahl(pair_profile(dense(), quest(us=687.5)))
    assert found is not None
    assert len(found.alarms) == 1


def test_a_part_counted_twice_raises_the_alarm() -> None:
    """ffn 400 instead of 200 in a dense step of 1000 us: 1200 us of parts, 20 % too much."""
    pair = the_pair(dense(DENSE | {"ffn": 400.0}, us=1000.0), quest())
    assert "20.0% too much" in pair.dense.alarm
    assert pair.quest.alarm == ""
    found = amdahl(pair_profile())
    assert found is not None
    assert found.alarms == ()


def test_weights_faster_than_memory_raise_the_alarm() -> None:
    """350 MB over 350 us are 1000 GB/s, the ceiling; over 320 us 1094, which no memory gives."""
    fast = DENSE | {"ffn": 170.0, "gaps": 50.0}
    found = amdahl(pair_profile(dense(fast), quest()))
    assert found is not None
    assert "the projections read 1094 GB/s" in found.alarms[0]
    warm = {"step": StageTiming(1, 1, 1 << 10, "warm", "loop", "fixed")}
    found = amdahl(pair_profile(dense(fast, timing=warm), quest()))
    assert found is not None
    assert found.alarms == ()


@pytest.mark.parametrize(("us", "alarmed"), [(1000 * 1.029, False), (1000 / 0.969, True)])
def test_the_alarm_begins_at_three_percent(us: float, alarmed: bool) -> None:
    assert bool(the_pair(dense(us=us), quest()).dense.alarm) == alarmed


def test_gaps_come_from_the_traced_steps_where_they_are_no_part() -> None:
    """980 us of parts in a traced step of 1010 us leave gaps of 30; the unprofiled step has 10 us less."""
    parts = {name: us for name, us in DENSE.items() if name != "gaps"}
    one = breakdown(dense(parts, us=1000.0, result={"traced_us": (1010.0,)}))
    assert one is not None
    assert one.of("gaps") == pytest.approx(30)
    assert one.unexplained_us == pytest.approx(-10)
    recorded = breakdown(dense(result={"traced_us": (1010.0,)}))
    assert recorded is not None
    assert recorded.of("gaps") == 20


def test_parts_of_a_typical_run_add_up() -> None:
    """Noise of 10 us hits ffn in two runs of four and qkv in the other two: each run takes 40 us.

    Medians of the parts would be 15 + 15 or less by chance; the middle two runs have 30 + 10 and 10 + 30.
    """
    found = typical({"ffn": (30.0, 10.0, 30.0, 10.0), "qkv": (10.0, 30.0, 10.0, 30.0)})
    assert found == {"ffn": 20.0, "qkv": 20.0}
    one_far = typical(
        {"ffn": (10.0, 10.0, 10.0, 500.0), "qkv": (5.0, 5.0, 5.0, 5.0)}, (16.0, 16.0, 16.0, 506.0)
    )
    assert one_far == {"ffn": 10.0, "qkv": 5.0, "gaps": 1.0}
    assert typical({"ffn": (1.0, 2.0, 9.0), "qkv": (4.0, 5.0)}) == {"ffn": 2.0, "qkv": 4.5}


def test_the_fastest_dense_step_is_the_baseline() -> None:
    slow = dense(us=1300.0, setup={"dense_backend": "sdpa"})
    pair = the_pair(slow, dense(), quest(setup={"dense_backend": "sdpa"}))
    assert pair.dense.point.decode is not None
    assert pair.dense.point.decode.dense_backend == "questprof"
    assert pair.speedup == pytest.approx(1.6)


def test_other_requests_weights_or_wrong_steps_are_no_baseline() -> None:
    wrong = KernelCheck("step", "after", 2.0, 1.0)
    for other in (
        dense(point={"seq_len": 16384}),
        dense(point={"batch_size": 2}),
        dense(setup={"weight_format": "int4"}),
        dense(setup={"model": "another"}),
        dense(status="unstable"),
        dense(checks=(wrong,)),
    ):
        steps = steps_of(pair_profile(other, quest()))
        assert steps.pairs == ()
        assert len(steps.alone) == 1


def test_layers_served_by_quest() -> None:
    point = quest().point
    assert point.decode is not None
    assert quest_layers(point) == 3
    assert quest_layers(dense().point) == 0
    assert quest_layers(replace(point, decode=replace(point.decode, dense_layers=9))) == 0
    tabled = replace(point.decode, dense_layers=0, layer_budgets=(0, 512, 0, 1024))
    assert quest_layers(replace(point, decode=tabled)) == 2


def test_no_layer_served_leaves_the_ratio_at_one() -> None:
    """All four layers dense: nothing becomes faster, and 1020 us are 20 us more than predicted."""
    found = the_pair(dense(), quest(DENSE | {"ffn": 220.0}, setup={"dense_layers": 4})).check
    assert found is not None
    assert found.attention_speedup is None
    assert found.predicted_speedup == 1
    assert found.residual_us == pytest.approx(20)
    assert sum(term.us for term in found.terms) == pytest.approx(20)


def test_without_parts_there_is_no_check_but_a_speed_up() -> None:
    pair = the_pair(dense({}, us=1000.0), quest({}, us=500.0))
    assert pair.check is None
    assert pair.unchecked == "the parts were not timed"
    assert "2.00x end to end" in verdict(pair)


def test_verdicts_follow_the_interval() -> None:
    assert "Quest pays" in verdict(the_pair())
    assert "does not pay" in verdict(the_pair(dense(), quest(QUEST | {"ffn": 775.0})))
    assert "undecided, a token takes" in verdict(the_pair(dense(), quest(QUEST | {"ffn": 575.0})))


STARVED = Clocks(waited_share=0.4)
SPREAD = (100.0,) * 8 + (1000.0,) * 4 + (5000.0,) * 8


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((dense(clocks=STARVED), quest()), "the dense step had threads without a core for 40% of its time"),
        ((dense(), quest(clocks=STARVED)), "the Quest step had threads without a core for 40% of its time"),
        ((dense(times_us={"step": SPREAD}), quest()), "the dense step is not steady"),
        ((dense(), quest(us=1250.0)), "the Quest step misses its parts by 50.0%"),
        ((dense(us=600.0), quest()), "the dense step misses its parts by 66.7%"),
    ],
)
def test_doubts_leave_no_verdict(records: tuple[Record, Record], said: str) -> None:
    pair = the_pair(*records)
    assert said in "; ".join(pair.doubts)
    text = verdict(pair)
    assert ": undecided, because the " in text
    assert said in text
    assert "pay" not in text
    assert "x end to end" not in text
    found = amdahl(pair_profile(*records))
    assert found is not None
    assert found.inconclusive
    assert text in found.headlines[0][1]


def test_a_little_waiting_and_sound_parts_are_no_doubt() -> None:
    pair = the_pair(dense(clocks=Clocks(waited_share=0.05)), quest(us=625 * 1.02))
    assert pair.doubts == ()
    found = amdahl(pair_profile())
    assert found is not None
    assert not found.inconclusive


def test_what_sampling_explains_is_no_doubt() -> None:
    """Of 20 samples the middle 95 % of the median is from the 6th to the 15th: 1000 to 1200, half of it 100.

    Over the median, 1100, that is 9.1 %; parts of 1000 us are 9.1 % away: within 3 % and the 9.1 %.
    """
    wide = tuple([1000.0] * 10 + [1200.0] * 10)
    pair = the_pair(dense(times_us={"step": wide}), quest())
    assert sampling_share(pair.dense) == pytest.approx(100 / 1100)
    assert pair.dense.unexplained_us == pytest.approx(100)
    assert pair.doubts == ()


def test_parts_have_an_interval_of_their_own() -> None:
    """ffn 90 to 110 in runs of which the others take 910: half the interval of their sums is 10 us.

    Graphs that lack a part have other counts: 10 us of ffn and 3 by 4 of the others are hypot(10, 3, 4).
    """
    runs = {"ffn": tuple([90.0] * 10 + [110.0] * 10), "dense": (910.0,) * 20}
    parts = tuple(PartTime(name, "activity trace", us, launches=4) for name, us in runs.items())
    one = breakdown(dense(result={"parts": parts}))
    assert one is not None
    assert one.parts_half_width_us == pytest.approx(10)
    lists = (runs["ffn"], tuple([7.0] * 8 + [13.0] * 8), tuple([6.0] * 9 + [14.0] * 9))
    apart = tuple(
        PartTime(name, "graphs", us) for name, us in zip(("ffn", "qkv", "dense"), lists, strict=True)
    )
    one = breakdown(dense(result={"parts": apart}))
    assert one is not None
    assert one.parts_half_width_us == pytest.approx((10**2 + 3**2 + 4**2) ** 0.5)


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b"])
def test_the_kept_steps_of_a_gpu_give_verdicts(name: str) -> None:
    found = amdahl(read_profile(ROOT / f"profiles/h200/amdahl-{name}.jsonl"))
    assert found is not None
    assert len(found.pairs) == 32
    assert [pair.doubts for pair in found.pairs if pair.doubts] == []


def test_clocks_that_differ_are_named() -> None:
    pair = the_pair(dense(clocks=Clocks(sm_mhz=1980)), quest(clocks=Clocks(sm_mhz=1755)))
    assert "1980 MHz in the dense step and 1755 MHz" in clock_sentence(pair)
    assert (
        clock_sentence(the_pair(dense(clocks=Clocks(sm_mhz=1980)), quest(clocks=Clocks(sm_mhz=1975)))) == ""
    )


def test_the_step_that_was_held_down_is_named() -> None:
    """A reason of both is none of a difference."""
    held = Clocks(reasons=("hot", "software power cap"))
    text = clock_sentence(the_pair(dense(clocks=held), quest(clocks=Clocks(reasons=("hot",)))))
    assert text.endswith(": the dense step alone was held down by: software power cap.")
    text = clock_sentence(the_pair(dense(clocks=Clocks(reasons=("board",))), quest(clocks=held)))
    assert (
        "the dense step alone was held down by: board; the Quest step alone was held down by: hot, " in text
    )


def test_the_share_is_of_the_layers_that_quest_serves() -> None:
    """Three of four layers: 450 of 1000 us, though all attention is 600."""
    assert "attention of the 3 layers with Quest 6.00x, 45% of the dense step" in verdict(the_pair())
    one = the_pair(dense(), quest(setup={"dense_layers": 3}))
    assert "attention of the layer with Quest 2.00x, 15% of the dense step" in verdict(one)


def test_pairs_in_doubt_are_marked_in_every_table_that_compares() -> None:
    """At 16k the Quest step takes 1250 us with parts of 625; its residual is no evidence against eq. (13)."""
    point = {"point": {"seq_len": 16384}}
    found = amdahl(pair_profile(dense(), quest(), dense(**point), quest(us=1250.0, **point)))
    assert found is not None
    assert check_summary(found.pairs) == (
        "Eq. (13) predicts 1 of 1 measured Quest steps within 5%; furthest is toy, fp16 weights, 32k, budget "
        "2048, 1 dense layer, by +0.0%; 1 undecided pair left out."
    )
    assert not any(is_told(pair) for pair in found.pairs)
    for make in (speedups, checks, residuals, what_if):
        table = make(found)
        sound, doubted = table.rows
        assert "?" not in "".join(sound), table.title
        assert " ?" in "".join(doubted), table.title
        assert table.source.endswith("?: not for a verdict")
    assert all(cell.endswith(" ?") for cell in what_if(found).rows[1][1:])
    (doubted,) = (pair for pair in found.pairs if pair.doubts)
    assert check_summary((doubted,)) == ""
    clean = amdahl(pair_profile())
    assert clean is not None
    assert not any("?" in make(clean).source for make in (speedups, checks, residuals, what_if))


def test_an_answer_that_was_measured_is_marked_by_its_own_steps() -> None:
    """The step without dense layers is in doubt, the one asked about is not."""
    found = amdahl(pair_profile(dense(), quest(), quest(us=1250.0, setup={"dense_layers": 0})))
    assert found is not None
    table = what_if(found)
    column = table.heads.index("0 dense layers")
    assert table.rows[0][column] == "0.80x* ?"
    assert table.rows[0][column - 1].endswith("x")


def test_overlap_is_stated_from_the_trace() -> None:
    """3 of 4 score launches overlap, 12.5 us of 625."""
    traced = quest(result={"overlap_us": 12.5, "overlapped": {"score": 3}})
    found = amdahl(pair_profile(dense(), traced))
    assert found is not None
    table = overlaps(found)  # a row for the step that was traced
    assert table.rows == (
        (
            "toy, fp16 weights, 32k, budget 2048, 1 dense layer",
            "3 of 4",
            "0 of 4",
            "0 of 4",
            "3",
            "12.5",
            "2.0%",
        ),
    )
    unseen = amdahl(pair_profile())
    assert unseen is not None
    assert overlaps(unseen).rows == ()


def test_the_checks_in_one_sentence() -> None:
    """Exact at 32k; at 16k 62.5 of 687.5 us, all in one part, are more than predicted, 9.1 %."""
    point = {"point": {"seq_len": 16384}}
    records = (dense(), quest(), dense(**point), quest(QUEST | {"ffn": 262.5}, **point))
    pairs = steps_of(pair_profile(*records)).pairs
    assert [is_told(pair) for pair in pairs] == [False, True]
    assert check_summary(pairs).startswith(
        "Eq. (13) predicts 1 of 2 measured Quest steps within 5%; furthest is toy"
    )
    assert "+9.1%" in check_summary(pairs)
    assert check_summary(()) == ""


TIMES = st.floats(0.01, 1e4)


@given(
    before=st.fixed_dictionaries(dict.fromkeys(DENSE, TIMES)),
    after=st.fixed_dictionaries(dict.fromkeys(QUEST, TIMES)),
    spill=st.tuples(st.floats(-0.2, 0.5), st.floats(-0.2, 0.5)),
    overlap=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_terms_add_up_to_the_residual_and_the_lines_to_the_step(before, after, spill, overlap) -> None:
    sides = []
    for make, parts, more, share in zip((dense, quest), (before, after), spill, overlap, strict=True):
        us = sum(parts.values()) * (1 + more)
        one = breakdown(make(parts, us=us, result={"overlap_us": share * parts["gaps"]}))
        assert one is not None
        assert sum(share for _, _, share in one.lines()) == pytest.approx(1)
        assert sum(us for _, us, _ in one.lines()) == pytest.approx(one.us)
        sides.append(one)
    found = check(*sides)
    if found is None:  # dense attention is longer than its own step
        assert before["dense"] * 3 / 4 > sides[0].us
        return
    scale = sides[0].us + sides[1].us
    assert sum(term.us for term in found.terms) == pytest.approx(found.residual_us, abs=1e-9 * scale)
    assert sum(us for _, us in causes(found)) == pytest.approx(found.residual_us, abs=1e-9 * scale)
    assert found.predicted_us + found.residual_us == pytest.approx(sides[1].us)


@given(attend=st.floats(1e-6, 1e-3))
def test_an_endless_attention_speed_up_reaches_the_bound_of_the_served_layers(attend: float) -> None:
    parts = OTHERS | {"dense": 150.0, "attend": attend}
    found = check(*(breakdown(one) for one in (dense(), quest(parts))))
    assert found is not None
    assert found.predicted_speedup == pytest.approx(1 / (1 - 0.45), rel=1e-5)


def test_a_pair_and_its_ceiling_are_of_one_run() -> None:
    """Two models of one machine, each with a dense step: neither run's ceiling is the other's.

    And of two runs with Quest steps of one model, the one without a dense step has no pair.
    """
    ours = pair_profile(ceilings=(Ceiling("read", 1, (1000.0,)),))
    lone = pair_profile(quest(point={"token_budget": 512}), ceilings=(Ceiling("read", 1, (900.0,)),))
    for order in ([ours, lone], [lone, ours]):
        (merged,) = merge_profiles(order)
        steps = steps_of(merged)
        assert [pair.point.token_budget for pair in steps.pairs] == [ours.records[1].point.token_budget]
        assert [one.point.token_budget for one in steps.alone] == [512]
        assert [one.ceiling_gb_s for one in steps.all] == [1000.0, 1000.0, 900.0]


def test_a_step_of_a_cache_is_called_warm() -> None:
    warm = {"step": StageTiming(1, 1, 1 << 10, "warm", "loop", "fixed")}
    assert "its times are warm: of a cache, not of memory" in verdict(the_pair(dense(), quest(timing=warm)))
    assert "warm" not in verdict(the_pair())

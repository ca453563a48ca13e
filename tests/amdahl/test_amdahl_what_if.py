"""whatif.py and forecast.py: every modelled figure by hand, measured ones before them."""

from __future__ import annotations

import pytest
from amdahl_steps import DENSE, OTHERS, QUEST, dense, pair_profile, quest
from hypothesis import given
from hypothesis import strategies as st

from questprof.amdahl.forecast import forecasts, left_out, line
from questprof.amdahl.pairs import Pair, steps_of
from questprof.amdahl.whatif import (
    BY_BYTES,
    MEASURED,
    MODELLED,
    WhatIf,
    four_bit_ratio,
    what_ifs,
    with_dense_layers,
)
from questprof.model import Record


def pairs_of(*records: Record) -> tuple[Pair, ...]:
    return steps_of(pair_profile(*records)).pairs


def answers(*records: Record) -> dict[str, WhatIf]:
    """The answers for the first pair."""
    pairs = pairs_of(*(records or (dense(), quest())))
    return {answer.what: answer for answer in what_ifs(pairs[0], pairs)}


def test_attention_without_cost() -> None:
    """1000 / 400 = 2.5 in all layers, 1000 / (1000 - 450) in the three that Quest serves."""
    found = answers()
    assert found["attention free"].speedup == pytest.approx(2.5)
    served = found["served attention free"]
    assert served.speedup == pytest.approx(1000 / 550)
    assert served.source == MODELLED


def test_a_faster_select() -> None:
    """625 us of which select 10: 620 at twice the speed, 615 for nothing."""
    found = answers()
    wanted = {"2x as fast": 620, "free": 615}
    assert {what: found[f"select {what}"].quest_us for what in wanted} == pytest.approx(wanted)


def test_a_fused_select_is_asked_nothing() -> None:
    fused = {name: us for name, us in QUEST.items() if name != "select"}
    assert not [what for what in answers(dense(), quest(fused)) if what.startswith("select")]


def test_dense_first_layers() -> None:
    """A dense layer takes 600 / 4 = 150, a Quest one (20 + 10 + 45) / 3 = 25: 125 us a layer."""
    found = answers()
    assert found["0 dense layers"].quest_us == pytest.approx(625 - 125)
    assert found["2 dense layers"].quest_us == pytest.approx(625 + 125)
    assert found["all layers dense"].quest_us == pytest.approx(625 + 3 * 125)
    assert found["all layers dense"].speedup == pytest.approx(1.0)


def test_the_summary_goes_with_its_layers() -> None:
    """append 5 -> 8: three layers of 1 us each, so that a Quest layer takes 26."""
    (pair,) = pairs_of(dense(), quest(QUEST | {"append": 8.0}))
    assert with_dense_layers(pair, 4) == pytest.approx(628 + 3 * (150 - 26))


def test_measured_dense_layers_go_before_modelled_ones() -> None:
    other = quest(us=510.0, setup={"dense_layers": 0})
    found = answers(dense(), quest(), other)
    assert found["0 dense layers"].quest_us == pytest.approx(510)
    assert found["0 dense layers"].source == MEASURED
    assert found["2 dense layers"].source == MODELLED


def test_four_bits_by_bytes() -> None:
    """Half a byte and 2 / 128 of a scale over 2 bytes: 0.2578. qkv, out_proj, ffn: 320 us, 237.5 saved."""
    assert four_bit_ratio("fp16") == pytest.approx(0.2578125)
    found = answers()["4-bit weights"]
    saved = 320 * (1 - 0.2578125)
    assert (found.dense_us, found.quest_us) == (pytest.approx(1000 - saved), pytest.approx(625 - saved))
    assert found.speedup == pytest.approx((1000 - saved) / (625 - saved))
    assert found.source == BY_BYTES


def test_four_bits_measured() -> None:
    int4 = {"setup": {"weight_format": "int4"}}
    found = answers(dense(), quest(), dense(us=800.0, **int4), quest(us=400.0, **int4))["4-bit weights"]
    assert (found.speedup, found.source) == (pytest.approx(2.0), MEASURED)
    other = quest(us=400.0, setup={"weight_format": "int4"}, point={"token_budget": 4096})
    assert answers(dense(), quest(), dense(us=800.0, **int4), other)["4-bit weights"].source == BY_BYTES


def test_a_budget_table_stands_beside_the_uniform_budget() -> None:
    table = {"dense_layers": 0, "layer_budgets": (0, 512, 1024, 3072)}
    found = answers(dense(), quest(), quest(us=600.0, setup=table, point={"token_budget": 3072}))
    (what,) = (what for what in found if what.startswith("budgets by layer"))
    assert what == "budgets by layer, 1536 on average in 3 layers"
    assert found[what].speedup == pytest.approx(1000 / 600)


def test_without_parts_nothing_is_modelled() -> None:
    pairs = pairs_of(dense({}, us=1000.0), quest({}, us=500.0))
    assert what_ifs(pairs[0], pairs) == ()


@given(count=st.integers(0, 4), chain=st.floats(1, 140))
def test_more_dense_layers_never_help_where_quest_layers_are_faster(count: int, chain: float) -> None:
    (pair,) = pairs_of(dense(), quest(OTHERS | {"dense": 150.0, "score": 1.0, "attend": 3 * chain}))
    assert with_dense_layers(pair, count) <= with_dense_layers(pair, count + 1) + 1e-6


def at(seq_len: int) -> tuple[Record, Record]:
    """Dense 400 + 600 us a 32k, Quest 550 + 75 us a 32k."""
    share = seq_len / 32768
    point = {"seq_len": seq_len}
    return (
        dense(DENSE | {"dense": 600 * share}, point=point),
        quest(QUEST | {"dense": 150.0, "score": 75 * share - 0.0, "select": 0.0, "attend": 0.0}, point=point),
    )


def test_a_length_that_was_not_run() -> None:
    """At 64k: 400 + 1200 = 1600 dense and 550 + 150 = 700 Quest; exact lines leave no error."""
    pairs = pairs_of(*at(8192), *at(16384), *at(32768))
    (found,) = forecasts(pairs, [65536, 16384, 2048])
    assert found.seq_len == 65536
    assert found.dense_us == pytest.approx(1600)
    assert found.quest_us == pytest.approx(700)
    assert found.speedup == pytest.approx(1600 / 700)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.lengths == (8192, 16384, 32768)
    assert not found.inside
    assert "32k" not in found.setting


def test_one_length_makes_no_line() -> None:
    pairs = pairs_of(dense(), quest())
    assert forecasts(pairs, [65536]) == ()
    (said,) = left_out(pairs)
    assert said.startswith(
        "toy, fp16 weights, budget 2048, 1 dense layer: nothing is predicted; --predict needs"
    )
    assert "at least 2 measured lengths above the budget" in said
    assert said.endswith("this has 32k alone.")
    assert left_out(pairs_of(*at(8192), *at(16384))) == ()
    assert "no requests of one length" in left_out(())[0]


def test_a_pair_with_doubts_bends_no_line() -> None:
    """400 instead of 200 us of FFN in a step of 1000: the third length is out, and two remain."""
    doubted = dense(DENSE | {"ffn": 400.0}, us=1000.0)
    (found,) = forecasts(pairs_of(*at(8192), *at(16384), doubted, quest()), [65536])
    assert found.lengths == (8192, 16384)


def test_the_error_is_that_of_lengths_left_out() -> None:
    """A third length off the line by 10 % shows as an error of about that size or more."""
    odd = [*at(8192), *at(16384), *at(32768)]
    bent = dense(DENSE | {"dense": 700.0})
    found = forecasts(pairs_of(*odd[:4], bent, odd[5]), [65536])
    assert found[0].error is not None
    assert found[0].error > 0.08


def test_relative_least_squares() -> None:
    """Two points make the line itself; of three, errors weigh by their share of the time."""
    exact = line([1000, 3000], [30.0, 50.0])
    assert (exact.fixed_us, exact.us_a_token) == (pytest.approx(20), pytest.approx(0.01))

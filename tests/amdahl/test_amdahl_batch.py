"""batch.py, paying.py and paper.py: rates, attended tokens, crossings and the paper's table by hand."""

from __future__ import annotations

import pytest
from amdahl_steps import DENSE, QUEST, SHAPE, dense, pair_profile, quest, record
from msgspec.structs import replace

from questprof.amdahl.batch import attended_tokens, served
from questprof.amdahl.breakdown import breakdown
from questprof.amdahl.finding import amdahl
from questprof.amdahl.pairs import steps_of
from questprof.amdahl.paper import beside_paper
from questprof.amdahl.paying import paying, paying_sentences, paying_text
from questprof.amdahl.tables import paper
from questprof.model import Record, StageTiming


def test_a_batch_as_a_service() -> None:
    """4 requests, 2 ms a step: 2000 tokens a second; one of them is empty and gets none."""
    point = {"batch_size": 4, "seq_lens": (32768, 1024, 100, 0), "seq_len": 32768}
    step = breakdown(quest(us=1500.0, point=point))
    assert step is not None
    found = served(step)
    assert found.requests == 3
    assert found.tokens_s == pytest.approx(2000)
    assert found.ms_a_token == pytest.approx(1.5)
    assert found.cached_tokens == 32768 + 1024 + 100
    # One of four layers is dense; the others take 2048 of the longest, and all of the short ones.
    assert found.attended_tokens == pytest.approx((33892 + 3 * (2048 + 1024 + 100)) / 4)


def test_attended_tokens_of_tables_and_dense_steps() -> None:
    assert attended_tokens(dense().point) == 32768
    table = {"dense_layers": 0, "layer_budgets": (0, 512, 1030, 65536)}
    # 1030 tokens are 64 pages, 1024 tokens.
    assert attended_tokens(quest(setup=table).point) == (32768 + 512 + 1024 + 32768) / 4


def test_p95_needs_single_steps() -> None:
    single = breakdown(quest())
    assert single is not None
    assert served(single).p95_ms == pytest.approx(0.625 * 1.001)
    means = {"step": StageTiming(8, 1, 1 << 30, "cold", "loop", "fixed")}
    averaged = breakdown(quest(timing=means))
    assert averaged is not None
    assert served(averaged).p95_ms is None
    assert "mean of many steps" in served(averaged).no_p95


def scaled(parts: dict[str, float], us: float) -> dict[str, float]:
    """The parts in proportion, `us` together."""
    return {name: one * us / sum(parts.values()) for name, one in parts.items()}


def batched(batch: int, dense_us: float, quest_us: float) -> tuple[Record, Record]:
    point = {"batch_size": batch}
    return dense(scaled(DENSE, dense_us), point=point), quest(scaled(QUEST, quest_us), point=point)


def lengths(seq_len: int, dense_us: float, quest_us: float) -> tuple[Record, Record]:
    point = {"seq_len": seq_len}
    return dense(scaled(DENSE, dense_us), point=point), quest(scaled(QUEST, quest_us), point=point)


def texts(*records: Record) -> list[str]:
    return [paying_text(one) for one in paying(steps_of(pair_profile(*records)).pairs)]


def test_where_quest_stops_paying_by_batch() -> None:
    """1.25x at batch 4 and 1 / 1.25 at batch 16: log-log it is 1 at the geometric mean, batch 8."""
    (text,) = texts(*batched(4, 1000, 800), *batched(16, 1000, 1250))
    assert "stops paying at batch 8" in text
    assert "0.80x at batch 16" in text
    assert text.startswith("toy, fp16 weights, 32k, budget 2048")


def test_a_batch_is_whole() -> None:
    """Log-log 1x lies at 4 x sqrt(2) = 5.7 between batches 4 and 8: batch 6 is the first that pays."""
    (text,) = texts(*batched(4, 800, 1000), *batched(8, 1250, 1000))
    assert "pays from batch 6 on, and below it does not" in text


def test_from_which_length_it_pays() -> None:
    (text,) = texts(*lengths(4096, 800, 1000), *lengths(16384, 1250, 1000))
    assert "pays from 8k on" in text


def test_always_never_and_one_point() -> None:
    assert "never pays in range, 4k to 16k" in texts(*lengths(4096, 1, 2), *lengths(16384, 1, 2))[0]
    assert "at every length measured" in texts(*lengths(4096, 2, 1), *lengths(16384, 2, 1))[0]
    assert texts(*lengths(4096, 2, 1)) == []


def test_a_pair_with_doubts_is_no_point_of_the_curve() -> None:
    """At 64k Quest takes 4000 us with parts of 625: nothing follows from that, and 4k to 16k stay."""
    sound = (*lengths(4096, 2, 1), *lengths(16384, 2, 1))
    point = {"seq_len": 65536}
    odd = (dense(point=point), quest(us=4000.0, point=point))
    (text,) = texts(*sound, *odd)
    assert "Quest pays at every length measured, 4k to 16k; 2.00x at 16k" in text


def test_an_interval_that_holds_1_is_said() -> None:
    """At 4k both steps take 1000 us, give or take a thousandth: nothing shorter was measured or is told."""
    (text,) = texts(*lengths(4096, 1000, 1000), *lengths(16384, 2000, 1000))
    said = "undecided at 4k, where the 95 % interval holds 1; Quest pays at 16k; 2.00x at 16k."
    assert text.endswith(f": {said}")
    assert "undecided" not in texts(*lengths(4096, 900, 1000), *lengths(16384, 2000, 1000))[0]


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((1, 2, 3, 4), "undecided at 1k, where the 95 % interval holds 1; Quest pays from 2k on; 4.00x"),
        (
            (0.5, 0.5, 1, 2),
            "Quest does not pay from 1k to 2k; undecided at 4k, where the 95 % interval holds 1; pays at 8k; "
            "2.00x",
        ),
        ((2, 2, 1, 1), "Quest pays from 1k to 2k; undecided from 4k on, where the 95 % interval holds 1"),
        ((1, 1, 1, 1), "undecided from 1k on, where the 95 % interval holds 1; 1.00x"),
        ((1, 0.5, 2, 0.5), "holds 1; Quest does not pay at 2k; pays at 4k; does not pay at 8k; 0.50x"),
    ],
)
def test_around_an_undecided_length_only_what_was_measured_is_told(
    speedups: tuple[float, ...], said: str
) -> None:
    records = (one for n, s in enumerate(speedups) for one in lengths(1024 << n, 1000, 1000 / s))
    (text,) = texts(*records)
    assert said in text
    assert "below it" not in text


def test_below_the_last_of_several_crossings_nothing_is_told() -> None:
    """0.5x, 2x, 0.5x, 2x: below the last crossing Quest pays at 2k."""
    records = (one for n, s in enumerate((0.5, 2, 0.5, 2)) for one in lengths(1024 << n, 1000, 1000 / s))
    (text,) = texts(*records)
    assert "on (the speed-up crosses 1 more than once; this is the last time)" in text


def ragged(longest: int, batch: int, speedup: float) -> tuple[Record, Record]:
    """Requests from 1 / batch of the longest up to it."""
    seq_lens = tuple(longest * (batch - number) // batch for number in range(batch))
    point = {"seq_len": longest, "batch_size": batch, "seq_lens": seq_lens}
    return dense(point=point), quest(scaled(QUEST, 1000 / speedup), point=point)


def test_ragged_batches_have_a_sentence_of_their_own() -> None:
    """Equal requests pay in every batch; ragged ones of up to 32k do in batches 2 and 4, and not in 8."""
    equal = (*batched(2, 1000, 800), *batched(8, 1000, 500))
    uneven = (*ragged(32768, 2, 1.25), *ragged(32768, 4, 1.6), *ragged(32768, 8, 0.8))
    found = paying(steps_of(pair_profile(*equal, *uneven)).pairs)
    first, second = paying_sentences(found)
    assert first.endswith(
        "32k, budget 2048, 1 dense layer, equal requests: Quest pays at every batch measured, batch 2 to "
        "batch 8; 2.00x at batch 8."
    )
    assert second == (
        "toy, fp16 weights, ragged up to 32k, budget 2048, 1 dense layer: Quest pays from batch 2 to batch "
        "4; does not pay at batch 8; 0.80x at batch 8."
    )
    assert [one.requests for one in found] == ["equal", "ragged"]


def test_ragged_batches_by_length_and_lengths_of_no_pattern() -> None:
    """A batch of other lengths lies on no axis, though its longest request is as long."""
    point = {"seq_len": 16384, "batch_size": 4, "seq_lens": (16384, 1, 1, 1)}
    odd = (dense(point=point), quest(scaled(QUEST, 9000), point=point))
    (text,) = texts(*ragged(16384, 4, 1.25), *odd, *ragged(32768, 4, 2))
    assert "1 dense layer, batch 4, ragged requests: Quest pays at every length measured, 16k to 32k" in text


def test_one_request_is_not_called_equal() -> None:
    assert "requests" not in texts(*lengths(4096, 2, 1), *lengths(16384, 2, 1))[0]
    point = {"batch_size": 2}
    records = [
        one
        for size in (4096, 16384)
        for more in ({}, point)
        for one in (dense(point={"seq_len": size} | more), quest(point={"seq_len": size} | more))
    ]
    together = paying_sentences(paying(steps_of(pair_profile(*records)).pairs))
    assert "in 2 settings of equal requests: 1.60x to 1.60x." in together[0]


def test_the_papers_table_marks_what_is_in_doubt() -> None:
    llama = {"setup": {"model": "llama-2-7b", "dense_layers": 2}}
    found = amdahl(pair_profile(dense(**llama), quest(us=1250.0, **llama)))
    assert found is not None
    shown = {row[1:3]: row[-1] for row in paper(found).rows}
    assert shown["32k", "2048"] == "0.80x ?"
    assert "?: not for a verdict" in paper(found).source


def test_settings_with_one_answer_share_a_sentence() -> None:
    """Budgets 1024 and 2048 pay everywhere, 4096 crosses 1 at 8k."""
    records = [*lengths(4096, 800, 400), *lengths(16384, 1250, 500)]
    for budget, us in ((1024, (320, 250)), (4096, (1000, 1000))):
        for seq_len, quest_us in zip((4096, 16384), us, strict=True):
            point = {"seq_len": seq_len, "token_budget": budget}
            records.append(quest(scaled(QUEST, quest_us), point=point))
    together, alone = paying_sentences(paying(steps_of(pair_profile(*records)).pairs))
    assert together == "Quest pays at every length measured, 4k to 16k, in 2 settings: 2.00x to 5.00x."
    assert "budget 4096" in alone
    assert "from 8k on" in alone


def test_the_papers_table_beside_ours() -> None:
    """Full at 32k with fp16: 36.8 ms, 21.2 with 2048 tokens (1.74x); ours 1 ms and 0.625 ms."""
    llama = {"setup": {"model": "llama-2-7b"}}
    two = {"setup": {"model": "llama-2-7b", "dense_layers": 2}}
    steps = steps_of(
        pair_profile(
            dense(**llama), dense(us=1200.0, setup=llama["setup"] | {"dense_backend": "triton"}), quest(**two)
        )
    )
    table = beside_paper(steps.dense, steps.pairs)
    assert table is not None
    assert len(table.cells) == 15  # of fp16 alone: 3 lengths, full and 4 budgets
    cells = {(cell.seq_len, cell.token_budget): cell for cell in table.cells}
    full, budget = cells[32768, 0], cells[32768, 2048]
    assert (full.paper_ms, full.ms) == (36.8, pytest.approx(1.0))
    assert budget.paper_ms == 21.2
    assert budget.paper_speedup == pytest.approx(1.736, abs=1e-3)
    assert (budget.ms, budget.speedup) == (pytest.approx(0.625), pytest.approx(1.6))
    assert cells[8192, 512].ms is None


def test_another_model_or_batch_is_not_beside_the_paper() -> None:
    other = steps_of(pair_profile())
    assert beside_paper(other.dense, other.pairs) is None
    big = {"setup": {"model": "llama-2-7b", "dense_layers": 2}, "point": {"batch_size": 2}}
    steps = steps_of(pair_profile(dense(**big), quest(**big)))
    assert beside_paper(steps.dense, steps.pairs) is None


def test_a_shape_of_another_depth_has_other_layers() -> None:
    deep = replace(SHAPE, num_layers=8)
    one = record("quest", DENSE, setup={"dense_layers": 2}, point={"shape": deep})
    assert attended_tokens(one.point) == (2 * 32768 + 6 * 2048) / 8

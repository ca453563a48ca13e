"""batch.py and paper.py: rates, attended tokens, crossings and the paper's table by hand."""

from __future__ import annotations

import pytest
from amdahl_steps import DENSE, QUEST, SHAPE, dense, pair_profile, quest, record
from msgspec.structs import replace

from questprof.amdahl.batch import attended_tokens, paying, paying_sentences, paying_text, served
from questprof.amdahl.breakdown import breakdown
from questprof.amdahl.pairs import steps_of
from questprof.amdahl.paper import beside_paper
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
    """At 4k both steps take 1000 us, give or take a thousandth."""
    (text,) = texts(*lengths(4096, 1000, 1000), *lengths(16384, 2000, 1000))
    assert "undecided at 4k, where the 95 % interval holds 1" in text
    assert "undecided" not in texts(*lengths(4096, 900, 1000), *lengths(16384, 2000, 1000))[0]


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

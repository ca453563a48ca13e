"""Times of a cache are no times of memory: every sentence and table that rests on some says so."""

from __future__ import annotations

from dataclasses import replace as with_field
from pathlib import Path
from statistics import median
from typing import Literal

import pytest
from msgspec.structs import replace

from profiles import GQA_SHAPE, dense, profile, quest, two_baselines
from questprof.crossover.crossing import crossover
from questprof.crossover.outlook import outlooks, plain
from questprof.crossover.sentences import verdicts, warm_text
from questprof.crossover.tables import overview, tables
from questprof.model import Profile, Record
from questprof.report.evidence import evidence
from questprof.report.verdict import answers
from questprof.scan import scan_rows, series
from questprof.store import read_profile

KEPT = Path(__file__).parents[2] / "profiles" / "h200"
State = Literal["cold", "warm", "hot"]


def labelled(record: Record, state: State = "warm") -> Record:
    """The record with every stage labelled as of a cache."""
    return replace(
        record, timing={name: replace(one, cache_state=state) for name, one in record.timing.items()}
    )


def warm_profile(*lengths: int) -> Profile:
    """Two budgets over 2k to 32k; the records at `lengths` are warm."""
    found = two_baselines()
    return profile(*(labelled(r) if r.point.seq_len in lengths else r for r in found))


def test_a_sentence_names_the_lengths_that_are_warm() -> None:
    few, many = verdicts(series(scan_rows(warm_profile(4096, 8192))))
    assert "Its times are warm at 4k, 8k: of a cache, not of memory." in few
    assert "Its times are warm at 8k: of a cache, not of memory." in many  # 4k is no more than its budget


def test_every_length_is_said_in_two_words() -> None:
    (sentence, _) = verdicts(series(scan_rows(warm_profile(2048, 4096, 8192, 16384, 32768))))
    assert "warm at every length" in sentence


def test_cold_times_are_not_called_warm() -> None:
    for sentence in verdicts(series(scan_rows(warm_profile()))):
        assert "warm" not in sentence
    assert crossover(series(scan_rows(warm_profile()))[0]).warm == ()


@pytest.mark.parametrize("side", ["dense", "quest"])
@pytest.mark.parametrize("state", ["warm", "hot"])
def test_one_warm_side_is_enough(side: str, state: State) -> None:
    found = [dense(8192, 40.0), quest(8192, (2.0, 1.0, 3.0))]
    index = 0 if side == "dense" else 1
    found[index] = labelled(found[index], state)
    (sentence,) = verdicts(series(scan_rows(profile(*found))))
    assert "warm at every length" in sentence


def test_heads_that_agree_and_heads_that_do_not_are_told_together() -> None:
    apart = [labelled(quest(8192, (2.0, 1.0, 3.0), shape=GQA_SHAPE))]
    agreeing = [quest(8192, (2.0, 1.0, 2.0), shape=GQA_SHAPE, data="shared")]
    found = profile(dense(8192, 40.0, shape=GQA_SHAPE), *apart, *agreeing)
    (sentence,) = verdicts(series(scan_rows(found)))
    assert "pick independently" in sentence
    assert "warm at every length" in sentence


def test_a_cost_where_nothing_is_saved_is_told_warm() -> None:
    found = profile(dense(1024, 4.0), labelled(quest(1024, (2.0, 1.0, 3.0))))
    (sentence,) = verdicts(series(scan_rows(found)))
    assert "its cost on top, 2.00 us (1.50x dense) at 1k; times of a cache, not of memory" in sentence
    (one,) = outlooks(scan_rows(found))
    assert [row[0] for table in tables(one) for row in table.rows if "warm" in row[0]] == ["1k (warm)"]


def test_the_tables_of_predict_say_it() -> None:
    (found,) = outlooks(scan_rows(warm_profile(4096, 8192)))
    crossings = tables(found)[0]
    assert [row[1].endswith(", warm") for row in crossings.rows] == [True, True]
    assert "Budget 1024: warm at 4k, 8k, times of a cache, not of memory." in crossings.note
    assert all(row[2].endswith(", warm") for row in overview([found]).rows)
    told = [list(answer["measured"]["warm"]) for answer in plain(found)["answers"]]
    assert told == [[4096, 8192], [8192]]


def test_the_first_screen_says_it() -> None:
    """kernels.jsonl with every label changed: the figures are what they were, and called warm."""
    kept = read_profile(KEPT / "kernels.jsonl")
    (cold,) = answers(evidence([kept])[0])
    (warm,) = answers(evidence([replace(kept, records=tuple(map(labelled, kept.records)))])[0])
    assert "warm" not in cold.sentence
    dense_us, quest_us = (
        [
            median(r.times_us[stage])
            for r in kept.records
            if (r.point.seq_len, r.point.summary_layout) == (32768, "transposed")
            and r.point.token_budget == budget
            and stage in r.times_us
        ]
        for stage, budget in (("dense", 0), ("quest", 2048))
    )
    told = cold.parts[1].value
    assert told == f"{min(dense_us) / min(quest_us):.2g}x at 32k"
    assert f"warm at every length (times of a cache, not of memory); {told} (warm) in" in warm.sentence
    assert warm.parts[1].value == f"{told} (warm)"


def test_words_of_several_curves() -> None:
    one = crossover(series(scan_rows(warm_profile(4096)))[0])
    other = with_field(one, warm=(), lengths=(65536,))
    assert warm_text(one, other) == "warm at 4k"
    assert warm_text(other) == ""

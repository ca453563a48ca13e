"""exports.py: flat rows that lose nothing, CSV, a DataFrame without pandas at hand, a trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import amdahl_steps
import pytest
from msgspec.structs import replace
from planted_recall import Planted

import questprof
from profiles import dense, profile, quest, two_baselines
from questprof.counts import ByteCount, StageCount
from questprof.errors import Exit, QuestprofError
from questprof.exports import find_row, flat_rows, to_csv, to_dataframe, to_trace, write_text
from questprof.model import Check, Energy, SingleSteps
from questprof.store import seal

KEPT = Path(__file__).parents[1] / "profiles" / "h200" / "kernels.jsonl"


def by_stage(*records) -> dict[str, dict]:
    return {row["stage"]: row for row in flat_rows(profile(*records))}


def test_one_row_per_record_and_stage_with_units_in_the_names():
    """8k tokens, page 16: 512 pages, budget 1024 picks 64. Samples 0.9, 1, 1.1 times the median."""
    rows = by_stage(quest(8192, (4.0, 2.0, 6.0), union_ratio=1.0))
    assert set(rows) == {"score", "select", "attend", "quest", "append", "append_kv"}
    score = rows["score"]
    assert (score["median_us"], score["p10_us"], score["num_samples"]) == (4.0, pytest.approx(3.68), 3)
    assert (score["p95_us"], score["no_tail"]) == (None, "3 samples: p95 needs 20 and p99 100")
    assert (score["seq_len"], score["num_pages"], score["num_selected"]) == (8192, 512, 64)
    assert (score["floor_bytes"], rows["select"]["floor_bytes"]) == (262144, None)
    assert (score["cache_state"], score["launches_per_sample"], score["loop_id"]) == ("cold", 1, "loop")
    assert (score["status"], score["shape"], score["summary_dtype"]) == ("ok", "toy", "fp16")


def test_single_steps_have_columns_of_their_own():
    """Steps of 11 to 110 us: their median is 60.5, p95 lies at rank 94.05 from 0."""
    steps = SingleSteps(tuple(float(i) for i in range(11, 111)), 7, 1 << 28, "cold", 0.032, 2.5)
    rows = by_stage(quest(8192, (4.0, 2.0, 6.0), single_steps={"quest": steps}))
    row = rows["quest"]
    assert (row["median_us"], row["p50_us"], row["p95_us"]) == (12.0, 60.5, pytest.approx(105.05))
    assert (row["single_num_samples"], row["single_cache_state"], row["single_num_buffers"]) == (
        100,
        "cold",
        7,
    )
    assert (row["single_resolution_us"], row["single_empty_us"]) == (0.032, 2.5)
    assert {rows["score"][name] for name in row if name.startswith("single_")} == {None}


def test_every_row_has_every_column():
    rows = flat_rows(profile(*two_baselines(), quest(65536, None, status="oom", reason="needs 3 GiB")))
    assert len({tuple(row) for row in rows}) == 1


def test_a_record_without_a_stage_keeps_a_row():
    (row,) = flat_rows(profile(quest(8192, None, status="oom", reason="no memory", floor_bytes={})))
    assert (row["stage"], row["status"], row["reason"], row["median_us"]) == ("", "oom", "no memory", None)


def test_a_wrong_point_shows_no_times():
    wrong = quest(8192, (4.0, 2.0, 6.0), checks=(Check("attend", "after", 0.5, 0.1),))
    assert {row["median_us"] for row in flat_rows(profile(wrong))} == {None}
    assert {row["status"] for row in flat_rows(profile(wrong))} == {"wrong"}


def test_dense_has_no_budget_and_picks_nothing():
    row = by_stage(dense(8192, 36.0))["dense"]
    assert (row["token_budget"], row["num_selected"], row["policy"]) == (0, None, "dense")


def test_bytes_stand_under_their_source_and_energy_in_joules():
    record = replace(
        quest(8192, (4.0, 2.0, 6.0)),
        kind="bytes",
        bytes={"score": {"formula": ByteCount(100, 10)}},
        counts=(
            StageCount("score", "ncu", 110, 12),
            StageCount("score", "ncu", 50, 5, mode="pipelined"),
            StageCount("gather", "trace", 7, 8),
        ),
        energy={"score": Energy(2.5, 1.0, 1000)},
    )
    rows = by_stage(record)
    score = rows["score"]
    assert (score["formula_read_bytes"], score["ncu_read_bytes"], score["ncu_write_bytes"]) == (100, 110, 12)
    assert (score["trace_read_bytes"], rows["gather"]["trace_write_bytes"]) == (None, 8)
    assert (score["energy_joules"], score["energy_launches"]) == (2.5, 1000)


def test_csv_reads_back_with_empty_cells_for_what_is_missing():
    found = profile(*two_baselines())
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    flat = flat_rows(found)
    assert len(rows) == len(flat)
    assert [float(row["median_us"]) for row in rows] == [row["median_us"] for row in flat]
    assert {row["p95_us"] for row in rows} == {""}
    assert to_csv(profile()).splitlines() == [",".join(flat[0])]


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x"])
def test_text_of_a_profile_is_no_formula(text):
    (row, *_) = csv.DictReader(io.StringIO(to_csv(profile(quest(8192, None, status="oom", reason=text)))))
    assert row["reason"] == f"'{text}"


def test_a_dataframe_is_the_flat_rows(monkeypatch):
    """pandas as far as it is used: DataFrame(rows, columns=names)."""
    fake = ModuleType("pandas")
    fake.DataFrame = lambda rows, columns: SimpleNamespace(rows=rows, columns=columns)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    found = profile(*two_baselines())
    frame = found.to_dataframe()
    assert frame.rows == flat_rows(found)
    assert frame.columns == list(frame.rows[0])
    assert profile().to_dataframe().columns == frame.columns


def test_without_pandas_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(QuestprofError, match="pip install pandas") as caught:
        to_dataframe(profile(*two_baselines()))
    assert caught.value.status == Exit.MACHINE


def test_load_is_typed_and_keeps_what_is_whole(tmp_path):
    found = questprof.load(str(KEPT))
    assert {record.status for record in found.records} == {"ok"}
    lines = [seal(found.header), *map(seal, found.records[:3])]
    path = tmp_path / "p.jsonl"
    path.write_bytes(lines[0] + lines[1].replace(b'"ok"', b'"oom"') + lines[2] + lines[3][:-5])
    with pytest.raises(QuestprofError, match="line 2 is corrupt"):
        questprof.load(path)
    kept = questprof.load(path, skip_corrupt=True)
    assert len(kept.records) == 1
    assert len(kept.warnings) == 2


def test_a_trace_shows_chain_stages_and_baselines_on_tracks_of_their_own():
    """Score 4, select 2, attend 6 us end to end; the chain 12; dense 40, 36; 262144 bytes in 4 us: 65.536."""
    records = [dense(8192, 40.0), dense(8192, 36.0, backend="sdpa"), quest(8192, (4.0, 2.0, 6.0))]
    document = json.loads(to_trace(find_row(profile(*records), None)))
    bars = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in document["traceEvents"]
             if event["name"] == "thread_name"}  # fmt: skip
    assert [(names[bar["tid"]], bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [
        ("quest, as one chain", "quest", 0.0, 12.0),
        ("quest, each stage timed alone", "score", 0.0, 4.0),
        ("quest, each stage timed alone", "select", 4.0, 2.0),
        ("quest, each stage timed alone", "attend", 6.0, 6.0),
        ("dense, questprof", "dense", 0.0, 40.0),
        ("dense, sdpa", "dense", 0.0, 36.0),
        ("append of one token", "append", 0.0, 2.0),
    ]
    assert {bar["cat"] for bar in bars} == {bar["args"]["source"] for bar in bars} == {"measured: clock"}
    score = bars[1]["args"]
    assert (score["GB/s of them"], score["p90_us"]) == (pytest.approx(65.536), pytest.approx(4.32))
    assert ["baseline" in bar["args"] for bar in bars] == [False] * 5 + [True, False]
    assert "positions are not measured" in document["otherData"]["positions"]


def test_points_are_named_by_id_or_size():
    found = profile(*two_baselines())
    row = find_row(found, "8k:1024")
    assert (row.seq_len, row.token_budget) == (8192, 1024)
    assert find_row(found, row.point.point_id[:10]) == row
    for wanted in (None, "1k:1024", "zzz"):
        with pytest.raises(QuestprofError) as caught:
            find_row(found, wanted)
        assert "2k:1k toy batch 1" in caught.value.fix
        assert max(map(len, caught.value.fix.splitlines())) < 110
    assert caught.value.why == "none of the 10 Quest points of the profile fit"
    assert caught.value.fix.count("\n") == 10  # a line a point
    many = profile(*(quest(1024 * n, (1.0, 1.0, 1.0)) for n in range(1, 21)))
    with pytest.raises(QuestprofError) as caught:
        find_row(many, "zzz")
    assert caught.value.fix.splitlines()[-1] == "    and 8 more, in the CSV"
    with pytest.raises(QuestprofError, match="not a whole number"):
        find_row(found, "8q:1024")
    with pytest.raises(QuestprofError, match="with Quest points"):
        find_row(profile(), None)


def test_a_point_without_times_makes_no_trace():
    with pytest.raises(QuestprofError, match="oom: needs 3 GiB"):
        to_trace(find_row(profile(quest(8192, None, status="oom", reason="needs 3 GiB")), None))


def test_nothing_is_overwritten_unasked(tmp_path):
    path = tmp_path / "new" / "a.csv"
    write_text(path, "one")
    with pytest.raises(QuestprofError, match="exists"):
        write_text(path, "two")
    write_text(path, "two", force=True)
    assert path.read_text() == "two"
    with pytest.raises(QuestprofError, match="cannot write"):
        write_text(path / "below", "three")


def test_a_recall_profile_has_a_row_a_head_with_its_figures():
    """2 layers x 3 heads: once a page size their slack, then a row for each of 2 budgets x 2 policies."""
    made = Planted(budgets=(64, 128), policies=("quest", "oracle")).profile()
    rows = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert len(rows) == 6 + 6 * 4
    (row,) = [
        row
        for row in rows
        if (row["layer"], row["head"], row["token_budget"], row["policy"]) == ("1", "2", "64", "quest")
    ]
    found = {name: float(row[name]) for name in ("mass_recall", "output_rel_err", "page_size", "pages_read")}
    assert found == {"mass_recall": 0.9, "output_rel_err": 0.1, "page_size": 16, "pages_read": 4}
    assert (row["trace"], row["union_ratio"], row["missed_slack"], row["kind"]) == (
        "trace-a",
        "1.5",
        "",
        "recall",
    )
    slack = [row for row in rows if row["policy"] == "dense"]
    assert {(row["slack"], row["slack_p99"], row["mass_recall"]) for row in slack} == {("8.0", "11.0", "")}
    assert "mass_recall" not in to_csv(profile(quest(8192, (4.0, 2.0, 6.0))))
    mixed = flat_rows(profile(quest(8192, (4.0, 2.0, 6.0)), *made.records))
    assert len({tuple(row) for row in mixed}) == 1
    assert (mixed[0]["stage"], mixed[0]["mass_recall"]) == ("score", None)


def test_the_parts_of_a_decode_step_follow_the_step():
    """A Quest step of 625 us: score takes 20 of them, in 4 launches."""
    rows = by_stage(amdahl_steps.record("quest", amdahl_steps.QUEST))
    assert (rows["step"]["median_us"], rows["score"]["median_us"]) == (pytest.approx(625), 20.0)
    assert (rows["score"]["launches_per_sample"], rows["score"]["num_samples"]) == (4, 1)
    assert set(rows) == {"step", *amdahl_steps.QUEST}

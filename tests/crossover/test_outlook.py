"""outlook.py, tables.py and the commands on them: measured and modelled apart, answers in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import questprof
from profiles import GQA_SHAPE, dense, profile, quest, two_baselines
from questprof.crossover.outlook import outlooks, plain
from questprof.crossover.predict import Prediction
from questprof.crossover.tables import (
    NOTES,
    costs,
    crossings,
    measured_text,
    modelled_text,
    overheads,
    overview,
    tables,
    traffic,
)
from questprof.crossover.traffic import Traffic, stored
from questprof.errors import Exit
from questprof.model import Ceiling
from questprof.scan import scan_rows
from questprof.store import seal

KEPT = Path(__file__).parents[2] / "profiles" / "h200" / "first-kernels.jsonl"
READ = Ceiling("read", 1 << 30, (4000.0,))
FLAT = Traffic("flat", "three steps", "here", (2048.0, 8192.0, 65536.0), (1.0, 1.0, 2.0))


def of(*records, weighed=(), **header):
    return outlooks(scan_rows(profile(*records, **header)), weighed)


def test_one_outlook_a_setting_one_answer_a_budget():
    found = of(*two_baselines(), *two_baselines(batch_size=8), *two_baselines(GQA_SHAPE))
    assert [(one.setting, [a.budget for a in one.answers]) for one in found] == [
        ("toy (fp16), batch 1, page 16", ["1024", "4096"]),
        ("toy (fp16), batch 8, page 16", ["1024", "4096"]),
        ("toy-gqa (fp16), batch 1, page 16, independent queries", ["1024", "4096"]),
    ]


def test_settings_name_what_is_not_usual():
    record = quest(8192, (1.0, 1.0, 1.0), policy="quest-open", backend="triton", variant="v1", data="ramp",
                   summary_layout="transposed", page_order="sequential")  # fmt: skip
    assert of(record)[0].setting == (
        "toy (fp16), batch 1, page 16, quest-open, triton (v1), transposed summary, sequential pages, "
        "ramp keys"
    )


def test_measured_and_modelled_stand_in_columns_of_their_own():
    """Dense is the faster of 4k + 4 and 5k, not quite a line; Quest is k / 4 + 10, or + 22."""
    (found,) = of(*two_baselines())
    table = crossings(found)
    assert [head.split("\n")[-1] for head in table.heads] == [
        "budget", "measured: clock", "measured: clock", "modelled: formula", "bracket it, modelled: formula",
    ]  # fmt: skip
    one, other = table.rows
    assert one[:3] == ("1024", "from 2.11k", "2.11k")
    assert one[3] == "from 2.04k"
    assert other[:3] == ("4096", "always (8k to 32k)", "the same in 100%")
    assert other[3] == "from 5.09k"  # (22 - 4) / 3.75 = 4.8 without the bend
    assert other[4] == "-"
    assert table.note.startswith("Error of the model at lengths left out of its fit, one at a time (5)")


def test_a_line_through_two_points_is_told_no_error():
    """Of two lengths each fit of fixed cost and rate meets both points; of three an error says something."""
    for lengths, told in (((8192, 16384), False), ((8192, 16384, 32768), True)):
        records = [dense(n, n / 200 + 5, calibration=(READ,)) for n in lengths]
        records += [quest(n, (n / 1000 + 2, n / 9000 + 3, 9.0), calibration=(READ,)) for n in lengths]
        rows = {row[0]: row for row in costs(of(*records)[0]).rows}
        assert "(fit)" in rows["dense"][2]
        assert rows["dense"][3] == ("0.0%" if told else "-")
        assert rows["dense"][4] == str(len(lengths))


def test_the_overview_has_every_page_size_batch_and_budget():
    found = of(*two_baselines(), *two_baselines(batch_size=8, page_size=32))
    table = overview(found)
    assert [row[:3] for row in table.rows] == [
        ("toy (fp16), batch 1, page 16", "1024", "from 2.11k"),
        ("toy (fp16), batch 1, page 16", "4096", "always (8k to 32k)"),
        ("toy (fp16), batch 8, page 32", "1024", "from 2.11k"),
        ("toy (fp16), batch 8, page 32", "4096", "always (8k to 32k)"),
    ]
    assert {len(row) for row in table.rows} == {len(table.heads)}


def test_costs_are_those_of_the_lines():
    """Score k / 4 + 2 us for k x 32 KiB: 32768 / 250 ns = 131 GB/s. Select 2; attend 2 + budget / 256."""
    (found,) = of(*two_baselines())
    rows = {row[0]: row for row in tables(found)[1].rows}
    assert rows["score"][1:] == ("2.00", "131.1 (fit)", "0.0%", "8")
    assert rows["select"][1] == "2.00"
    assert rows["attend"][1:3] == ("2.00", "131.1 (fit)")
    assert rows["chain"][1] in ("0.00", "-0.00")
    assert rows["quest"][1] == "6.00"


def test_overheads_are_of_budgets_that_cover_the_length():
    """Budget 4096 at 2k: 22.5 against 10 us; at 4k: 23 against 20."""
    (found,) = of(*two_baselines())
    assert [row[:5] for row in overheads(found).rows] == [
        ("2k", "10.0", "22.5", "12.5", "2.2x"),
        ("4k", "20.0", "23.0", "3.00", "1.15x"),
    ]
    assert overheads(found).rows[0][5] == "1.062x"


def test_traffic_shows_what_is_measured_and_what_is_not():
    """Budget 1024: 10 / 10.5 at 2k, 36 / 12 at 8k, half of the steps above: 46 / 22.5 = 2.04, 46 / 22."""
    (found,) = of(*two_baselines(), weighed=(FLAT,))
    row = traffic(found).rows[0]
    assert row[:8] == ("flat", "1024", "50% (0%, 50%)", "50%", "50%", "78%", "2.0x", "2.1x")
    assert row[8].endswith(" the faster")
    assert [row[1] for row in traffic(found).rows] == ["1024", "4096"]
    assert [table.title for table in tables(of(*two_baselines())[0])] == [
        table.title for table in tables(found)[:-1]
    ]


def test_no_model_is_said_with_its_reason():
    (found,) = of(*two_baselines(), ceilings=())
    assert crossings(found).note == "No model: no read ceiling was measured."
    assert {row[3] for row in crossings(found).rows} == {"-"}
    (two,) = of(*(r for n in (8192, 16384) for r in (dense(n, n / 400), quest(n, (2.0, 2.0, 2.0)))))
    assert "Fewer than three lengths" in crossings(two).note


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "-"),
        (Prediction("trivial"), "trivial: budget >= length"),
        (Prediction("always"), "from the budget on"),
        (Prediction("never"), "never"),
        (Prediction("length", 8192.0, "inside"), "from 8k"),
        (Prediction("length", 1500.0, "below"), "from 1.46k, below the range"),
        (Prediction("until", 1e6, "above"), "up to 977k, above the range"),
    ],
)
def test_modelled_answers_in_words(found, text):
    assert modelled_text(found) == text


IDENTIFIERS = {"setting", "budget", "stage", "length", "traffic"}
"""Heads of columns that name a row; every other column is of figures."""


def test_every_column_of_figures_names_its_source():
    """In its head, or in the note for all columns that name none."""
    rows = [*two_baselines(), dense(2048, 10.0), quest(2048, (4.0, 4.0, 4.0), budget=2048)]
    given = Traffic("t", "", "", (4096.0,), (1.0,))
    (found,) = outlooks(scan_rows(profile(*rows)), [given])
    every = tables(found)
    assert len(every) == 4
    for table in (*every, overview([found, found])):
        for head in set(table.heads) - IDENTIFIERS:
            said = "measured: clock" in head, "modelled: formula" in head
            by_note = "measured: clock" in table.note or "modelled: formula" in table.note
            assert sum(said) == 1 or (not any(said) and by_note), head


def test_rows_that_are_no_evidence_are_named():
    """A curve with a hole looks like one without, unless the table says what is missing."""
    records = [dense(n, 100.0) for n in (2048, 8192, 32768)]
    records += [quest(2048, (100.0, 50.0, 50.0)), quest(8192, (20.0, 20.0, 10.0))]
    (found,) = of(*records, quest(32768, None, status="oom"))
    table = crossings(found)
    assert table.rows[0][1] == "from 4k"
    assert table.note.endswith("Left out, budget 1024: 32k oom.")


def test_one_sample_is_no_answer():
    (found,) = of(
        *(replace(r, times_us={s: us[:1] for s, us in r.times_us.items()}) for r in two_baselines())
    )
    why = "no valid point (2k, 4k, 8k, 16k, 32k dense samples too few)"
    assert crossings(found).rows[0][1:3] == (why, "-")


def test_measured_answers_in_words():
    def answer(**speed_ups: float) -> str:
        records = []
        for name, speed_up in speed_ups.items():
            length = int(name[1:])
            records += [dense(length, 100.0), quest(length, (100 / speed_up, 1e-9, 1e-9), budget=16)]
        return measured_text(of(*records, ceilings=())[0].answers[0].measured)

    assert answer(n8192=0.5, n32768=2.0) == "from 16k"
    assert answer(n8192=2.0) == "always (8k)"
    assert answer(n8192=0.5, n16384=0.5) == "never (8k to 16k)"
    assert answer(n1024=0.5, n4096=2.0, n16384=0.5) == "only between 2k and 8k"
    assert answer(n1024=2.0, n4096=0.5) == "only up to 2k"
    twice = answer(n1024=0.5, n4096=2.0, n16384=0.5, n65536=2.0, n262144=0.5)
    assert twice == "only between 32k and 128k (last of several)"
    assert answer(n1024=0.5, n4096=2.0, n16384=0.5, n65536=2.0) == "from 32k (last of several)"
    whole = [dense(4096, 10.0), quest(4096, (4.0, 4.0, 4.0), budget=4096)]
    assert measured_text(of(*whole)[0].answers[0].measured) == "trivial: budget >= length"
    assert measured_text(of(quest(8192, None, status="oom"))[0].answers[0].measured) == (
        "no valid point (8k oom)"
    )


def test_a_document_repeats_no_rows():
    (found,) = of(*two_baselines(), quest(65536, None, status="oom"), weighed=(FLAT,))
    document = plain(found)
    assert document["answers"][0]["measured"]["left_out"] == [{"seq_len": 65536, "status": "oom"}]
    assert len(json.dumps(document)) < 10_000


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in which importing torch is an error."""
    blocked = "import sys; sys.modules['torch'] = None; from questprof.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", blocked, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_predict_prints_both_sources_without_torch(tmp_path):
    done = run("predict", str(KEPT), "--traffic", "mooncake-conversation-head", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert "from 3.14k" in done.stdout
    assert "modelled: formula" in done.stdout
    assert "Source: Mooncake" in done.stdout
    lines = " ".join(done.stdout.split())
    assert all(" ".join(note.split()) in lines for note in NOTES)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_predict_without_a_valid_point_is_inconclusive(tmp_path, form):
    found = profile(dense(8192, 40.0), quest(8192, None, status="oom", reason="needs 9 GiB"))
    (tmp_path / "oom.jsonl").write_bytes(b"".join(map(seal, (found.header, *found.records))))
    done = run("predict", "oom.jsonl", *form, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (Exit.INCONCLUSIVE, "")
    assert "no valid point" in done.stdout


def test_predict_as_json_with_a_file_and_all_that_is_stored(tmp_path):
    (tmp_path / "ours.csv").write_text("seq_len,weight\n8192,1\n65536,3\n")
    done = run("predict", str(KEPT), "--traffic", "ours.csv", "--traffic", "stored", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    (setting,) = document["settings"]
    answer = setting["answers"][0]
    assert [one["traffic"] for one in answer["traffic"]] == ["ours.csv", *stored()]
    assert answer["measured"]["seq_len"] == pytest.approx(3217.2, abs=0.1)
    assert answer["interval"]["low"] <= answer["measured"]["seq_len"] <= answer["interval"]["high"]
    assert answer["modelled"]["seq_len"] != answer["measured"]["seq_len"]
    assert len(setting["model"]["stages"]) == 3
    assert document["traffic"][0]["name"] == "ours.csv"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("predict", "nowhere.jsonl"), Exit.USAGE, "cannot read nowhere.jsonl"),
        (("predict", str(KEPT), "--traffic", "nowhere.csv"), Exit.USAGE, "synthetic-chat"),
        (("export", str(KEPT), "--format", "trace"), Exit.USAGE, "Name one by its id"),
        (("export", str(KEPT), "-o", str(KEPT), "--force"), Exit.USAGE, "it is the profile itself"),
    ],
)
def test_errors_say_how_to_fix_them(tmp_path, arguments, status, said):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stdout == ""


def test_export_writes_csv_and_trace_without_torch(tmp_path):
    done = run("export", str(KEPT), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    records = questprof.load(KEPT).records
    assert len(done.stdout.splitlines()) >= 1 + len(records)
    done = run("export", str(KEPT), "--format", "trace", "--point", "32k:1k", "-o", "t.json", cwd=tmp_path)
    assert done.stdout == "t.json\n"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    again = run("export", str(KEPT), "--format", "trace", "--point", "32k:1k", "-o", "t.json", cwd=tmp_path)
    assert (again.returncode, "exists" in again.stderr) == (Exit.USAGE, True)

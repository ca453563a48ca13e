"""The table of layer budgets: one file that recall writes and amdahl reads, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted_recall import Planted

from questprof.amdahl.plan import read_layer_budgets
from questprof.errors import QuestprofError
from questprof.recall.answers.files import check_suggest, read_timings, write_suggestion
from questprof.recall.answers.layer_table import LayerTable, parse_layer_table, write_layer_table

TEXT = '{"dense_layers": [0, 3], "budgets": {"1": 512, "2": 1024}}'


def test_a_table_by_layer(tmp_path: Path) -> None:
    table = parse_layer_table(TEXT, tmp_path)
    assert table.per_layer(4) == (0, 512, 1024, 0)


def test_what_recall_writes_amdahl_reads(tmp_path: Path) -> None:
    """Layer 0 needs 12 of 16 pages and stays dense, layer 1 needs 4: 64 tokens."""
    path = tmp_path / "layers.json"
    profile = Planted(needed=lambda layer, head, share, query: (12, 4)[layer]).profile()
    write_suggestion(profile, path, force=False)
    assert read_layer_budgets(path, 2) == (0, 64)
    document = json.loads(path.read_text())
    assert document["dense_layers"] == [0]
    assert document["budgets"] == {"1": 64}
    assert document["source"]["model"] == "made-up"
    assert document["source"]["longest_context"] == 256


@pytest.mark.parametrize(
    ("changed", "left_out", "says"),
    [
        ({}, [], ""),
        ({"layers": (1,)}, [0], "No budget for layer 0 of the model, which was not evaluated."),
        ({"synthetic": True}, [], "Made-up queries and keys: no statement about any real model."),
    ],
)
def test_a_table_says_what_it_is_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, object],
    left_out: list[int],
    says: str,
) -> None:
    """The planted model has two layers."""
    path = tmp_path / "new" / "layers.json"
    write_suggestion(replace(Planted(), **changed).profile(), path, force=False)
    source = json.loads(path.read_text())["source"]
    assert source.get("left_out", []) == left_out
    assert source.get("synthetic", False) == ("synthetic" in changed)
    assert source.get("note", "") == says
    assert capsys.readouterr().err == (f"warning: {path}: {says}\n" if says else "")


def test_plain_lists_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "layers.txt"
    path.write_text("dense\n512\n1k\n0\n")
    assert read_layer_budgets(path, 4) == (0, 512, 1024, 0)


@pytest.mark.parametrize(
    ("text", "num_layers", "why"),
    [
        (TEXT, 5, "it lacks layers 4"),
        (TEXT, 3, "it names layers 3, the model has layers 0-2"),
        ('{"dense_layers": [1], "budgets": {"0": 64, "1": 64}}', 2, "layers 1 are dense and have a budget"),
        ('{"dense_layers": [], "budgets": {"one": 64}}', 1, "it has layer 'one'"),
        ('{"dense_layers": [], "budgets": {"0": 0}}', 1, "it has a budget of 0"),
        ('{"dense_layers": [], "budgets": {"-1": 64}}', 1, "it has layer '-1'"),
        ('{"dense_layers": [], "budgets": {"0": 1.5}}', 1, "Expected `int`"),
        ('{"budgets": {"0": 64}}', 1, "missing required field `dense_layers`"),
        ('{"dense_layers": [], "budgets": {}, "more": 1}', 1, "unknown field `more`"),
        ('{"dense_layers": [0', 1, "truncated"),
        ('{"dense_layers": [0], "budgets": {}}', 1, "Quest would not run"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, num_layers: int, why: str) -> None:
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(QuestprofError) as found:
        read_layer_budgets(path, num_layers)
    assert why in found.value.why
    assert found.value.fix


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    table = LayerTable((0,), {"1": 64})
    write_layer_table(table, path)
    with pytest.raises(QuestprofError, match="exists"):
        write_layer_table(LayerTable((), {"0": 1}), path)
    with pytest.raises(QuestprofError, match="exists"):
        check_suggest(path, (), force=False)
    assert parse_layer_table(path.read_text(), path) == table
    write_layer_table(LayerTable((), {"0": 1}), path, force=True)
    assert parse_layer_table(path.read_text(), path).budgets == {"0": 1}


def test_a_budget_of_some_heads_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="all of its heads"):
        check_suggest(tmp_path / "layers.json", (0, 1), force=False)
    check_suggest(None, (0,), force=False)


def test_timings_need_timed_points(tmp_path: Path) -> None:
    from questprof.store import ProfileWriter

    path = tmp_path / "recall.jsonl"
    profile = Planted().profile()
    with ProfileWriter(path) as writer:
        writer.begin(profile.header)
        writer.extend(profile.records)
    with pytest.raises(QuestprofError, match="no timed points"):
        read_timings([path])

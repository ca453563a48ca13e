"""Rows through a profile and back: what is stored is what was found, small, and named once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recall_traces import Header, random_trace

from questprof.model import SCHEMA_VERSION, Environment, Profile
from questprof.model import Header as ProfileHeader
from questprof.recall import engine
from questprof.recall.ablations import Ablation, ablations
from questprof.recall.board import mean_where_there, rounded, rounded_all
from questprof.recall.cases import Asked, resolve
from questprof.recall.display import summary_lines, tables
from questprof.recall.layer import evaluate
from questprof.recall.policies import parse_policies
from questprof.recall.rows import (
    HeadRow,
    QueryRow,
    TraceInfo,
    page_rows,
    recall_records,
    recall_rows,
)
from questprof.recall.setting import Setting, narrowed
from questprof.recall.tables import whole
from questprof.store import ProfileWriter, read_profile

HEADER = Header(
    num_tokens=90,
    query_positions=(20, 50, 88, 89),
    num_layers=3,
    evidence=(("answer", 10, 12), ("later", 60, 60)),
)
ASKED = Asked((4, 8), (16, 32), parse_policies("quest,quest-open,oracle,fixed"), heads=(0, 5))
INFO = TraceInfo(
    "id",
    "trace.safetensors",
    False,
    "test",
    90,
    HEADER.query_positions,
    10,
    0.125,
    layers=(0, 1, 2),
    heads=(0, 5),
    path="float64",
    why_float64="no kernel was asked for",
)


@lru_cache
def profile() -> Profile:
    environment = Environment("cpu", "test", 2, 1, 1, "3.11", "test", {})
    header = ProfileHeader(SCHEMA_VERSION, environment, "questprof recall", "2026-01-01T00:00:00+00:00")
    path = engine.Path(None, "cpu")
    records = engine.run(random_trace(HEADER, 5), INFO, ASKED, path, environment.env_id)
    return Profile(header, tuple(records))


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "recall.jsonl"
    with ProfileWriter(path) as writer:
        writer.begin(profile().header)
        writer.extend(profile().records)
    read = read_profile(path)
    assert read.records == profile().records
    assert len({record.key for record in read.records}) == len(read.records) == 2 * (1 + 2 * 4)


def test_every_layer_head_page_size_budget_and_policy_has_one_row() -> None:
    rows = recall_rows(profile())
    keys = {(row.layer, row.head, row.page_size, row.token_budget, row.policy) for row in rows}
    assert len(keys) == len(rows) == 3 * 2 * 2 * 2 * 4
    assert {row.head for row in rows} == {0, 5}
    slacks = {(row.layer, row.head, row.page_size): row.slack for row in rows}
    assert all(row.slack == slacks[row.layer, row.head, row.page_size] for row in rows)


def test_rows_are_the_means_of_the_queries() -> None:
    setting = Setting(ASKED, resolve(ASKED, HEADER), HEADER, 8)
    arrays = narrowed(setting.scope, random_trace(HEADER, 5).layer(2))
    found = evaluate(setting, 2, arrays, None, False)
    record = next(
        record
        for record in recall_records(profile())
        if (record.point.page_size, record.point.token_budget, record.point.policy) == (8, 32, "quest")
    )
    assert record.rows is not None
    row = next(row for row in record.rows.heads if (row.layer, row.head) == (2, 5))
    index = [(case.token_budget, case.policy.name) for case in setting.cases].index((32, "quest"))
    of = {name: found.board[name][index, 5] for name in ("mass", "rel_err", "lost", "bound_ratio")}
    assert row.mass_recall == pytest.approx(of["mass"].mean(), rel=1e-4)
    assert row.mass_min == pytest.approx(of["mass"].min(), rel=1e-4)
    assert row.output_rel_err == pytest.approx(of["rel_err"].mean(), rel=1e-4)
    assert row.regret == pytest.approx(of["lost"].mean(), rel=1e-4)
    assert row.bound_ratio == pytest.approx(of["bound_ratio"].max(), rel=1e-4)
    queries = next(row for row in record.rows.queries if (row.layer, row.head) == (2, 5))
    assert queries.missed_mass == pytest.approx(1 - of["mass"], abs=6e-5)
    gaps = found.board["gap"][index, 5]
    assert [gap is None for gap in queries.gaps] == np.isnan(gaps).tolist()
    pages = next(row for row in page_rows(profile())["id", 8].pages if (row.layer, row.head) == (2, 5))
    assert pages.query_slacks == pytest.approx(found.board["slack"][5], abs=6e-4)
    assert pages.needed_quest[1] == tuple(found.board["needed_quest"][1, 5])
    spread = np.nanquantile(found.board["page_slack"][:, 5], 0.9)
    assert pages.slack_p90 == pytest.approx(spread, rel=1e-4)


def test_what_is_of_every_query_is_kept_for_quest_alone() -> None:
    kept = {record.point.policy for record in recall_records(profile()) if record.rows.queries}
    assert kept == {"quest"}
    layers = {len(record.rows.layers) for record in recall_records(profile())}
    assert layers == {0, 3}


def test_tails_layers_and_evidence_are_told() -> None:
    by_policy = {
        record.point.policy: record.rows
        for record in recall_records(profile())
        if (record.point.page_size, record.point.token_budget) in ((8, 16), (8, 0))
    }
    assert by_policy["quest"].tail_taken == (1.0,) * 4
    assert min(by_policy["quest-open"].tail_taken) < 1
    assert [row.jaccard is None for row in by_policy["fixed"].layers] == [True, False, False]
    assert all(row.jaccard == 1 for row in by_policy["fixed"].layers[1:])
    seen = [(row.name, row.query) for row in by_policy["quest"].evidence]
    assert seen == [("answer", 0), ("answer", 1), ("answer", 2), ("answer", 3), ("later", 2), ("later", 3)]
    assert all((row.first_layer == -1) == (row.hit_layers == 0) for row in by_policy["quest"].evidence)


def test_rows_are_stored_without_names() -> None:
    row = QueryRow(3, 4, (1, 0), (-1, 250))
    assert msgspec.json.encode(row) == b"[3,4,[1,0],[-1,250]]"
    assert (row.missed_mass, row.gaps) == ((1e-4, 0.0), (None, pytest.approx(0.025)))
    heads = recall_records(profile())[1].rows.heads
    assert all(len(msgspec.json.encode(head)) < 170 for head in heads)
    fewer = msgspec.json.decode(msgspec.json.encode(heads[0]))[: len(HeadRow.__struct_fields__) - 4]
    assert msgspec.json.decode(msgspec.json.encode(fewer), type=HeadRow).evidence_recall is None


def test_figures_have_five_digits_and_no_minus_zero() -> None:
    assert rounded(0.123456789) == 0.12346
    assert str(rounded(-0.0)) == "0.0"
    there = mean_where_there(np.array([[np.nan, 1.0, 2.0], [np.nan, np.nan, np.nan]]))
    assert rounded_all(there) == [1.5, None]
    assert whole(np.array([0.00014, 0.00016]), 1e-4) == (1, 2)


def test_ablations_take_one_thing_away() -> None:
    found = ablations(profile())
    assert [(row.page_size, row.token_budget) for row in found] == [(4, 16), (4, 32), (8, 16), (8, 32)]
    rows = [row for row in recall_rows(profile()) if (row.page_size, row.token_budget) == (8, 16)]
    mass = {
        name: np.mean([row.mass_recall for row in rows if row.policy == name])
        for name in ("quest", "quest-open", "oracle", "fixed")
    }
    assert found[2].query_aware == pytest.approx(mass["quest"] - mass["fixed"])
    assert found[2].summary == pytest.approx(mass["oracle"] - mass["quest-open"])
    assert found[2].tail_rule == pytest.approx(mass["quest"] - mass["quest-open"])
    missing = Ablation(8, 16, 0.5, None, None, 0.75, None)
    assert (missing.query_aware, missing.summary, missing.tail_rule) == (None, None, None)


def test_the_terminal_says_what_was_evaluated_and_checked() -> None:
    lines = summary_lines(profile())
    assert lines[0] == "test: 90 tokens, 4 queries at positions 20 to 89, 3 layers x 2 heads."
    assert lines[-1] == (
        "Bounds (4) and (7) hold for every page and query. Only float64 ran: no kernel was asked for."
    )
    sizes = [table.row_count for _, table, _ in tables(profile())]
    assert sizes == [4, 8, 2, 4]

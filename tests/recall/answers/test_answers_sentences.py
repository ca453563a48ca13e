"""The sentences: everything planted is named, a calm profile claims nothing, and made-up keys say so."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import msgspec
import pytest
from planted_recall import Planted, calm_mass
from rich.console import Console
from typer.testing import CliRunner

from profiles import dense, profile, quest
from questprof.cli import app
from questprof.recall.answers import sentences
from questprof.recall.answers.display import document, paired, print_answers
from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.finding import answers


def said(planted: Planted) -> list[str]:
    ((evaluation, found),) = paired(planted.profile())
    return [*sentences.verdict(evaluation, found), *sentences.findings(found)]


def troubled_mass(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
    if head == 0 and policy == "quest-open":
        return troubled_mass(layer, head, page_size, token_budget, "quest") - 0.09
    if (layer, head) == (1, 1) and token_budget == 64:
        return 0.95 if policy == "oracle" else 0.5
    return 0.99 if token_budget == 64 else calm_mass(layer, head, page_size, token_budget, policy)


TROUBLED = Planted(
    mass=troubled_mass,
    oracle=lambda layer, head, share, query: 14 if (layer, head) == (0, 2) else 1,
    needed=lambda layer, head, share, query: 14 if layer == 0 else 3,
    taken=lambda tokens, policy: 1.0 if policy == "quest" else tokens / 64,
    query_missed=lambda tokens, policy: 0.3 if policy == "quest-open" and tokens <= 4 else 0.05,
)


def test_a_calm_profile_claims_nothing() -> None:
    text = "\n".join(said(Planted()))
    assert "No head is dense" in text
    assert "No sparse head is failed by its boxes" in text
    assert "No head hides under a mean" in text
    assert "The tail page is not starved" in text
    assert "was not tested" in text
    for claim in ("starves", "heads are dense", "failed by the box itself", "It hides", "better choice"):
        assert claim not in text


def test_everything_planted_is_named() -> None:
    text = "\n".join(said(TROUBLED))
    assert "quest-open starves the tail page" in text
    assert "1 head is dense" in text
    assert "0.2 (88%)" in text
    assert "1 sparse head is failed by the box itself" in text
    assert "1.1 (50% instead of 95% at 64)" in text
    assert "1.1 50% (its layer 83%)" in text
    assert "6.0-fold" in text  # 0.3 / 0.05
    assert "layer 0 needs so much that dense attention is the better choice" in text


def test_the_verdict_in_figures() -> None:
    """Calm masses: 0.9 at 64 tokens of 256 (25 %), 0.95 at 128; 0.99 lies 0.8 of the way to 256: 223.

    Every layer needs 3 pages for 0.95: 1/16 + 3/16 = 25 % of the bytes, which is also the one budget's.
    """
    ((evaluation, found),) = paired(Planted().profile())
    first, second = sentences.verdict(evaluation, found)
    assert first == (
        "Pages of 16, quest: a budget of 64 tokens, 25% of the context, keeps 90.0% of the dense mass in "
        "the mean "
        "over layers and heads; 95% takes 128 and 99% takes about 223 (interpolated)."
    )
    assert "2 layers need 48 tokens each. That" in second
    assert "one budget for all would have to be 48" in second
    assert "That reads 25% of what dense attention reads at 256 tokens" in second
    assert "Quest can pay, with one budget too" in second


def test_a_wide_gap_between_budgets_is_said_and_not_filled() -> None:
    """Masses 0.9 at 64 tokens and 1 at 256: four times as many, so that 0.95 lies anywhere between."""
    ((evaluation, found),) = paired(replace(Planted(), budgets=(64, 256)).profile())
    first, _ = sentences.verdict(evaluation, found)
    assert first.endswith("95% and 99% take between 64 and 256.")


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ((32, 256), "a budget of 32 tokens, 12% of the context, keeps 80.0%"),
        ((256,), "a budget of 256 tokens, 100% of the context, keeps 100.0%"),
    ],
)
def test_the_headline_is_of_a_budget_that_selects(budgets: tuple[int, ...], says: str) -> None:
    """0.8 at 32 of 256 tokens does not pass; the whole context is no selection unless it stands alone."""
    ((evaluation, found),) = paired(replace(Planted(), budgets=budgets).profile())
    assert says in sentences.verdict(evaluation, found)[0]


def test_one_layer_is_no_range() -> None:
    ((evaluation, found),) = paired(replace(Planted(), layers=(1,)).profile())
    second = sentences.verdict(evaluation, found)[1]
    assert "layer 1 needs 48 tokens. That reads 25%" in second
    assert "one budget" not in second


def test_all_layers_dense_is_said() -> None:
    text = " ".join(said(replace(Planted(), needed=lambda *_: 16)))
    assert "at this length all layers are better left dense" in text


def test_made_up_keys_say_so_and_failed_records_are_left_out() -> None:
    assert said(replace(Planted(), synthetic=True))[0].startswith("Made-up queries and keys")
    wrong = replace(Planted(), status="wrong").profile()
    assert answers(wrong) == ()
    assert evaluations(wrong)[0].left_out == 12


def test_each_trace_has_its_own_answers() -> None:
    """One trace is troubled, one calm: neither speaks for the other, ablations included."""
    both = replace(TROUBLED, trace_id="b", source="b").profile(Planted())
    troubled, calm = answers(both)
    assert (len(troubled.dense), len(calm.dense)) == (1, 0)
    assert (troubled.tails[0].starved, calm.tails[0].starved) == (True, False)
    assert troubled.ablations[1].quest != calm.ablations[1].quest


def test_ablations_in_words() -> None:
    """At 128: quest 0.95, fixed 0.8: 15 points. The oracle 0.99 above quest-open 0.85: 14; the tail rule
    10."""
    own = {"quest": 0.95, "fixed": 0.8, "oracle": 0.99, "quest-open": 0.85}
    planted = replace(Planted(), policies=tuple(own), mass=lambda a, b, s, t, policy: own[policy])
    text = " ".join(said(planted))
    assert "Ablations at 128 tokens in pages of 16: without the query" in text
    assert "costs 15.0 points of mass" in text
    assert "would gain 14.0 points over quest-open" in text
    assert "leaving the tail page to compete costs 10.0 points" in text


@pytest.mark.parametrize(
    ("pre_rope", "says"),
    [(4.0, "looser by 100%"), (16.0, "tighter by 50%"), (8.1, "changes the boxes little")],
)
def test_rope_in_words(pre_rope: float, says: str) -> None:
    assert any(
        line.startswith("RoPE") and says in line for line in said(replace(Planted(), pre_rope=pre_rope))
    )


def test_the_terminal_and_the_document_say_the_same() -> None:
    times = profile(dense(256, 40.0), quest(256, (5.0, 5.0, 10.0), budget=128))
    console = Console(record=True, width=200, file=io.StringIO())
    print_answers(console, TROUBLED.profile(), [times])
    text = console.export_text()
    (one,) = json.loads(msgspec.json.encode(document(paired(TROUBLED.profile(), [times]))))
    for line in [*one["verdict"], *one["findings"]]:
        assert line.split(" ")[0] in text
    assert "Speed at equal mass" in text
    assert one["dense_layers"] == [0]
    assert one["suggested"] == {"1": 48}
    assert one["answers"]["dense"][0]["head"] == 2


def test_the_command_answers_and_suggests(tmp_path) -> None:
    """A made-up trace through the real command: sentences, the `answers` key and the table."""
    table = tmp_path / "layers.json"
    base = [
        "recall",
        "--synthetic",
        "gaussian",
        "--layers",
        "0",
        "--page-sizes",
        "16",
        "--budgets",
        "512",
        "--check",
        "none",
        "--device",
        "cpu",
    ]
    base += [
        "--policies",
        "quest,quest-open,oracle",
        "-o",
        str(tmp_path / "recall.jsonl"),
        "--suggest",
        str(table),
    ]
    found = CliRunner().invoke(app, [*base, "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    one = json.loads(found.stdout)["answers"][0]
    assert one["verdict"][0].startswith("Made-up queries and keys")
    assert any(
        line.startswith("The tail page is not starved") or "starves" in line for line in one["findings"]
    )
    assert json.loads(table.read_text())["source"]["policy"] == "quest"
    again = CliRunner().invoke(app, base)
    assert again.exit_code == 2 or "exists" in str(again.exception)

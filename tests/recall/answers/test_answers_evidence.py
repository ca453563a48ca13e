"""Where evidence is picked, worked by hand from planted rows."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as changed
from planted_recall import Planted

from questprof.model import Profile
from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.evidence import hits, neighbours
from questprof.recall.answers.finding import answers
from questprof.recall.answers.sentences import findings
from questprof.recall.rows import EvidenceRow, LayerRow

SEEN = (
    EvidenceRow("name", 13, 1, 1, 2),
    EvidenceRow("name", 14, 0, 2, 5),
    EvidenceRow("name", 15, -1, 0, 0),
    EvidenceRow("year", 15, -1, 0, 0),
)
LAYERS = (LayerRow(0, 0.25, None), LayerRow(1, 0.75, 0.5))


def _profile(evidence: tuple[EvidenceRow, ...] = SEEN, budget: int = 32) -> Profile:
    """Evidence at one budget of quest; the other cases have none."""
    made = Planted().profile()
    records = tuple(
        changed(record, rows=changed(record.rows, evidence=evidence, layers=LAYERS))
        if (record.point.policy, record.point.token_budget) == ("quest", budget)
        else record
        for record in made.records
    )
    return changed(made, records=records)


def test_hits_are_counted_over_the_queries_that_see_the_span() -> None:
    """name: layers (1 + 2 + 0) / 3, heads (2 + 5 + 0) / 3, the first layer the lower median of 1 and 0."""
    name, year = hits(evaluations(_profile())[0])
    assert (name.name, name.page_size, name.token_budget, name.policy) == ("name", 16, 32, "quest")
    assert (name.num_queries, name.num_missed, name.first_layer) == (3, 1, 0)
    assert (name.layers, name.heads) == (1, 7 / 3)
    assert (year.num_queries, year.num_missed, year.first_layer, year.layers) == (1, 1, None, 0)


def test_neighbours_are_means_over_layers_that_have_one() -> None:
    (one,) = neighbours(evaluations(_profile())[0])
    assert (one.token_budget, one.candidates, one.jaccard) == (32, 0.5, 0.5)
    alone = replace(
        evaluations(_profile())[0], cases={(16, 32, "quest"): changed(_rows(), layers=LAYERS[:1])}
    )
    assert neighbours(alone)[0].jaccard is None


def _rows():
    return next(record.rows for record in _profile().records if record.rows.evidence)


def test_evidence_in_words() -> None:
    text = "\n".join(findings(answers(_profile())[0]))
    assert (
        "Evidence 'name' in pages of 16, mean over 3 queries that see it, heads that pick all its pages: at "
        "32 tokens 2.3 in 1.0 layers, the first 0 (median), none at 1 query."
    ) in text
    assert "Evidence 'year' in pages of 16, mean over 1 query that sees it" in text
    assert "at 32 tokens none." in text
    assert "Neighbouring layers pick pages alike (Jaccard, any head, pages of 16): 0.50 at 32 tokens." in text
    assert "Evidence" not in "\n".join(findings(answers(Planted().profile())[0]))


def test_tail_pages_that_are_always_full_tell_nothing() -> None:
    """Every 16th position from 15 on: in pages of 16 each tail page is full."""
    made = Planted(positions=tuple(range(15, 256, 16)))
    text = "\n".join(findings(answers(made.profile())[0]))
    assert "Whether the tail page is starved in pages of 16 this trace does not tell" in text
    assert "is not starved" not in text

"""The gate: against a baseline only what exceeds the spread between runs, inside one run the samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decisions import findings
from msgspec.structs import replace as changed

from profiles import CPU, GPU, profile, two_baselines
from questprof.decide.decision import Decision, decide
from questprof.decide.gate import (
    Gate,
    against_baseline,
    gate_document,
    gate_markdown,
    inside_run,
    next_baseline,
    refusal,
    status,
)
from questprof.decide.sentences import sentence
from questprof.errors import Exit, QuestprofError
from questprof.model import Profile


def many(scale: float = 1.0, backend: str | None = None) -> Profile:
    """The two baselines with 40 samples each, within 1 % of `scale` times their medians."""
    records = []
    for one in two_baselines():
        times = {
            stage: tuple(sorted(samples)[1] * scale * (1 + 0.01 * ((n * 7) % 11 - 5) / 5) for n in range(40))
            for stage, samples in one.times_us.items()
        }
        records.append(changed(one, times_us=times))
    found = profile(*records)
    return changed(found, name=backend or "run.jsonl")


IDS = {record.point_id for record in many().records}


@pytest.mark.parametrize(
    ("scale", "wanted"), [(1.0, Exit.OK), (1.01, Exit.OK), (2.0, Exit.CHECK_FAILED), (0.5, Exit.OK)]
)
def test_a_trend_fails_beyond_the_spread_alone(scale: float, wanted: Exit) -> None:
    """Stated for a GPU: 3 % + 0.5 us. 1 % is less, twice the time is more."""
    gate = against_baseline([many()], many(scale), IDS, 0.02)
    assert gate.status == wanted, gate.text


def test_less_than_the_spread_never_fails() -> None:
    for scale in (1.005, 1.02, 1.028):
        assert against_baseline([many()], many(scale), IDS, 0.0).status != Exit.CHECK_FAILED


def test_points_that_were_not_planned_are_no_loss() -> None:
    """The run measured up to 8k only; with the others asked for it would be undecided."""
    new = many()
    short = changed(new, records=tuple(r for r in new.records if r.point.seq_len <= 8192))
    ids = {record.point_id for record in short.records}
    assert against_baseline([many()], short, ids, 0.02).status == Exit.OK
    assert against_baseline([many()], short, IDS, 0.02).status == Exit.INCONCLUSIVE


def test_another_machine_is_inconclusive_and_says_so() -> None:
    other = changed(many(), header=changed(many().header, environment=CPU))
    gate = against_baseline([other], many(), IDS, 0.02)
    assert gate.status == Exit.INCONCLUSIVE
    assert "different machines" in gate.text


def both(slow: float) -> Profile:
    """One run with stage sets `base` and `new`, the latter `slow` times as slow."""
    records = []
    for name, scale in (("base", 1.0), ("new", slow)):
        for one in many(scale).records:
            point = changed(one.point, backend=name)
            if one.point.policy != "dense":
                records.append(changed(one, point=point, point_id=point.point_id))
    return profile(*records)


def test_inside_one_run_small_differences_count() -> None:
    """5 % beyond a threshold of 2 %, which between two runs of 10 us and less would be noise."""
    assert inside_run(both(1.05), "base", "new", 0.02).status == Exit.CHECK_FAILED
    assert inside_run(both(1.0), "base", "new", 0.02).status == Exit.OK
    gate = inside_run(both(1.0), "base", "absent", 0.02)
    assert gate.status == Exit.INCONCLUSIVE
    assert "no such backend" in gate.text


def decision(code: Exit) -> Decision:
    return replace(decide(findings()), status=code)


@pytest.mark.parametrize(
    ("own", "gates", "wanted"),
    [
        (Exit.OK, [], Exit.OK),
        (Exit.INCONCLUSIVE, [Exit.CHECK_FAILED], Exit.CHECK_FAILED),
        (Exit.CHECK_FAILED, [Exit.OK], Exit.CHECK_FAILED),
        (Exit.OK, [Exit.OK, Exit.INCONCLUSIVE], Exit.INCONCLUSIVE),
        (Exit.MACHINE, [Exit.INCONCLUSIVE], Exit.MACHINE),
    ],
)
def test_statuses_together(own: Exit, gates: list[Exit], wanted: Exit) -> None:
    texts = {Exit.OK: 1.0, Exit.CHECK_FAILED: 1.3}
    made = [
        inside_run(both(texts[one]), "base", "new", 0.02) if one in texts else Gate("trend", None, "why")
        for one in gates
    ]
    assert [gate.status for gate in made] == gates
    assert status(decision(own), made) == wanted


@pytest.mark.parametrize(
    ("own", "gates", "may"),
    [
        (Exit.OK, [], True),
        (Exit.OK, [Exit.OK], True),
        (Exit.OK, [Exit.INCONCLUSIVE], True),  # another driver: kept, it would never compare again
        (Exit.OK, [Exit.CHECK_FAILED], False),
        (Exit.OK, [Exit.CHECK_FAILED, Exit.INCONCLUSIVE], False),
        (Exit.CHECK_FAILED, [Exit.INCONCLUSIVE], False),
        (Exit.INCONCLUSIVE, [Exit.OK], False),
    ],
)
def test_a_run_is_the_next_baseline_unless_it_fails_or_is_undecided(
    own: Exit, gates: list[Exit], may: bool
) -> None:
    scales = {Exit.OK: 1.0, Exit.CHECK_FAILED: 2.0}
    made = [
        against_baseline([many()], many(scales[one]), IDS, 0.02) if one in scales else Gate("t", None, "why")
        for one in gates
    ]
    assert next_baseline(decision(own), made) is may
    assert gate_document(decision(own), made)["next_baseline"] is may


def test_an_undecided_comparison_replaces_no_baseline() -> None:
    short = changed(many(), records=tuple(r for r in many().records if r.point.seq_len <= 8192))
    gate = against_baseline([many()], short, IDS, 0.02)
    assert gate.status == Exit.INCONCLUSIVE
    assert not next_baseline(decision(Exit.OK), [gate])


def test_a_refusal_is_a_document_with_its_reason() -> None:
    told = refusal(QuestprofError("no GPU", "torch sees none", "Add --device cpu.", Exit.MACHINE))
    assert told == {
        "verdict": "cannot run",
        "status": 3,
        "next_baseline": False,
        "sentence": "no GPU: torch sees none. Add --device cpu.",
    }
    assert refusal(QuestprofError("--time soon", "it is no time", "Write 5m."))["verdict"] is None


def test_a_no_fails_nothing() -> None:
    from profiles import dense, quest

    no = decide(findings(sweep=profile(dense(4096, 10.0), quest(4096, (9.0, 2.0, 9.0))), steps=None))
    assert no.answer == "no"
    assert status(no, []) == Exit.OK


def test_summary_and_document() -> None:
    gates = [inside_run(both(1.3), "base", "new", 0.02), Gate("trend", None, "another <b>machine</b>")]
    text = gate_markdown(decision(Exit.OK), gates)
    assert text.startswith("## questprof ci: fail")
    assert "new against base: slower" in text
    assert "<b>" not in text
    told = gate_document(decision(Exit.OK), gates)
    assert (told["verdict"], told["status"]) == ("fail", 1)
    assert GPU.device == "cuda"


def test_why_a_comparison_fails_comes_first() -> None:
    made = decide(findings())
    slower = inside_run(both(1.3), "base", "new", 0.02)
    told = gate_document(made, [Gate("trend", None, "another machine"), slower])["sentence"]
    assert told == f"Fail: {slower.text}. {sentence(made.found, made)}"
    assert slower.text.startswith("new against base: slower; of ")
    assert f"## questprof ci: fail\n\nFail: {slower.text}." in gate_markdown(made, [slower])


def test_why_a_comparison_does_not_conclude_comes_first() -> None:
    other = changed(many(), header=changed(many().header, environment=CPU))
    made = decide(findings())
    told = str(gate_document(made, [against_baseline([other], many(), IDS, 0.02)])["sentence"])
    assert told.startswith("Inconclusive: against run.jsonl not comparable: ")
    assert "different machines" in told.split(". Only above")[0]
    assert told.endswith(sentence(made.found, made))


def test_wrong_results_come_first_in_the_sentence_of_a_gate() -> None:
    """Planted: the oracle is 9 away at 2k, and no point has a valid pair of figures."""
    wrong = [
        changed(r, checks=tuple(changed(check, max_rel_err=9.0) for check in r.checks))
        for r in many().records
    ]
    made = decide(findings(sweep=profile(*wrong), steps=None))
    told = str(gate_document(made, [])["sentence"])
    assert (made.answer, made.status) == ("undecided", Exit.CHECK_FAILED)
    assert told.startswith(
        "Fail: wrong results. Undecided: on Toy GPU, toy, budget 1024, batch 1: wrong results: "
    )


def test_samples_that_would_not_settle_are_told_as_the_reason() -> None:
    made = replace(decide(findings()), status=Exit.INCONCLUSIVE, unstable=("attention at 4k",))
    told = str(gate_document(made, [])["sentence"])
    assert told.startswith("Inconclusive: samples that would not settle. Only above ")


def test_a_pass_tells_the_answer_alone() -> None:
    made = decide(findings())
    gates = [inside_run(both(1.0), "base", "new", 0.02)]
    assert gate_document(made, gates)["sentence"] == sentence(made.found, made)
    assert gate_markdown(made, []).split("\n\n")[1].startswith("Nothing was compared")

"""The one sentence, the status, and what must never be said."""

from __future__ import annotations

from dataclasses import replace

import bytes_records
import pytest
from decisions import CPU, asked, findings, step, steps, traffic, two_steps
from msgspec.structs import replace as changed

from profiles import dense, profile, quest, two_baselines
from questprof.decide.case import Gain
from questprof.decide.case_words import gain_text, ms, percent
from questprof.decide.decision import decide, together
from questprof.decide.document import cells, document, markdown
from questprof.decide.evidence import Findings
from questprof.decide.remarks import remarks
from questprof.decide.sentences import by_batch, sentence
from questprof.errors import Exit
from questprof.model import Profile


def said(found: Findings) -> str:
    return sentence(found, decide(found))


def test_the_whole_sentence() -> None:
    found = findings(asked=asked(traffic=traffic(1000, 2100, 2200, 8000)))
    assert decide(found).status == Exit.OK
    assert said(found) == (
        "Only above 2.1k tokens: on Toy GPU, toy, budget 1024, batch 1: Quest is faster from 2.1k tokens on; "
        "it is faster for 50 % of the 4 requests of lengths.csv (25 % are shorter than 2k, where nothing "
        "valid was measured); at 32k a token takes 0.625 ms instead of 1 ms, 0.375 ms or 38 % less; limited "
        "by reading the weights, 56 % of a Quest step; bytes check passed, counted: address trace."
    )


def test_cpu_figures_are_called_so() -> None:
    assert "Toy CPU (CPU figures)" in said(findings(asked=asked(device="cpu"), environment=CPU))


FAILED = profile(bytes_records.traced(unselected_bytes=4096))


def test_a_failed_byte_check_is_no_clean_yes() -> None:
    """Planted: attend read 4096 bytes of pages that it had not selected."""
    found = findings(bytes=FAILED)
    made = decide(found)
    assert made.answer == "not proven"
    assert made.status == Exit.CHECK_FAILED
    assert said(found).startswith("Not proven: ")
    assert "toy, budget 1024, batch 1: bytes check failed (unselected page touched)" in said(found)


def test_a_wrong_result_is_no_clean_yes() -> None:
    records = list(two_baselines())
    records[2] = changed(records[2], checks=(changed(records[2].checks[0], max_rel_err=9.0),))
    found = findings(sweep=profile(*records))
    made = decide(found)
    assert (made.answer, made.status) == ("not proven", Exit.CHECK_FAILED)
    assert "toy, budget 1024, batch 1: wrong results: Quest attention at 2k, batch 1" in said(found)


def test_a_no_stays_a_no_with_a_failed_check() -> None:
    sweep = profile(dense(4096, 10.0), quest(4096, (9.0, 2.0, 9.0)))
    made = decide(findings(sweep=sweep, bytes=FAILED, steps=None))
    assert (made.answer, made.status) == ("no", Exit.CHECK_FAILED)


def test_unstable_is_4() -> None:
    records = [*two_baselines()[3:], quest(65536, (2.0, 2.0, 6.0), status="unstable"), dense(65536, 270.0)]
    found = findings(sweep=profile(*records))
    made = decide(found)
    assert made.status == Exit.INCONCLUSIVE
    assert made.answer in ("yes", "only above")
    assert any("Unstable, and in no verdict: attention at 64k" in line for line in remarks(made))


def test_another_baseline_that_does_not_settle_decides_nothing() -> None:
    """sdpa is the slower one at 32k: 160 us against 132."""
    records = [
        changed(one, status="unstable") if one.point.backend == "sdpa" and one.point.seq_len == 32768 else one
        for one in two_baselines()
    ]
    assert decide(findings(sweep=profile(*records))).status == Exit.OK


@pytest.mark.parametrize("part", ["bytes", "steps"])
def test_a_part_that_cannot_run_is_named_with_its_reason(part: str) -> None:
    found = findings(**{part: None}, missing={part: "no decode step fits: needs 30 GiB, 20 GiB are usable"})
    made = decide(found)
    text = said(found)
    assert made.status == Exit.OK  # the rest stands
    assert "needs 30 GiB, 20 GiB are usable" in text
    assert {"bytes": "bytes not checked", "steps": "gain per token not measured"}[part] in text
    assert part in made.missing
    if part == "steps":
        assert "a token takes" not in text
        assert "attention alone: 7.3x at 32k" in text


def test_all_out_of_memory_is_3_and_no_time_4() -> None:
    oom = profile(quest(4096, None, status="oom", reason="no memory"), dense(4096, None, status="oom"))
    made = decide(findings(sweep=oom, steps=None))
    assert (made.answer, made.status) == ("undecided", Exit.MACHINE)
    made = decide(findings(sweep=profile(), steps=None))
    assert (made.answer, made.status) == ("undecided", Exit.INCONCLUSIVE)


def test_several_batches_make_one_sentence_and_one_each() -> None:
    """Batch 8 takes 1000 us dense and 42 with Quest at every length: a yes beside an only above."""
    more = [
        one
        for n in (2048, 32768)
        for one in (dense(n, 1000.0, batch_size=8), quest(n, (20.0, 2.0, 20.0), batch_size=8))
    ]
    found = findings(
        sweep=profile(*two_baselines(), *more), asked=asked(batch_sizes=(1, 8)), steps=two_steps()
    )
    made = decide(found)
    assert made.answer == "only above"
    text = sentence(found, made)
    assert text.startswith("Only above 2.1k tokens: on Toy GPU, toy, budget 1024, batch 1 and 8: ")
    assert "faster from 2.1k tokens on at batch 1" in text
    assert "faster at every length measured above the budget, 2k to 32k at batch 8" in text
    assert "gain per token not measured at batch 8: no decode step of this batch was measured" in text
    assert [line.split(":")[0] for line in by_batch(made)] == ["Batch 1", "Batch 8"]
    assert made.status == Exit.OK


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (["yes", "yes"], "yes"),
        (["no", "no"], "no"),
        (["yes", "only above"], "only above"),
        (["yes", "no"], "partly"),
        (["yes", "undecided"], "partly"),
        (["no", "undecided"], "undecided"),
        ([], "undecided"),
    ],
)
def test_answers_together(answers: list[str], wanted: str) -> None:
    assert together(answers) == wanted


def test_a_loss_reads_as_more() -> None:
    assert gain_text(Gain(1.0, 1.2, "at 2k", "measured: clock")) == (
        "at 2k a token takes 1.2 ms instead of 1 ms, 0.2 ms or 20 % more"
    )


def test_a_step_that_contradicts_its_attention_is_told_so_in_one_sentence() -> None:
    """Attention 1 ms against 2; the step, of other layers, 1 ms against 0.976, for two batches as for one."""
    pairs = [
        record
        for size in (1, 8)
        for record in (
            dense(32768, 1000.0, batch_size=size),
            quest(32768, (980.0, 20.0, 1000.0), batch_size=size),
        )
    ]
    timed = steps(
        *(
            step(policy, us, 32768, point={"batch_size": size})
            for size in (1, 8)
            for policy, us in (("dense", 1000.0), ("quest", 976.0))
        )
    )
    words = "(though its attention is slower there: attention decides, as nothing else of the step differs)"
    for sizes in ((1,), (1, 8)):
        found = findings(sweep=profile(*pairs), steps=timed, asked=asked(batch_sizes=sizes))
        assert said(found).startswith("No: ")
        assert said(found).count(words) == len(sizes)


def test_a_millisecond_s_hundredth_is_the_least_that_is_told() -> None:
    told = gain_text(Gain(0.653, 0.64452, "at 2k", "measured: clock"))
    assert told == "at 2k a token takes 0.645 ms instead of 0.653 ms, less than 0.01 ms or 1.3 % less"
    assert [ms(value) for value in (0.0, 0.0099, 0.01, 1234.5)] == ["0", "less than 0.01", "0.01", "1234"]
    made = decide(findings(steps=steps(step("dense", 9.0, 32768), step("quest", 6.0, 32768))))
    assert cells(made)[0][5] == "less than 0.01 -> less than 0.01"


def test_requests_where_nothing_was_measured_leave_it_undecided_and_are_told() -> None:
    """Measured at 2k to 32k: one request is shorter, three are longer, none lies within."""
    found = findings(asked=asked(traffic=traffic(1000, 40000, 40000, 40000)), steps=None)
    made = decide(found)
    assert (made.answer, made.status) == ("undecided", Exit.INCONCLUSIVE)
    text = said(found)
    assert text.startswith("Undecided: ")
    assert (
        "Quest is neither proven faster nor slower (100 % of the 4 requests of lengths.csv lie where nothing "
        "valid was measured: 25 % are shorter than 2k and 75 % are longer than 32k)" in text
    )
    assert "0 % of" not in text.replace("100 %", "")
    assert cells(made)[0][4] == "-"
    assert markdown(found, made).startswith("### questprof decide: undecided\n")
    more = [*two_baselines(), *two_baselines(batch_size=8)]
    both = replace(found, sweep=profile(*more), asked=replace(found.asked, batch_sizes=(1, 8)))
    assert "it is faster for" not in said(both)
    assert "100 % of the 4 requests" in said(both)


def test_lengths_whose_samples_lie_too_far_apart_are_not_called_unmeasured() -> None:
    """2k was measured, and its samples prove nothing: of the requests below 4k nothing valid is known."""
    wild = [
        changed(r, times_us={stage: (us[0], 4 * us[0]) * 10 for stage, us in r.times_us.items()})
        if r.point.seq_len == 2048
        else r
        for r in two_baselines()
    ]
    found = findings(sweep=profile(*wild), steps=None, asked=asked(traffic=traffic(2500, 3000)))
    assert "lie where nothing valid was measured: 100 % are shorter than 4k" in said(found)
    assert "nothing was measured" not in said(found)


def test_one_request_is_one() -> None:
    assert "faster for 100 % of the 1 request of" in said(findings(asked=asked(traffic=traffic(8192))))


def test_a_share_that_is_not_all_or_nothing_never_reads_so() -> None:
    shares = (0.0, 0.001, 0.5, 0.9999, 1.0)
    assert [percent(one) for one in shares] == ["0 %", "less than 1 %", "50 %", "more than 99 %", "100 %"]


def test_the_document_holds_the_sentence_and_its_figures() -> None:
    found = findings()
    made = decide(found)
    told = document(found, made, {"page": "d.html"})
    assert told["sentence"] == sentence(found, made)
    assert told["status"] == 0
    (batch,) = told["batches"]
    assert batch["gain"]["saved_share"] == pytest.approx(0.375, rel=1e-2)
    assert told["bytes"]["verdict"] == "passed"


def test_markdown_of_a_hostile_name_is_text() -> None:
    bad = replace(traffic(8192), name="<script>|`x`|\n# head")
    found = findings(asked=asked(traffic=bad))
    text = markdown(found, decide(found))
    assert "<script>" not in text
    assert "\n# head" not in text
    assert "\\`x\\`" in text


def _warm(found: Profile) -> Profile:
    """Every sample labelled as of a cache."""
    return changed(
        found,
        records=tuple(
            changed(r, timing={name: changed(one, cache_state="warm") for name, one in r.timing.items()})
            for r in found.records
        ),
    )


def test_times_of_a_cache_are_called_so() -> None:
    """The answer is what the figures give; that they are no times of memory stands in the sentence."""
    found = findings(sweep=_warm(profile(*two_baselines())))
    text = "faster from 2.1k tokens on, warm at every length (times of a cache, not of memory); "
    assert text in said(found)
    assert decide(found).answer == decide(findings()).answer
    assert "warm" not in said(findings())
    both = findings(
        asked=asked(batch_sizes=(1, 4)),
        sweep=_warm(profile(*two_baselines(), *two_baselines(batch_size=4))),
    )
    assert "warm at every length (times of a cache, not of memory)" in said(both)


def test_whole_steps_of_a_cache_are_called_so() -> None:
    found = findings(steps=_warm(two_steps()))
    assert "Batch 1: whole steps are warm at every length: times of a cache, not of memory" in remarks(
        decide(found)
    )
    assert not any("warm" in text for text in remarks(decide(findings(steps=two_steps()))))


def test_a_token_s_time_that_is_of_a_cache_is_called_warm_in_the_sentence_itself() -> None:
    """The steps alone are warm, at 8k and 32k; then at 8k alone, and the step that is told is of memory."""
    warm = ", 0.375 ms or 38 % less, warm (times of a cache, not of memory); limited by"
    found = findings(steps=_warm(two_steps()))
    assert warm in said(found)
    assert cells(decide(found))[0][5] == "1 -> 0.625 (warm)"
    half = two_steps()
    half = profile(*_warm(profile(*half.records[:2])).records, *half.records[2:])
    found = findings(steps=half)
    assert "0.375 ms or 38 % less; limited by" in said(found)
    assert any("hole steps are warm at 8k: times of a cache" in text for text in remarks(decide(found)))
    lengths = findings(steps=half, asked=asked(traffic=traffic(8192, 32768)))
    assert "(modelled from measured steps), warm (times of a cache, not of memory)" in said(lengths)


def test_of_several_batches_the_warm_one_is_named() -> None:
    batch = {"batch_size": 8}
    eight = [step("dense", 3000.0, 32768, point=batch), step("quest", 2000.0, 32768, point=batch)]
    sweep = profile(*two_baselines(), *two_baselines(batch_size=8))
    steps_ = profile(*two_steps().records, *_warm(steps(*eight)).records)
    found = findings(sweep=sweep, asked=asked(batch_sizes=(1, 8)), steps=steps_)
    assert "a token takes 0.375 ms (38 %) less at 32k at batch 1, a token takes" in said(found)
    assert "1 ms (33 %) less at 32k (warm) at batch 8" in said(found)


def test_warm_steps_are_no_reason_why_attention_is_undecided() -> None:
    """Attention at 8k and 32k has samples too far apart: that alone is why, whatever the steps were of."""
    wild = [
        changed(r, times_us={stage: (us[0], 4 * us[0]) * 10 for stage, us in r.times_us.items()})
        for r in two_baselines()
        if r.point.seq_len in (8192, 32768)
    ]
    found = findings(sweep=profile(*wild), steps=_warm(two_steps()))
    why = said(found).split("neither proven faster nor slower (")[1].split(")")[0]
    assert "samples too far apart" in why
    assert "warm" not in why
    assert any("hole steps are warm at every length" in text for text in remarks(decide(found)))

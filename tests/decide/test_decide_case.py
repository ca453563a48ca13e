"""One batch of a decision, with the arithmetic of `decisions` and of each test."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from decisions import CROSSING, asked, findings, step, steps, traffic, two_steps

from profiles import GQA_SHAPE, dense, profile, quest, two_baselines
from questprof.decide.case import Case, faster_at
from questprof.decide.cases import cases
from questprof.decide.evidence import Findings
from questprof.model import Clocks, Record


def only(found: Findings) -> Case:
    (case,) = cases(found)
    return case


def test_the_crossing_is_the_answer() -> None:
    case = only(findings())
    assert case.answer == "only above"
    share = math.log(1.05) / (math.log(1.05) + math.log(20 / 11))
    assert case.seq_len == pytest.approx(2048 * 2**share)
    assert round(case.seq_len or 0) == CROSSING
    assert case.lengths == (2048, 4096, 8192, 16384, 32768)
    at, speed_up = case.attention or (0, 0.0)
    assert (at, speed_up) == (32768, pytest.approx(132 / 18))


def test_yes_where_every_length_wins_and_no_where_none_does() -> None:
    """dense 100; Quest 2 + 2 + 6 = 10 at each length, or 200."""
    for us, wanted in (((2.0, 2.0, 6.0), "yes"), ((98.0, 2.0, 100.0), "no")):
        records = [one for n in (2048, 4096) for one in (dense(n, 100.0), quest(n, us))]
        case = only(findings(sweep=profile(*records), steps=None))
        assert case.answer == wanted
        assert (case.seq_len, case.until) == (None, None)


def test_shares_of_requests() -> None:
    """1000 is shorter than 2k; 2100 slower; 2200 and 8000 faster; 40000 longer than 32k."""
    case = only(findings(asked=asked(traffic=traffic(1000, 2100, 2200, 8000, 40000))))
    assert case.share is not None
    assert case.share.num_requests == 5
    shares = (case.share.shorter, case.share.slower, case.share.faster, case.share.longer)
    assert shares == pytest.approx((0.2, 0.2, 0.4, 0.2))
    assert (case.share.first, case.share.last) == (2048, 32768)


@pytest.mark.parametrize("us", [(1.0, 1.0, 2.0), (98.0, 2.0, 100.0)])
def test_requests_where_nothing_was_measured_are_no_yes_and_no_no(us: tuple[float, float, float]) -> None:
    """Measured at 2k and 4k; of four requests one is shorter and two are longer, of two one is longer."""
    sweep = profile(*(one for n in (2048, 4096) for one in (dense(n, 100.0), quest(n, us))))
    case = only(findings(sweep=sweep, steps=None, asked=asked(traffic=traffic(500, 3000, 9000, 9000))))
    assert case.answer == "undecided"
    assert case.share is not None
    assert (case.share.shorter, case.share.longer, case.share.outside) == (0.25, 0.5, 0.75)
    half = only(findings(sweep=sweep, steps=None, asked=asked(traffic=traffic(3000, 9000))))
    assert half.answer == ("yes" if sum(us) < 100 else "no")


def test_the_gain_of_a_token_is_that_of_the_whole_step() -> None:
    """1000 us dense, 625 with Quest: 0.375 ms or 37.5 %."""
    gain = only(findings()).gain
    assert gain is not None
    assert gain.measured
    assert gain.where == "at 32k"
    assert (gain.dense_ms, gain.quest_ms) == pytest.approx((1.0, 0.625), rel=1e-2)
    assert (gain.saved_ms, gain.saved_share) == pytest.approx((0.375, 0.375), rel=1e-2)


def test_the_gain_over_traffic_is_a_mean_over_its_steps() -> None:
    """Lines through (8k: 700, 600) and (32k: 1000, 625); at 20k, half way, 850 and 612.5.

    Requests at 8k and 20k: (700 + 850) / 2 = 775 and (600 + 612.5) / 2 = 606.25 us.
    """
    found = findings(steps=two_steps(), asked=asked(traffic=traffic(8192, 20480)))
    gain = only(found).gain
    assert gain is not None
    assert not gain.measured
    assert (gain.dense_ms, gain.quest_ms) == pytest.approx((0.775, 0.60625), rel=2e-3)
    assert gain.where == "on average over lengths.csv"


def test_below_the_crossing_quest_is_not_used() -> None:
    """At 2100 tokens, below 2158, dense runs either way: 700 - 300 x (8192 - 2100) / 24576 = 625.6 us.

    With one request at 20k beside it: (625.6 + 850) / 2 = 737.8 and (625.6 + 612.5) / 2 = 619.1 us.
    """
    found = findings(steps=two_steps(), asked=asked(traffic=traffic(2100, 20480)))
    gain = only(found).gain
    assert gain is not None
    assert (gain.dense_ms, gain.quest_ms) == pytest.approx((0.7378, 0.6191), rel=2e-3)


def test_requests_beyond_the_longest_length_are_in_no_mean_and_that_is_said() -> None:
    found = findings(steps=two_steps(), asked=asked(traffic=traffic(8192, 20480, 200000)))
    gain = only(found).gain
    assert gain is not None
    assert gain.dense_ms == pytest.approx(0.775, rel=2e-3)
    assert gain.where == "on average over lengths.csv up to 32k"


def test_no_traffic_in_reach_gives_the_gain_at_a_measured_length() -> None:
    gain = only(findings(steps=two_steps(), asked=asked(traffic=traffic(1000)))).gain
    assert gain is not None
    assert gain.measured


def test_what_limits_a_step_is_its_largest_part() -> None:
    """qkv 80 + out_proj 40 + ffn 200 + head 30 = 350 of 625 us: the weights, 56 %."""
    limit = only(findings()).limit
    assert limit is not None
    assert (limit.part, limit.of) == ("reading the weights", "a Quest step")
    assert limit.share == pytest.approx(350 / 625)


def test_without_steps_the_largest_stage_limits() -> None:
    """At 32k score 10, select 2, attend 6 of 18 us: score, 10 / 18."""
    case = only(findings(steps=None, missing={"steps": "no memory"}))
    assert case.limit is not None
    assert (case.limit.part, case.limit.share) == ("Quest's score", pytest.approx(10 / 18))
    assert case.gain is None
    assert case.no_gain == "no memory"


def test_steps_that_lose_overrule_attention() -> None:
    found = findings(steps=steps(step("dense", 1000.0, 32768), step("quest", 1100.0, 32768)))
    case = only(replace(found, asked=asked(traffic=traffic(8192, 20480))))
    assert case.answer == "no"
    assert case.share is not None
    assert (case.share.faster, case.share.slower) == (0.0, 1.0)
    assert any("the whole step does not" in note for note in case.notes)


def test_a_step_that_contradicts_its_attention_says_so_and_which_decides() -> None:
    """Attention 100 against 200 us , the step 1000 against 976; then attention gains, the step loses."""
    faster = steps(step("dense", 1000.0, 32768), step("quest", 976.0, 32768))
    sweep = profile(dense(32768, 100.0), quest(32768, (98.0, 2.0, 100.0)))
    case = only(findings(sweep=sweep, steps=faster))
    assert case.answer == "no"
    assert case.gain is not None
    assert case.gain.contrary.startswith("though its attention is slower there: attention decides")
    case = only(findings(steps=steps(step("dense", 1000.0, 32768), step("quest", 1100.0, 32768))))
    assert case.answer == "no"
    assert case.gain is not None
    assert case.gain.contrary == "though its attention is faster there: the whole step decides"
    for agreed in (findings(), findings(sweep=sweep, steps=steps(*_losing()))):
        gain = only(agreed).gain
        assert gain is not None
        assert gain.contrary == ""


def _losing() -> tuple[Record, Record]:
    return step("dense", 1000.0, 32768), step("quest", 1100.0, 32768)


def test_steps_within_their_noise_decide_nothing() -> None:
    """Samples of both spread over +-30 % around 1000 and 990 us."""
    noisy = tuple(1000.0 * (0.7 + 0.03 * n) for n in range(21))
    records = [step("dense", 1000.0, 32768), step("quest", 990.0, 32768)]
    from msgspec.structs import replace as changed

    spread = [changed(one, times_us={"step": noisy}) for one in records]
    case = only(findings(steps=steps(*spread), asked=asked(traffic=traffic(8192))))
    assert case.answer == "undecided"
    assert case.share is None
    assert any("within its noise" in note for note in case.notes)


def test_steps_in_doubt_decide_nothing() -> None:
    """1000 against 1100 us would be a loss, but the threads had no core for half of the time."""
    from msgspec.structs import replace as changed

    records = [step("dense", 1000.0, 32768), step("quest", 1100.0, 32768)]
    starved = [changed(one, clocks=Clocks(waited_share=0.5)) for one in records]
    case = only(findings(steps=steps(*starved), asked=asked(traffic=traffic(8192))))
    assert case.answer == "undecided"


def test_steps_that_lose_at_a_shorter_length_raise_the_length() -> None:
    """At 8k 700 against 770 us, 0.909; at 32k 1.6: the step crosses where log(speed-up) is 0.

    share = ln(1.1) / (ln(1.1) + ln(1.6)) = 0.1686, 8192 x 4 ** 0.1686 = 10349 tokens.
    """
    case = only(findings(steps=two_steps((700.0, 770.0))))
    assert case.answer == "only above"
    share = math.log(1.1) / (math.log(1.1) + math.log(1.6))
    assert case.seq_len == pytest.approx(8192 * 4**share, rel=5e-3)
    assert not faster_at(case, 9000)
    assert faster_at(case, 11000)


def test_another_batch_budget_or_page_is_no_evidence() -> None:
    for change in ({"batch_sizes": (8,)}, {"budget": 512}, {"page_size": 32}):
        case = only(findings(asked=asked(**change)))
        assert case.answer == "undecided"
        assert case.gain is None
        assert "batch" in case.left_out


def test_groups_tell_both_ends() -> None:
    """Heads that agree read a quarter of the pages: they win at 2k already."""
    records = []
    for one in two_baselines(GQA_SHAPE):
        records.append(one)
    for k in (2, 4, 8, 16, 32):
        records.append(quest(k * 1024, (1.0, 1.0, 2.0), shape=GQA_SHAPE, data="shared"))
    case = only(findings(sweep=profile(*records), asked=asked(shape=GQA_SHAPE), steps=None))
    assert case.answer == "only above"
    assert case.agreeing is not None
    assert case.agreeing.kind == "always"


def test_nothing_valid_is_unknown() -> None:
    sweep = profile(dense(4096, 20.0, status="unstable"), quest(4096, (2.0, 2.0, 6.0)))
    assert only(findings(sweep=sweep, steps=None)).answer == "undecided"
    assert only(findings(sweep=None, steps=None)).answer == "undecided"


def test_steps_that_would_not_settle_tell_nothing() -> None:
    """Samples from 100 to 1900 us: the 90th percentile is over three times the 10th."""
    from msgspec.structs import replace as changed

    wild = tuple(100.0 + 90.0 * n for n in range(21))
    records = [step("dense", 1000.0, 32768), step("quest", 500.0, 32768)]
    case = only(findings(steps=steps(records[0], changed(records[1], times_us={"step": wild}))))
    assert case.gain is None
    assert case.no_gain == "the samples of every whole step are too few or too far apart"
    assert case.answer == "only above"  # attention's own


def test_a_batch_that_memory_refuses_says_so() -> None:
    refused = [
        step(policy, 1000.0, 32768, status="oom", reason="needs 200 GiB, 130 GiB are usable")
        for policy in ("dense", "quest")
    ]
    case = only(findings(steps=steps(*refused)))
    assert case.gain is None
    assert case.no_gain == "no memory for a whole step (needs 200 GiB, 130 GiB are usable)"


def test_gains_are_told_where_quest_is_faster() -> None:
    """The middle request, of 2100 tokens, is nearest to 2k, where Quest is slower: 4k is told, 20 / 11."""
    case = only(findings(steps=None, asked=asked(traffic=traffic(2100))))
    at, speed_up = case.attention or (0, 0.0)
    assert (at, speed_up) == (4096, pytest.approx(20 / 11))

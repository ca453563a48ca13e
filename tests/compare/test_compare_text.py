"""A comparison on the page: one screen, nothing of a profile that could be markup, nothing left unsaid."""

import json

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from test_compare import record

from profiles import SHAPE, profile
from questprof.compare.outcome import Outcome
from questprof.compare.pairs import across, within
from questprof.compare.spread import Spread
from questprof.compare.text import document, headline, markdown, print_table, statements
from questprof.compare.verdicts import compare


def _outcome(num_points: int = 3, spread: Spread = Spread(0.03)) -> Outcome:
    """`num_points` points of which the first is 1.5x slower, and one more on either side alone."""
    base = [record(1024 * n, {"score": [100.0] * 20}) for n in range(1, num_points + 1)]
    new = [replace(base[0], times_us={"score": (150.0,) * 20}), *base[1:]]
    base += [record(1 << 20, {"score": [1.0] * 20})]
    new += [record(1 << 21, {"score": [1.0] * 20})]
    sides = (replace(profile(*side), name=name) for side, name in ((base, "a.jsonl"), (new, "b.jsonl")))
    return compare(across(*sides), spread)


def _table(outcome: Outcome, *, everything: bool = False) -> str:
    console = Console(width=80, force_terminal=False, no_color=True)
    with console.capture() as capture:
        print_table(console, outcome, everything=everything)
    return capture.get()


def test_headline() -> None:
    assert headline(_outcome()) == (
        "b.jsonl against a.jsonl: slower; of 3 comparisons 1 slower, 2 same; "
        "1 point measured in base and not all in new"
    )
    alone = compare(across(*[profile(record(1024, {}))] * 2), Spread(0.03))
    assert headline(alone) == "new against base: undecided; nothing was comparable"
    good = record(1024, {"score": [1.0] * 20})
    wrong = compare(across(profile(good), profile(replace(good, status="wrong"))), Spread(0.03))
    assert headline(wrong) == "new against base: wrong; 1 point turned wrong"


def test_a_wrong_point_is_not_told_as_slowness() -> None:
    """Of three points one is 1.5x slower, one equal, and one wrong in new, which comes first."""
    base = [record(1024 * n, {"score": [100.0] * 20}) for n in (1, 2, 3)]
    new = [replace(base[0], times_us={"score": (150.0,) * 20}), base[1], replace(base[2], status="wrong")]
    outcome = compare(across(profile(*base), profile(*new)), Spread(0.03))
    assert headline(outcome) == (
        "new against base: wrong; of 2 comparisons 1 slower, 1 same; 1 point turned wrong"
    )
    assert markdown(outcome).startswith("### questprof compare: wrong\n")
    assert outcome.exit_status() == 1


def test_everything_that_must_be_said_is_said() -> None:
    said = "\n".join(statements(_outcome()))
    assert "at most 5% of such comparisons call any of their 3 stages faster or slower (Holm)" in said
    assert "between runs, stated: 3%" in said
    assert (
        "same: the whole interval lies within 2%; past that, up to the spread between runs: within spread"
        in said
    )
    assert "limit:" not in said
    assert "medians within 2% in 66.7% of the 3 stages of 10 us and more" in said
    assert said.count("1m/1k quest") == 1
    assert "not compared, b.jsonl lacks it: 1m/1k quest" in said
    assert "only in b.jsonl: 2m/1k quest" in said
    measured = "\n".join(statements(_outcome(spread=Spread(0.03, {"score": 0.01}, 4))))
    assert "measured from 4 baselines: score 1%" in measured
    warm = record(1024, {"score": [1.0] * 20}, cold="warm")
    assert "warm, not cold" in "\n".join(statements(compare(across(*[profile(warm)] * 2), Spread(0.03))))


def test_what_a_ratio_is_stands_beside_the_table() -> None:
    """Paired by loop "one": rounds of ratio 1, 1 and 4; two loops: 1.5 over 1, and both where both are."""
    apart = statements(_outcome())
    assert any(
        "in two runs or two loops; new / base: the ratio of the medians; same: " in said for said in apart
    )
    paired = [record(1024, {"score": [1.0] * 20}, backend=name) for name in ("base", "new")]
    (said,) = (
        one
        for one in statements(compare(within(profile(*paired), "base", "new"), Spread(0.03)))
        if "Holm" in one
    )
    assert "round by round in one loop; new / base: the median of the rounds' ratios; same: " in said
    loops = [replace(one, point=replace(one.point, seq_len=2048)) for one in paired]
    loops = [
        replace(
            one, point_id=one.point.point_id, timing={"score": replace(one.timing["score"], loop_id=name)}
        )
        for one, name in zip(loops, "ab", strict=True)
    ]
    both = compare(within(profile(*paired, *loops), "base", "new"), Spread(0.03))
    (said,) = (one for one in statements(both) if "Holm" in one)
    assert (
        "1 of 2 stages in one loop; new / base: the median of the rounds' ratios there, elsewhere the ratio"
        in said
    )


def test_a_run_against_itself_is_said_to_be_one() -> None:
    run = profile(record(1024, {"score": [1.0] * 20}))
    same = "both hold the same records: a run is compared with itself, which shows nothing"
    assert statements(compare(across(run, run), Spread(0.03)))[0] == same
    later = profile(*run.records, started_at="2026-02-02T00:00:00+00:00")
    assert same not in statements(compare(across(run, later), Spread(0.03)))


def test_nothing_compared_is_said_without_an_empty_table() -> None:
    nothing = compare(across(*[profile(record(1024, {}))] * 2), Spread(0.03))
    assert statements(nothing)[1:] == ["no stage was timed on both sides"]
    assert "verdict" not in _table(nothing).splitlines()[0]


def test_many_reasons_are_not_a_page() -> None:
    good = [record(1024 * n, {"score": [1.0] * 20}) for n in range(1, 30)]
    lost = [replace(r, status="oom", reason=f"needs {n} GiB") for n, r in enumerate(good)]
    said = statements(compare(across(profile(*good), profile(*lost)), Spread(0.03)))
    assert len(said) < 10
    assert "not compared for 24 more reasons" in said


def test_the_table_shows_what_differs_first_and_cuts_nothing() -> None:
    lines = _table(_outcome(60)).splitlines()
    assert lines[1].split()[:6] == ["1k/1k", "score", "100", "150", "1.500x", "1.500"]
    assert lines[1].split()[8:10] == ["3%", "slower"]
    assert "20 more rows with --all" in lines
    assert len(_table(_outcome(60), everything=True).splitlines()) > 60


def test_markdown_is_one_screen() -> None:
    lines = markdown(_outcome(200)).splitlines()
    assert len(lines) < 40
    assert lines[0] == "### questprof compare: slower"
    assert sum(line.startswith("|") for line in lines) == 2 + 15
    assert "185 more rows." in lines
    cells = {line.count("|") for line in lines if line.startswith("|")}
    assert cells == {10}


@pytest.mark.parametrize("name", ["<img src=x>", "a|b", "[x](http://y)", "`x`", "two\nlines", "@\x1b[31m"])
def test_names_of_a_profile_stay_text(name: str) -> None:
    odd = record(1024, {f"{name}": [1.0] * 20})
    shaped = replace(odd, point=replace(odd.point, shape=replace(SHAPE, name=name)))
    shaped = replace(shaped, point_id=shaped.point.point_id)
    outcome = compare(across(*[profile(shaped, odd)] * 2), Spread(0.03))
    text = markdown(outcome)
    assert "<" not in text.replace("&lt;", "")
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")} == {10}
    assert "](" not in text.replace("\\]\\(", "").replace("\\](", "")
    assert "\x1b" not in _table(outcome) + text


def test_json_is_one_document_with_all_of_it() -> None:
    found = json.loads(msgspec.json.encode(document(_outcome())))
    assert found["verdict"] == "slower"
    assert found["counts"] == {"slower": 1, "faster": 0, "undecided": 0, "within spread": 0, "same": 2}
    assert found["comparisons"][0]["ratio"] == 1.5
    assert found["false_alarm_rate"] == pytest.approx(0.05)
    assert [point["seq_len"] for point in found["only_base"]] == [1 << 20]


def test_a_limit_that_is_more_than_the_spread_says_why() -> None:
    """A tenth of the samples 10 % above the rest: 10 % is the limit, where two runs lie 3 % apart."""
    steady, wide = {"score": [100.0] * 20}, {"score": [100.0] * 16 + [110.0] * 4}
    sides = [profile(record(1024, wide), record(2048, steady))] * 2
    outcome = compare(across(*sides), Spread(0.03))
    assert [round(one.beyond, 9) for one in outcome.comparisons] == [0.1, 0.03]
    assert (
        "limit: the spread between runs, or how far the samples of either run lie apart (90th over 10th "
        "percentile) where that is more, as in 1 stage"
    ) in statements(outcome)


def test_a_sentence_names_the_policy_that_a_backend_only_resembles() -> None:
    """`questprof` holds the letters of `quest`, and is none."""
    good = [record(1024, {"score": [1.0] * 20}, backend=name) for name in ("questprof", "triton")]
    lost = [replace(r, status="oom", reason="too large") for r in good]
    said = statements(compare(across(profile(*good), profile(*lost)), Spread(0.03)))
    assert "not compared, new oom: too large: 1k/1k questprof quest, 1k/1k triton quest" in said

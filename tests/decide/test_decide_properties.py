"""What holds of every decision, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

import bytes_records
from decisions import asked, findings, step, steps, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import dense, profile, quest
from questprof.decide.case import faster_at
from questprof.decide.decision import decide
from questprof.decide.sentences import sentence
from questprof.errors import Exit
from questprof.model import Profile

LENGTHS = (2048, 4096, 8192)
SPEEDS = st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3)
TOKENS = st.lists(st.integers(1, 100_000) | st.integers(2048, 8192), min_size=1, max_size=20)
FAILED = profile(bytes_records.traced(unselected_bytes=4096))


def sweep(speed_ups: list[float]) -> Profile:
    """Dense takes 600 us at each length; Quest that over the speed-up, a sixth of it in select."""
    records = []
    for length, speed_up in zip(LENGTHS, speed_ups, strict=True):
        us = 600.0 / speed_up
        records += [dense(length, 600.0), quest(length, (us / 3, us / 6, us / 2))]
    return profile(*records)


@given(speed_ups=SPEEDS, tokens=TOKENS)
@settings(max_examples=60, deadline=None)
def test_shares_are_shares_and_answers_follow_the_lengths(speed_ups: list[float], tokens: list[int]) -> None:
    found = findings(sweep=sweep(speed_ups), steps=None, asked=asked(traffic=traffic(*tokens)))
    made = decide(found)
    (case,) = made.cases
    wins = [speed_up > 1.001 for speed_up in speed_ups]
    loses = [speed_up < 0.999 for speed_up in speed_ups]
    covered = sum(LENGTHS[0] <= at <= LENGTHS[-1] for at in tokens) * 2 >= len(tokens)
    if all(wins):
        assert made.answer == ("yes" if covered else "undecided")
    if all(loses):
        assert made.answer == ("no" if covered else "undecided")
    if made.answer == "yes":
        assert not any(loses)
    share = case.share
    assert share is not None
    parts = (share.faster, share.slower, share.shorter, share.longer)
    assert all(-1e-9 <= part <= 1 + 1e-9 for part in parts)
    assert abs(sum(parts) - 1) < 1e-9
    for length, speed_up in zip(LENGTHS, speed_ups, strict=True):
        if made.answer == "only above" and speed_up < 0.999 and length == LENGTHS[0]:
            assert not faster_at(case, length)
    assert made.status == (Exit.OK if covered else Exit.INCONCLUSIVE)
    assert ("lie where nothing valid was measured" in sentence(found, made)) != covered


@given(speed_ups=SPEEDS, speed_up=st.floats(0.3, 3.0))
@settings(max_examples=40, deadline=None)
def test_the_limiting_part_and_the_sign_of_the_gain_are_told(speed_ups: list[float], speed_up: float) -> None:
    measured = steps(step("dense", 1000.0, 8192), step("quest", 1000.0 / speed_up, 8192))
    found = findings(sweep=sweep(speed_ups), steps=measured)
    made = decide(found)
    (case,) = made.cases
    text = sentence(found, made)
    assert case.limit is not None
    assert f"limited by {case.limit.part}" in text
    assert 0 < case.limit.share <= 1
    assert case.gain is not None
    assert (case.gain.saved_ms >= 0) == (case.gain.quest_ms <= case.gain.dense_ms)
    if speed_up < 0.99:
        assert made.answer in ("no", "only above", "only between")
        assert not faster_at(case, 8192)


@given(speed_ups=SPEEDS)
@settings(max_examples=30, deadline=None)
def test_a_failed_check_never_leaves_a_clean_yes(speed_ups: list[float]) -> None:
    found = findings(sweep=sweep(speed_ups), steps=None, bytes=FAILED)
    made = decide(found)
    assert made.answer in ("not proven", "no")
    assert made.status == Exit.CHECK_FAILED
    assert "bytes check failed" in sentence(found, made)


@given(speed_ups=SPEEDS, part=st.sampled_from(["bytes", "steps"]), why=st.text("abc xyz", min_size=1))
@settings(max_examples=30, deadline=None)
def test_a_missing_part_is_always_told(speed_ups: list[float], part: str, why: str) -> None:
    found = replace(findings(sweep=sweep(speed_ups), **{part: None}), missing={part: why})  # type: ignore[dict-item]
    made = decide(found)
    assert made.missing[part] == why  # type: ignore[index]
    assert why in sentence(found, made)

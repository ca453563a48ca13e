"""Speed at equal mass: interpolated between measured budgets, nowhere beyond; shapes and lengths are told
apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from planted_recall import MODEL, Planted

from profiles import GPU, dense, profile, quest
from questprof.recall.answers.equal_mass import NOT_USABLE, Joined, crossing, join, mass_at
from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.step_sentences import equal_sentences
from questprof.sweep.merge import merge_profiles

DENSE_US = 40.0


def timing(times: dict[int, float], *, seq_len: int = 256, shape=MODEL, **more):
    """A dense step of 40 us, and Quest steps of the given times by budget."""
    quests = [
        quest(seq_len, (us / 4, us / 4, us / 2), budget=budget, shape=shape, **more)
        for budget, us in times.items()
    ]
    return profile(dense(seq_len, DENSE_US, shape=shape), *quests)


def joined(*timings, planted: Planted | None = None) -> Joined:
    (evaluation,) = evaluations((planted or Planted()).profile())
    return join(evaluation, timings)


def test_timed_points_take_the_mass_of_their_budget() -> None:
    """Calm: 0.9 at 64, 0.95 at 128. 96 lies log(1.5)/log(2) = 0.585 of the way: 0.9 + 0.05 x 0.585."""
    found = joined(timing({64: 10.0, 96: 12.0, 128: 20.0}))
    assert [(one.token_budget, one.between) for one in found.timed] == [
        (64, None),
        (96, (64, 128)),
        (128, None),
    ]
    expected = 0.9 + 0.05 * math.log(1.5) / math.log(2)
    assert [one.mass for one in found.timed] == pytest.approx([0.9, expected, 0.95])
    assert [one.speed_up for one in found.timed] == pytest.approx([4.0, 40 / 12, 2.0])
    assert found.notes == ()


def test_nothing_beyond_the_measured_budgets() -> None:
    (evaluation,) = evaluations(Planted().profile())
    assert mass_at(evaluation, 16, "quest", 16) is None
    assert mass_at(evaluation, 16, "quest", 512) is None
    assert mass_at(evaluation, 8, "quest", 64) is None
    found = joined(timing({16: 5.0, 64: 10.0}))
    assert [one.token_budget for one in found.timed] == [64]
    (note,) = (note for note in found.notes if "page 16 budget 16 quest was not evaluated" in note)
    assert note.startswith("1 of 2 timed points near 256 tokens has no mass")


def test_time_at_equal_mass_by_hand() -> None:
    """0.95 is the mass at 128, timed at 20 us: 2x. 0.99 lies 0.8 of the way from 0.95 (128) to 1 (256).

    Its budget is 128 x 2 ** 0.8 = 222.9; the time there, 0.8 of the way from 20 to 30 us, is 28 us.
    """
    found = joined(timing({64: 10.0, 128: 20.0, 224: 99.0}), timing({128: 20.0, 256: 30.0}, seq_len=255))
    at = {(one.seq_len, one.mass): one for one in found.equal}
    assert at[256, 0.95].token_budget == pytest.approx(128)
    assert at[256, 0.95].speed_up == pytest.approx(2.0)


def test_time_between_two_timed_budgets() -> None:
    calm = replace(Planted(), positions=tuple(range(340, 356)), budgets=(64, 128, 240), mass=slow)
    found = joined(timing({64: 10.0, 128: 20.0, 240: 30.0}, seq_len=356), planted=calm)
    (_, ninety_nine) = found.equal
    share = (0.99 - 0.95) / (1.0 - 0.95)
    assert ninety_nine.token_budget == pytest.approx(128 * (240 / 128) ** share)
    assert ninety_nine.quest_us == pytest.approx(20 + share * 10)
    assert ninety_nine.speed_up == pytest.approx(40 / 28)


def slow(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
    return {64: 0.9, 128: 0.95, 240: 1.0, 272: 1.0}[token_budget]


def test_nothing_is_interpolated_over_a_wide_gap() -> None:
    """From 128 to 272 tokens is more than a doubling: neither the mass at 192 nor the budget of 0.99."""
    wide = replace(Planted(), positions=tuple(range(340, 356)), budgets=(64, 128, 272), mass=slow)
    (evaluation,) = evaluations(wide.profile())
    assert mass_at(evaluation, 16, "quest", 192) is None
    assert mass_at(evaluation, 16, "quest", 96) is not None
    found = joined(timing({64: 10.0, 128: 20.0, 272: 30.0}, seq_len=356), planted=wide)
    (_, ninety_nine) = found.equal
    assert (ninety_nine.token_budget, ninety_nine.quest_us) == (None, None)
    assert ninety_nine.why_not == "it takes between 128 and 272 tokens, too far apart to interpolate"


@pytest.mark.parametrize(
    ("times", "mass", "why"),
    [
        ({64: 10.0}, 0.95, "it takes 128 tokens, timed were 64"),
        ({64: 10.0, 96: 12.0}, 0.99, "it takes 223 tokens, timed were 64, 96"),
    ],
)
def test_a_budget_that_was_not_timed_gives_no_figure(times, mass: float, why: str) -> None:
    found = {one.mass: one for one in joined(timing(times)).equal}
    assert found[mass].quest_us is None
    assert found[mass].why_not == why
    assert any(why in line for line in equal_sentences(joined(timing(times))))


def test_a_mass_that_no_budget_reaches_or_all_do() -> None:
    few = replace(Planted(), budgets=(32, 64))
    (first, _) = joined(timing({64: 10.0}), planted=few).equal
    assert first.why_not == "no measured budget reaches it, 64 keeps 90.0%"
    full = replace(Planted(), budgets=(64, 128), mass=lambda *_: 0.999)
    (first, _) = joined(timing({64: 10.0}), planted=full).equal
    assert first.why_not == "the smallest measured budget, 64, keeps 99.9% already"


def test_other_lengths_are_not_joined() -> None:
    """A factor of the square root of 2 is near; 512 tokens against 256 are not."""
    found = joined(timing({64: 10.0}, seq_len=512))
    assert found.timed == ()
    (note,) = found.notes
    assert "it has 256 tokens, timed were 512" in note


def test_another_shape_is_said() -> None:
    from profiles import SHAPE

    found = joined(timing({64: 10.0}, shape=SHAPE))
    assert len(found.timed) == 1
    assert any(
        "Mass is of made-up (3 query / 1 KV heads of 64, fp32), times are of toy" in n for n in found.notes
    )
    assert not any("another model" in note for note in joined(timing({64: 10.0})).notes)


def test_the_fastest_page_size_at_equal_mass_is_said() -> None:
    """Both page sizes keep 0.95 at 128; pages of 8 take 25 us there, pages of 16 20 us."""
    records = [
        quest(256, (us / 4, us / 4, us / 2), budget=128, page_size=s, shape=MODEL)
        for s, us in ((8, 25), (16, 20))
    ]
    found = joined(
        profile(dense(256, DENSE_US, shape=MODEL), dense(256, DENSE_US, shape=MODEL, page_size=8), *records),
        planted=replace(Planted(), page_sizes=(8, 16)),
    )
    said = next(line for line in equal_sentences(found) if line.startswith("At 95%"))
    assert f"quest on {GPU.device_name}: 2.00x the fastest dense attention in pages of 16" in said
    assert "(1.60x in pages of 8)" in said


def test_without_times_nothing_is_said() -> None:
    assert joined() == Joined()
    assert joined(Planted().profile()) == Joined()


def test_times_that_are_no_evidence_are_not_joined() -> None:
    """Without a dense baseline there is no speed-up."""
    found = joined(profile(quest(256, (5.0, 5.0, 10.0), budget=64, shape=MODEL)))
    assert (found.timed, found.equal) == ((), ())
    assert found.notes == (NOT_USABLE,)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6, unique=True), st.floats(0.01, 1))
def test_the_crossing_lies_where_the_curve_has_the_mass(masses: list[float], wanted: float) -> None:
    """On rising curves the budget found lies between measured ones, and the curve has the mass there."""
    curve = {float(32 << i): mass for i, mass in enumerate(sorted(masses))}
    at = crossing(curve, wanted)
    if not min(masses) * (1 - 1e-9) <= wanted <= max(masses) * (1 + 1e-9):
        assert at is None
        return
    assert at is not None
    below = max(b for b in curve if b <= at * (1 + 1e-12))
    above = min(b for b in curve if b >= at * (1 - 1e-12))
    assert curve[below] - 1e-9 <= wanted <= curve[above] + 1e-9


def test_points_that_are_no_evidence_are_named() -> None:
    """One of two points is unstable."""
    from msgspec.structs import replace as changed

    made = timing({64: 10.0, 128: 20.0})
    records = [changed(r, status="unstable") if r.point.token_budget == 128 else r for r in made.records]
    found = joined(changed(made, records=tuple(records)))
    assert [one.token_budget for one in found.timed] == [64]
    assert any(note.startswith("1 timed point is left out as no evidence") for note in found.notes)
    assert any("page 16 budget 128 quest" in note for note in found.notes)


def test_times_of_two_runs_are_not_interpolated_between() -> None:
    """Budgets 64 and 128 in one run, and both again in a slower one: each run has its own figure."""
    fast, slow_run = timing({64: 10.0, 128: 20.0}), timing({64: 20.0, 128: 40.0})
    by_run = [one.quest_us for one in joined(fast, slow_run).equal if one.mass == 0.95]
    assert by_run == pytest.approx([20.0, 40.0])
    lone = profile(quest(256, (5.0, 5.0, 10.0), budget=128, shape=MODEL))
    (merged,) = merge_profiles([timing({64: 10.0}), lone])
    assert [one.token_budget for one in joined(merged).timed] == [64]  # the other has no dense of its run


def test_times_of_a_cache_are_called_warm() -> None:
    found = timing({64: 10.0})
    warm = [
        changed(r, timing={name: changed(one, cache_state="warm") for name, one in r.timing.items()})
        for r in found.records
    ]
    (note,) = joined(changed(found, records=tuple(warm))).notes
    assert note == "Warm, times of a cache and not of memory: page 16 budget 64 quest."

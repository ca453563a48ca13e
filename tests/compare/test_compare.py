"""Verdicts of whole comparisons: false alarms controlled, differences found, nothing compared silently."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from profiles import CPU, profile, quest
from questprof.compare.outcome import Outcome
from questprof.compare.pairs import across, within
from questprof.compare.spread import Spread, spread_of
from questprof.compare.verdicts import compare
from questprof.model import Ceiling, Check, Point, Profile, Record, Shape, StageTiming
from questprof.store import read_profile

GPU_RUNS = Spread(0.03)
US = (2.0, 1.0, 5.0)
RECORDED = json.loads(Path(__file__).parents[1].joinpath("data", "cpu_repeats.json").read_text())


def record(
    seq_len: int, times: dict[str, Sequence[float]], *, loop: str = "loop", cold: str = "cold", **more: Any
) -> Record:
    """A record with these samples; `backend` and the record's own fields in `more`."""
    plain = quest(seq_len, US, backend=more.pop("backend", "questprof"))
    timing = {stage: StageTiming(1, 8, 1 << 30, cold, loop, "fixed") for stage in times}  # type: ignore[arg-type]
    samples = {stage: tuple(values) for stage, values in times.items()}
    return replace(plain, times_us=samples, timing=timing, **more)


def _noisy(rng: np.random.Generator, us: float, size: int = 20, noise: float = 0.01) -> list[float]:
    found: list[float] = (us * rng.normal(1, noise, size)).tolist()
    return found


def _family(seed: int, ratios: Sequence[float]) -> Outcome:
    """One run that times `base` and `new` in turn: a point for each ratio, five stages each."""
    rng = np.random.default_rng(seed)
    records = []
    for number, ratio in enumerate(ratios, start=1):
        for name, factor in (("base", 1.0), ("new", ratio)):
            times = {
                stage: _noisy(rng, 50 * factor) for stage in ("score", "select", "attend", "append", "quest")
            }
            records.append(record(number * 1024, times, backend=name))
    return compare(within(profile(*records), "base", "new"), GPU_RUNS)


def test_equal_code_raises_an_alarm_in_at_most_five_percent_of_comparisons() -> None:
    """100 comparisons of 40 stages: with 95 % for each stage alone, most of them would raise one."""
    outcomes = [_family(seed, [1.02] * 8) for seed in range(100)]  # exactly at the threshold: the worst case
    assert sum(outcome.verdict == "slower" for outcome in outcomes) <= 5
    assert all(one.verdict != "faster" for outcome in outcomes for one in outcome.comparisons)


def _bursts(rng: np.random.Generator, rho: float, shape: tuple[int, int]) -> np.ndarray:
    """Standard normal rounds, each like the one before: autocorrelation rho ** lag, a row a stage."""
    found = rng.normal(0, 1, shape)
    for i in range(1, shape[1]):
        found[:, i] = rho * found[:, i - 1] + np.sqrt(1 - rho**2) * found[:, i]
    return found


def _bursty_family(
    seed: int, likeness: Callable[[int, int], float], ratio: float, rounds: int = 20
) -> Outcome:
    """One run of 8 points (1 to 8) with five stages (0 to 4), whose rounds have `likeness(point, stage)`."""
    rng, records, stages = np.random.default_rng(seed), [], ("score", "select", "attend", "append", "quest")
    for number in range(1, 9):
        rows = [_bursts(rng, likeness(number, i), (2, rounds)) for i in range(5)]
        for side, (name, factor) in enumerate((("base", 1.0), ("new", ratio))):
            times = {
                s: (50 * factor * 1.01 ** row[side]).tolist() for s, row in zip(stages, rows, strict=True)
            }
            records.append(record(number * 1024, times, backend=name, loop=f"loop {number}"))
    return compare(within(profile(*records), "base", "new"), GPU_RUNS)


LIKENESSES: dict[str, Callable[[int, int], float]] = {
    "independent": lambda point, stage: 0.0,
    "0.3": lambda point, stage: 0.3,
    "0.6": lambda point, stage: 0.6,
    "0.9": lambda point, stage: 0.9,
    "0.9 in one stage": lambda point, stage: 0.9 * (stage == 4),
    "0.9 in one loop": lambda point, stage: 0.9 * (point == 8),
    "0.9 in one stage of one loop": lambda point, stage: 0.9 * (point == 8 and stage == 4),
}


def _calls(outcome: Outcome) -> bool:
    return any(one.verdict in ("faster", "slower") for one in outcome.comparisons)


@pytest.mark.parametrize("likeness", LIKENESSES.values(), ids=LIKENESSES)
def test_rounds_like_the_ones_before_raise_no_alarms(likeness: Callable[[int, int], float]) -> None:
    """60 comparisons of 40 stages of equal code, at the threshold: at most 5 % may call any of them.

    A neighbour that comes and stays slows one side's rounds in a row, everywhere or in a part.
    """
    outcomes = [_bursty_family(seed, likeness, 1.02) for seed in range(60)]
    assert sum(map(_calls, outcomes)) <= 0.05 * len(outcomes)


def test_without_the_guard_such_rounds_cry_wolf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("questprof.compare.verdicts.likenesses", lambda every: [0.0] * len(every))
    outcomes = [_bursty_family(seed, LIKENESSES["0.9"], 1.02) for seed in range(10)]
    assert sum(map(_calls, outcomes)) >= 8


def _found(ratio: float, rounds: int) -> float:
    """Share of stages called slower in 10 families of independent rounds."""
    families = [_bursty_family(seed, LIKENESSES["independent"], ratio, rounds) for seed in range(10)]
    verdicts = [one.verdict for outcome in families for one in outcome.comparisons]
    assert "faster" not in verdicts
    return verdicts.count("slower") / len(verdicts)


@pytest.mark.parametrize(("ratio", "rounds", "kept"), [(1.06, 20, 0.99), (1.04, 30, 0.98), (1.04, 20, 0.8)])
def test_the_guard_leaves_independent_rounds_their_power(
    ratio: float, rounds: int, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of twice the threshold in 20 rounds of 1.4 % noise is hard to see, not in 30."""
    guarded = _found(ratio, rounds)
    monkeypatch.setattr("questprof.compare.verdicts.likenesses", lambda every: [0.0] * len(every))
    unguarded = _found(ratio, rounds)
    assert unguarded > 0.9
    assert guarded >= kept * unguarded


def test_what_is_found_in_few_independent_rounds_is_said() -> None:
    outcome = _bursty_family(0, LIKENESSES["0.9"], 1.05)
    assert outcome.verdict == "undecided"
    assert max(one.independent or 99.0 for one in outcome.comparisons) < 6
    whys = [one.why for one in outcome.comparisons]
    assert any(why.startswith("not beyond chance among 40 comparisons (p = ") for why in whys)
    assert any(": its 20 rounds count as " in why for why in whys)
    same = _bursty_family(0, LIKENESSES["0.9"], 1.0).comparisons
    assert any(one.why.startswith("too few to call it the same, its 20 rounds count as 1 ") for one in same)


def test_points_that_stand_for_several_are_named_and_leave_it_undecided() -> None:
    samples = {"score": [9.0] * 20}
    twins = [record(4096, samples) for _ in range(2)]
    twins = [
        replace(r, point=replace(r.point, shape=replace(r.point.shape, kv_dtype=dtype)))
        for r, dtype in zip(twins, ("fp32", "bf16"), strict=True)
    ]
    outcome = compare(across(profile(*twins), profile(record(4096, samples)), force=True), GPU_RUNS)
    assert (outcome.verdict, outcome.comparisons) == ("undecided", ())
    assert [one.point.shape.kv_dtype for one in outcome.skipped] == ["fp32", "bf16"]
    assert outcome.skipped[0].why.startswith("base has 2 and new has 1 that match but for")


def test_equal_code_is_the_same() -> None:
    outcome = _family(0, [1.0] * 4)
    assert outcome.verdict == "same"
    assert {one.verdict for one in outcome.comparisons} == {"same"}
    assert outcome.exit_status() == 0
    assert outcome.spread is None


@pytest.mark.parametrize(("ratio", "verdict", "status"), [(1.1, "slower", 1), (0.9, "faster", 0)])
def test_one_changed_point_is_found(ratio: float, verdict: str, status: int) -> None:
    outcome = _family(1, [1.0, ratio, 1.0])
    assert outcome.verdict == verdict
    assert outcome.exit_status() == status
    changed = {one.point.seq_len for one in outcome.comparisons if one.verdict == verdict}
    assert changed == {2048}


def test_chance_among_many_is_undecided() -> None:
    """13 of 13 rounds slower, one wildly, is p = 4 / 8192; among 100 stages Holm asks for 5 % / 100."""
    rng = np.random.default_rng(5)
    records = []
    for number in range(1, 101):
        base = _noisy(rng, 50, 13, 0.001)
        factors = [1.03] * 12 + [2.0] if number == 1 else rng.normal(1, 0.001, 13).tolist()
        new = [us * factor for us, factor in zip(base, factors, strict=True)]
        records += [record(1024 * number, {"score": base}, backend="base")]
        records += [record(1024 * number, {"score": new}, backend="new")]
    first = compare(within(profile(*records), "base", "new"), GPU_RUNS).comparisons[0]
    assert first.verdict == "undecided"
    assert "not beyond chance among 100" in first.why
    alone = compare(within(profile(*records[:2]), "base", "new"), GPU_RUNS)
    assert alone.verdict == "slower"


def _two_runs(base: Record, new: Record, spread: Spread = GPU_RUNS, **options: Any) -> Outcome:
    return compare(across(profile(base), profile(new)), spread, **options)


def test_two_runs_differ_only_beyond_their_spread() -> None:
    rng = np.random.default_rng(6)
    base = record(4096, {"score": _noisy(rng, 50, 30, 0.002)})
    cases = ((1.0, "same"), (1.01, "same"), (1.025, "within spread"), (1.06, "slower"), (0.94, "faster"))
    for factor, verdict in cases:
        new = record(4096, {"score": _noisy(rng, 50 * factor, 30, 0.002)})
        outcome = _two_runs(base, new)
        assert outcome.verdict == verdict
        assert outcome.spread == GPU_RUNS
        assert not outcome.comparisons[0].paired
        wider = _two_runs(base, new, Spread(0.1))
        assert wider.verdict == ("same" if verdict == "same" else "within spread")
        assert wider.exit_status() == 0
        assert _two_runs(base, new, Spread(0.1), threshold=0.1).verdict == "same"


def test_loops_apart_in_one_run_are_not_paired() -> None:
    rng = np.random.default_rng(7)
    samples = _noisy(rng, 50)
    sides = [record(4096, {"score": samples}, backend=b, loop=b) for b in ("base", "new")]
    outcome = compare(within(profile(*sides), "base", "new"), GPU_RUNS)
    assert not outcome.comparisons[0].paired
    short = [sides[0], record(4096, {"score": samples[:-1]}, backend="new", loop="base")]
    assert not compare(within(profile(*short), "base", "new"), GPU_RUNS).comparisons[0].paired


def test_the_loops_own_read_vouches_for_the_machine() -> None:
    """Everything 1.3x as long, the streaming read too: the machine was busy, the code is the same."""

    def read(gb_s: float) -> tuple[Ceiling, ...]:
        return (Ceiling("one stream", 1 << 30, (gb_s,) * 12),)

    base = record(4096, {"score": [100.0 + i / 10 for i in range(20)]}, calibration=read(1000.0))
    slow = [130.0 + i / 10 for i in range(20)]
    busy = _two_runs(base, record(4096, {"score": slow}, calibration=read(770.0)))
    assert busy.verdict == "undecided"
    assert "1.30x as long" in busy.comparisons[0].why
    code = _two_runs(base, record(4096, {"score": slow}, calibration=read(1000.0)))
    assert code.verdict == "slower"


def test_what_is_no_evidence_is_never_compared_silently() -> None:
    good = record(4096, {"score": [10.0] * 20})
    unstable = replace(good, status="unstable", reason="clocks fell")
    outcome = _two_runs(good, unstable)
    assert outcome.verdict == "undecided"
    assert outcome.comparisons[0].why == "unstable: clocks fell"
    warm = record(4096, {"score": [10.0] * 20}, cold="warm")
    assert _two_runs(good, warm).comparisons[0].why == "base is cold, new is warm"
    assert _two_runs(warm, warm).comparisons[0].cache_state == "warm"
    lost = _two_runs(good, replace(good, status="oom", reason="needs 9 GiB", times_us={}))
    assert (lost.verdict, lost.exit_status()) == ("undecided", 4)
    assert lost.skipped[0].why == "new oom: needs 9 GiB"
    both = _two_runs(replace(good, status="oom"), replace(good, status="oom"))
    assert both.skipped[0].why == "base oom; new oom"
    no_time = _two_runs(record(4096, {"score": [0.0] * 20}), good)
    assert "no time" in no_time.skipped[0].why


def test_a_point_that_turned_wrong_fails_however_fast_it_is() -> None:
    good = record(4096, {"score": [10.0] * 20})
    wrong = replace(good, checks=(Check("score", "after", 3.0, 1.0),), times_us={"score": (1.0,) * 20})
    outcome = _two_runs(good, wrong)
    assert outcome.comparisons == ()
    assert (outcome.verdict, outcome.exit_status()) == ("wrong", 1)
    assert _two_runs(good, replace(good, status="wrong")).exit_status() == 1
    assert _two_runs(wrong, good).exit_status() == 4  # the base is no figure: nothing is known


def test_exit_status_of_undecided_can_be_chosen() -> None:
    few = record(4096, {"score": [10.0] * 3})
    outcome = _two_runs(few, few)
    assert [outcome.exit_status(), outcome.exit_status(0), outcome.exit_status(1)] == [4, 0, 1]


def test_what_new_has_lost_leaves_it_undecided() -> None:
    both, old = {"score": [9.0] * 20}, {"score": [9.0] * 20, "old": [1.0] * 20}
    outcome = _two_runs(record(4096, old), record(4096, both))
    assert [one.stage for one in outcome.comparisons] == ["score"]
    assert [(one.why, one.counts_as) for one in outcome.skipped] == [("new lacks old", "undecided")]
    assert (outcome.verdict, outcome.exit_status()) == ("undecided", 4)
    assert _two_runs(record(4096, both), record(4096, old)).verdict == "same"
    points = compare(
        across(profile(record(4096, both), record(8192, both)), profile(record(4096, both))), GPU_RUNS
    )
    assert [(one.point.seq_len, one.counts_as) for one in points.skipped] == [(8192, "undecided")]
    assert points.verdict == "undecided"


def _recorded_runs(kept: dict[str, Any]) -> list[Profile]:
    """Repeated small sweeps of one code on a CPU that other work shared, as recorded."""
    points = [Point(**{**point, "shape": Shape(**point["shape"])}) for point in kept["points"]]
    runs = []
    for run in kept["runs"]:
        records = []
        for point, times in zip(points, run["times_us"], strict=True):
            reads = (Ceiling("read", 1 << 30, tuple(run["reads_gb_s"][str(point.seq_len)])),)
            made = record(point.seq_len, times, loop=str(point.seq_len), calibration=reads)
            records.append(replace(made, point=point, point_id=point.point_id, env_id=CPU.env_id))
        runs.append(profile(*records, env=CPU))
    return runs


def _points_called(outcome: Outcome) -> tuple[int, int]:
    """How many points were compared, and how many of them any stage calls different."""
    different = (one for one in outcome.comparisons if one.verdict in ("faster", "slower"))
    return (
        len({one.point.point_id for one in outcome.comparisons}),
        len({one.point.point_id for one in different}),
    )


def test_repeated_cpu_runs_are_never_called_slower() -> None:
    """Every ordered pair of the recorded runs: at most 5 % of points called different, none slower."""
    runs = _recorded_runs(RECORDED)
    assert len(runs) >= 20
    outcomes = [compare(across(one, other), spread_of([one])) for one, other in permutations(runs, 2)]
    assert {outcome.verdict for outcome in outcomes} <= {"same", "within spread", "undecided"}
    points, called = map(sum, zip(*map(_points_called, outcomes), strict=True))
    assert points == len(outcomes) * 8
    assert called <= 0.05 * points


def test_equal_code_in_one_cpu_loop_is_never_called_slower() -> None:
    """Two names of one stage set, timed in turn: at most 5 % of points called different, either way round."""
    runs = _recorded_runs(RECORDED["interleaved"])
    outcomes = [
        compare(within(run, *names), spread_of([run]))
        for run in runs
        for names in permutations(("base", "new"))
    ]
    assert all(one.paired for outcome in outcomes for one in outcome.comparisons)
    assert {outcome.verdict for outcome in outcomes} <= {"same", "undecided"}
    points, called = map(sum, zip(*map(_points_called, outcomes), strict=True))
    assert called <= 0.05 * points


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_large_change_shows_through_the_recorded_noise(factor: float) -> None:
    """The same runs, one side's samples scaled: some of the quiet pairs must find it, none its opposite."""
    runs = _recorded_runs(RECORDED)
    verdicts = []
    for base, new in pairwise(runs):
        changed = [
            replace(r, times_us={s: tuple(factor * us for us in v) for s, v in r.times_us.items()})
            for r in new.records
        ]
        found = compare(across(base, replace(new, records=tuple(changed))), spread_of([base]))
        verdicts += [one.verdict for one in found.comparisons]
    wanted, opposite = ("slower", "faster") if factor > 1 else ("faster", "slower")
    assert verdicts.count(wanted) > 0.1 * len(verdicts)
    assert opposite not in verdicts


H200 = Path(__file__).parents[2] / "profiles" / "h200"


def test_two_runs_of_one_grid_on_an_h200_are_the_same() -> None:
    """The kept pair: 95 % of medians of 10 us and more within 2 %, no stage called faster or slower.

    Stages of 10 us and more are the same but for at most one in 20; what is not is within the spread, which
    fails nothing.
    """
    one, other = (read_profile(H200 / name) for name in ("grid.jsonl", "grid-again.jsonl"))
    for base, new in ((one, other), (other, one)):
        outcome = compare(across(base, new), spread_of([base]))
        found = outcome.comparisons
        long = [c.ratio for c in found if c.base_us >= 10]
        assert len(long) > 150
        assert sum(1 / 1.02 <= ratio <= 1.02 for ratio in long) >= 0.95 * len(long)
        assert {c.verdict for c in found} <= {"same", "within spread"}
        assert sum(c.verdict == "same" for c in found if c.base_us >= 10) >= 0.95 * len(long)
        assert (outcome.verdict, outcome.exit_status()) == ("within spread", 0)
        short = [c for c in found if c.verdict == "within spread"]
        assert all(c.why.startswith("within the spread between runs, 3% + 0.5 us (") for c in short)


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.2, 1 / 1.2])
def test_no_planted_change_of_a_recorded_run_is_called_the_same(factor: float) -> None:
    """Every stage of a kept run `factor` times as long: short ones are within the spread, never the same."""
    kept = read_profile(H200 / "kernels.jsonl")
    changed = [
        replace(r, times_us={s: tuple(factor * us for us in v) for s, v in r.times_us.items()})
        for r in kept.records
    ]
    outcome = compare(across(kept, replace(kept, records=tuple(changed))), spread_of([kept]))
    wanted = "slower" if factor > 1 else "faster"
    found = {c.verdict for c in outcome.comparisons}
    assert {wanted, "within spread"} <= found <= {wanted, "within spread", "undecided"}
    for one in outcome.comparisons:
        assert one.margin == pytest.approx(0.03 + 0.5 / one.base_us)
        if one.verdict == "within spread":
            assert f"3% + 0.5 us ({100 * one.margin:.2g}%)" in one.why
            assert abs(one.ratio - 1) < one.margin

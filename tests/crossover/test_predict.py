"""predict.py: fits worked by hand, the crossover they model, and how far it is from the measured one."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import questprof
from profiles import READ_1000, dense, profile, quest
from questprof.crossover import predict as predict_module
from questprof.crossover.crossing import crossover
from questprof.crossover.predict import cross_validate, fit, predict, why_not
from questprof.model import Ceiling
from questprof.rows import Row
from questprof.scan import scan_rows, series

KEPT = Path(__file__).parents[2] / "profiles"
LENGTHS = (8192, 16384, 32768)


def line_rows(
    *,
    fixed: tuple[float, float, float, float] = (2.0, 1.0, 3.0, 4.0),
    rate_gb_s: float = 500.0,
    lengths: tuple[int, ...] = LENGTHS,
    budgets: tuple[int, ...] = (1024,),
    scale: float = 1.0,
    **header,
) -> tuple[Row, ...]:
    """Rows on straight lines: fixed (dense, score, select, attend) us and bytes at `rate_gb_s`.

    The toy shape reads 512 bytes a token, a 16th of them for the summary. Select takes its fixed cost.
    """
    records = []
    for length in lengths:
        us = fixed[0] + 512 * length / rate_gb_s / 1e3
        records.append(dense(length, scale * us))
        for budget in budgets:
            score = fixed[1] + 32 * length / rate_gb_s / 1e3
            attend = fixed[3] + 512 * min(budget, length) / rate_gb_s / 1e3
            records.append(quest(length, (scale * score, scale * fixed[2], scale * attend), budget=budget))
    return scan_rows(profile(*records, **header))


def test_fits_worked_by_hand():
    """Score at 8k: 262144 bytes in 1 + 0.524288 us; at 32k 1048576 in 1 + 2.097152: 786432 bytes in 1.572864.

    That is 500 GB/s and 1 us. Attend is of one size at one budget: 524288 bytes in 4 + 1.048576 us, so the
    ceiling of 1000 GB/s is its rate, and 5.048576 - 0.524288 = 4.524288 us its fixed cost.
    """
    model = fit(line_rows())
    score, select, attend = model.stages
    assert (score.stage, score.rate_from, score.num_points) == ("score", "fit", 3)
    assert (score.fixed_us, score.rate_gb_s) == (pytest.approx(1.0), pytest.approx(500.0))
    assert (model.dense.fixed_us, model.dense.rate_gb_s) == (pytest.approx(2.0), pytest.approx(500.0))
    assert select.fixed_us == pytest.approx(3.0)
    assert (attend.rate_from, attend.rate_gb_s) == ("ceiling", pytest.approx(1000.0))
    assert attend.fixed_us == pytest.approx(4.524288)
    assert model.chain_us == pytest.approx(0.0, abs=1e-9)
    assert model.fixed_us == pytest.approx(1.0 + 3.0 + 4.524288)


def test_the_crossover_worked_by_hand():
    """Quest starts 1 + 3 + 5.048576 - 2 = 7.048576 us behind and gains (512 - 32) / 500000 us a token.

    7.048576 / 0.00096 = 7342.27 tokens: below the lengths measured, where Quest is always faster.
    """
    rows = line_rows()
    found = predict(fit(rows), 1024)
    assert (found.kind, found.where) == ("length", "below")
    assert found.seq_len == pytest.approx(7342.2667, abs=1e-3)
    assert crossover(series(rows)[0]).kind == "always"
    assert predict(fit(line_rows(lengths=(2048, 4096, 8192))), 1024).where == "inside"
    assert predict(fit(line_rows(lengths=(2048, 4096))), 1024).where == "above"


def test_model_and_measurement_agree_on_straight_lines():
    """Log interpolation between 7k and 8k is off by far less than the lengths are apart."""
    rows = line_rows(lengths=(4096, 7168, 8192, 32768))
    modelled, measured = predict(fit(rows), 1024).seq_len, crossover(series(rows)[0])
    assert measured.bracket == (7168, 8192)
    assert measured.seq_len == pytest.approx(modelled, rel=1e-3)


def test_every_budget_has_its_own_crossover_from_one_fit():
    """Two budgets fix attend's line: 4 us and 500 GB/s. Budget 4096 reads 2097152 bytes: 8.194304 us.

    (1 + 3 + 8.194304 - 2) / 0.00096 = 10619.07.
    """
    model = fit(line_rows(budgets=(1024, 4096)))
    attend = model.stages[2]
    assert (attend.rate_from, attend.fixed_us) == ("fit", pytest.approx(4.0))
    assert predict(model, 1024).seq_len == pytest.approx(7342.2667, abs=1e-2)
    assert predict(model, 4096).seq_len == pytest.approx(10619.0667, abs=1e-2)


def test_from_the_budget_on_never_and_trivial():
    cheap = fit(line_rows(fixed=(20.0, 1.0, 3.0, 4.0)))
    assert predict(cheap, 1024).kind == "always"
    assert predict(fit(line_rows()), 4096).kind == "trivial"


def slow_score(dense_fixed: float) -> tuple[Row, ...]:
    """Score takes twice what dense takes for the tokens, so that Quest only falls behind."""
    growth = {n: 512 * n / 5e5 for n in LENGTHS}
    records = [dense(n, dense_fixed + us) for n, us in growth.items()]
    return scan_rows(profile(*records, *(quest(n, (1 + 2 * us, 3.0, 5.0)) for n, us in growth.items())))


def test_dense_that_grows_slower_is_never_caught():
    """Quest starts 1 + 3 + 5 - 2 = 7 us behind; with dense at 49 us 40 us ahead, losing 512 / 5e5 a token.

    40 / 0.001024 = 39062.5.
    """
    assert predict(fit(slow_score(2.0)), 1024).kind == "never"
    found = predict(fit(slow_score(49.0)), 1024)
    assert (found.kind, found.seq_len, found.where) == ("until", pytest.approx(39062.5), "above")


def test_within_the_budget_every_page_is_read():
    model = fit(line_rows(budgets=(1024, 4096)))
    assert model.quest_us(512, 1024) == pytest.approx(8.0 + (512 + 32) * 512 / 5e5)
    assert model.quest_us(512, 1 << 62) == model.quest_us(512, 1024)
    assert model.dense_us(512) == pytest.approx(2.0 + 512 * 512 / 5e5)


def test_no_fit_is_faster_than_memory_and_no_cost_below_nothing():
    """Dense at 1000 GB/s with 2 us less than nothing: the line must go through 0 at the ceiling or slower."""
    model = fit(line_rows(fixed=(-2.0, 1.0, 3.0, 4.0)))
    assert model.dense.fixed_us == 0.0
    assert model.dense.rate_gb_s < 1000.0 * 1.001
    fast = Ceiling("streaming read", 1 << 30, (400.0,))
    assert fit(line_rows(ceilings=(fast,))) is None  # every figure is then an alarm
    bound = fit(line_rows(rate_gb_s=1000.0))
    assert bound.dense.rate_gb_s == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (line_rows(lengths=(8192,)), "a line needs two lengths with valid points"),
        (line_rows(ceilings=()), "no read ceiling was measured"),
        (scan_rows(profile(quest(8192, (1.0, 1.0, 1.0)))), "no point has valid times of dense and of every"),
    ],
)
def test_why_there_is_no_model(rows, why):
    assert fit(rows) is None
    assert why_not(rows).startswith(why)


def test_points_within_their_budget_are_fitted_only_without_others():
    """A shortcut of select where every page is picked must not bend the line of the rest."""
    records = [dense(2048, 10.0), quest(2048, (1.5, 0.5, 4.0), budget=4096)]
    for length in LENGTHS:
        us = 2.0 + 512 * length / 5e5
        records += [dense(length, us), quest(length, (2.0, 3.0, 6.0), budget=4096)]
    model = fit(scan_rows(profile(*records)))
    assert model.stages[1].fixed_us == pytest.approx(3.0)
    assert model.lengths == (2048, *LENGTHS)
    whole = [r for n in LENGTHS for r in (dense(n, n / 500), quest(n, (2.0, 1.0, n / 450), budget=n))]
    assert fit(scan_rows(profile(*whole))).stages[1].num_points == 3


def test_cross_validation_of_straight_lines_finds_no_error():
    found = cross_validate(line_rows(budgets=(1024, 2048)))
    assert found.num_lengths == 3
    assert (found.dense_worst, found.quest_worst) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert cross_validate(line_rows(lengths=LENGTHS[:2])) is None


def test_cross_validation_sees_a_bend():
    """Dense at 32k twice what its line says: the others then predict half of it."""
    records = [dense(n, (2.0 + 512 * n / 5e5) * (2 if n == 32768 else 1)) for n in LENGTHS]
    records += [quest(n, (1.0 + 32 * n / 5e5, 3.0, 5.0)) for n in LENGTHS]
    assert cross_validate(scan_rows(profile(*records))).dense_worst == pytest.approx(0.5)


def test_of_many_lengths_several_are_left_out_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 lengths, ten fits: the first leaves out the 1st, 11th and 21st; a bend is still seen."""
    lengths = tuple(range(4096, 4096 + 25 * 1024, 1024))
    left_out = []

    def noted(rows, without=()):
        left_out.append([lengths.index(length) for length in without])
        return fit(rows, without)

    monkeypatch.setattr(predict_module, "fit", noted)
    found = cross_validate(line_rows(lengths=lengths))
    assert (found.num_lengths, found.dense_worst) == (25, pytest.approx(0, abs=1e-9))
    assert left_out[0] == [0, 10, 20]
    assert left_out[9] == [9, 19]
    assert sorted(chain.from_iterable(left_out)) == list(range(25))
    bent = {lengths[12]: 2}
    records = [dense(n, (2.0 + 512 * n / 5e5) * bent.get(n, 1)) for n in lengths]
    records += [quest(n, (1.0 + 32 * n / 5e5, 3.0, 5.0)) for n in lengths]
    assert cross_validate(scan_rows(profile(*records))).dense_worst == pytest.approx(0.5)


@pytest.mark.parametrize("lengths", [(10**9, 10**9 + 1), (10**12, 10**12 + 64)], ids=str)
def test_sizes_that_floats_hardly_tell_apart_make_no_steep_line(lengths) -> None:
    """Their squares are the same number, and what divides the slope is 0."""
    model = fit(line_rows(lengths=lengths))
    assert model.dense.us(512 * lengths[0]) == pytest.approx(2.0 + 512 * lengths[0] / 5e5)


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.floats(0.1, 30.0)] * 4), st.floats(50.0, 900.0), st.floats(1.0, 20.0))
def test_lines_are_found_again_whatever_the_clock_s_unit(fixed, rate, scale):
    rows, scaled = (
        line_rows(fixed=fixed, rate_gb_s=rate, budgets=(1024, 4096), scale=by) for by in (1.0, scale)
    )
    model = fit(rows)
    assert model.dense.fixed_us == pytest.approx(fixed[0], rel=1e-6)
    assert model.stages[2].fixed_us == pytest.approx(fixed[3], rel=1e-6)
    one, other = predict(model, 1024), predict(fit(scaled), 1024)
    assert one.kind == other.kind
    assert (one.seq_len or 0) == pytest.approx(other.seq_len or 0, rel=1e-6)


@pytest.mark.parametrize("name", ["h200/first-kernels", "h200/kernels", "cpu/length-scan"])
def test_kept_profiles_are_modelled_to_a_few_percent_of_dense(name):
    rows = [row for row in scan_rows(questprof.load(KEPT / f"{name}.jsonl"))
            if row.point.summary_layout == "paired"]  # fmt: skip
    found = cross_validate(rows)
    assert found.dense_median < 0.02
    assert found.quest_median < 0.10


def test_the_modelled_crossover_of_a_kept_profile_is_near_the_measured_one():
    rows = scan_rows(questprof.load(KEPT / "h200/first-kernels.jsonl"))
    for one in series(rows)[:2]:
        measured = crossover(one)
        blind = fit(rows, without=measured.bracket)
        assert predict(fit(rows), one.token_budget).seq_len == pytest.approx(measured.seq_len, rel=0.08)
        assert predict(blind, one.token_budget).seq_len == pytest.approx(measured.seq_len, rel=0.08)


def test_a_ceiling_of_the_same_loop_counts():
    record = quest(8192, (4.0, 2.0, 6.0), calibration=(READ_1000,))
    records = [dense(8192, 36.0), record, dense(16384, 70.0), quest(16384, (5.0, 2.0, 6.0))]
    assert fit(scan_rows(profile(*records, ceilings=()))) is not None

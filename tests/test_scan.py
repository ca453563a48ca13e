"""scan.py and rows.py: figures worked by hand, and why a figure is missing."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import CPU, GQA_SHAPE, SHAPE, dense, profile, quest, two_baselines
from questprof.crossover.sentences import verdicts
from questprof.model import Ceiling, Check, Shape, SingleSteps, StageTiming
from questprof.rows import Row, summarise
from questprof.scan import EXTRA_STAGES, best_ceiling, scan_rows, series


def row_of(*records, **header) -> Row:
    (row,) = scan_rows(profile(*records, **header))
    return row


def test_one_row_worked_by_hand():
    """8k tokens of 512 bytes: dense reads 8192 x 512 = 4194304 bytes, at 1000 GB/s in 4.194304 us.

    Quest reads 1/16 of that for the summary (262144) and 1024 tokens (524288): 786432 bytes, 0.786432 us,
    3/16 of dense = 1/S + K/P = 1/16 + 64/512.
    """
    row = row_of(
        dense(8192, 40.0), dense(8192, 36.0, backend="sdpa"), quest(8192, (4.0, 2.0, 6.0), union_ratio=1.0)
    )
    assert (row.shape, row.batch_size, row.page_size, row.policy, row.data) == (
        "toy",
        1,
        16,
        "quest",
        "independent",
    )
    assert (row.seq_len, row.token_budget) == (8192, 1024)
    assert (row.dense_backend, row.dense_us) == ("sdpa", 36.0)
    assert {b.name: b.stat.median for b in row.baselines} == {"questprof": 40.0, "sdpa": 36.0}
    assert (row.score_us, row.select_us, row.attend_us, row.quest_us) == (4.0, 2.0, 6.0, 12.0)
    assert (row.append_us, row.append_kv_us) == (2.0, 1.5)
    assert row.speed_up == 3.0
    assert row.bytes_ratio == 3 / 16
    assert row.ceiling_gb_s == 1000.0
    assert row.floor_us == pytest.approx(
        {"dense": 4.194304, "score": 0.262144, "attend": 0.524288, "quest": 0.786432}
    )
    assert row.dense_x_floor == pytest.approx(36 / 4.194304)
    assert row.quest_x_floor == pytest.approx(12 / 0.786432)
    assert row.dense_spread_us == pytest.approx((0.92 * 36, 1.08 * 36))
    assert row.quest_spread_us == pytest.approx((0.92 * 12, 1.08 * 12))
    assert (row.check, row.check_ratio) == ("ok", 0.5)
    assert row.union_ratio == 1.0
    assert row.most_speed_up == 16 / 3
    assert (row.status, row.usable, row.trivial, row.alarms) == ("ok", True, False, ())
    assert row.missing == {"dense_x_read": "no streaming read was timed in its loop"}


def test_append_without_summary_comes_from_the_dense_record_of_the_same_kernels():
    times = {"dense": (40.0,), "append_kv": (1.25,)}
    own, other = (replace(dense(8192, 40.0, backend=name), times_us=times) for name in ("questprof", "sdpa"))
    record = quest(8192, (4.0, 2.0, 6.0))
    record = replace(record, times_us={k: v for k, v in record.times_us.items() if k != "append_kv"})
    assert row_of(own, record).append_kv_us == 1.25
    assert row_of(other, record).append_kv_us is None
    assert row_of(replace(own, status="oom"), record).missing["append_kv_us"] == "not timed"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((5.0,), (5.0, 5.0, 5.0, 1)),
        ((1.0, 3.0), (2.0, 1.2, 2.8, 2)),  # 1 + 0.1 x (3 - 1), 1 + 0.9 x (3 - 1)
        ((11.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0), (6.0, 2.0, 10.0, 11)),
    ],
)
def test_summary_worked_by_hand(samples, expected):
    stat = summarise(samples)
    assert (stat.median, stat.p10, stat.p90, stat.num_samples) == pytest.approx(expected)


@pytest.mark.parametrize("samples", [(), (0.0,), (1.0, -1.0), (1.0, math.nan), (math.inf,)])
def test_no_clock_reads_that(samples):
    assert summarise(samples) is None


@given(st.lists(st.floats(1e-3, 1e6), min_size=1))
def test_percentiles_are_ordered_and_within_the_samples(samples):
    stat = summarise(samples)
    assert min(samples) <= stat.p10 <= stat.median <= stat.p90 <= max(samples)


def test_the_ceiling_is_the_largest_median_not_the_largest_sample():
    ceilings = [Ceiling("a", 1, (10.0, 11.0, 99.0)), Ceiling("b", 1, (12.0, 12.0, 12.0)), Ceiling("c", 1, ())]
    assert best_ceiling(ceilings) == 12.0
    assert best_ceiling([]) is None


def test_calibration_in_the_same_loop_raises_the_ceiling():
    faster = Ceiling("reader", 1 << 28, (2000.0,))
    row = row_of(dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0), calibration=(faster,)))
    assert row.ceiling_gb_s == 2000.0
    assert row.floor_us["dense"] == pytest.approx(4.194304 / 2)


def test_dense_is_matched_on_what_a_dense_pass_depends_on():
    fits = quest(
        8192,
        (1.0, 1.0, 1.0),
        shape=replace(SHAPE, summary_dtype="fp32"),
        policy="quest-open",
        data="shared",
        variant="cuda",
        summary_layout="transposed",
        policy_params={"sinks": 4},
    )
    records = [
        dense(8192, 10.0),
        dense(8192, 9.0, page_size=32),
        dense(8192, 8.0, batch_size=2),
        dense(4096, 7.0),
        dense(8192, 6.0, shape=GQA_SHAPE),
        dense(8192, 5.0, env=CPU),
        dense(8192, 4.0, page_order="sequential"),
        replace(dense(8192, 3.0), kind="bytes"),
    ]
    assert row_of(*records, fits).dense_us == 10.0


def test_the_last_record_of_one_baseline_counts():
    row = row_of(dense(8192, 10.0), dense(8192, 20.0), quest(8192, (1.0, 1.0, 1.0)))
    assert row.dense_us == 20.0
    assert len(row.baselines) == 1


def test_a_variant_is_a_baseline_of_its_own():
    row = row_of(dense(8192, 10.0), dense(8192, 8.0, variant="cuda"), quest(8192, (1.0, 1.0, 1.0)))
    assert [b.name for b in row.baselines] == ["questprof", "questprof (cuda)"]
    assert row.dense_backend == "questprof (cuda)"


def test_without_a_dense_baseline_nothing_is_compared():
    row = row_of(quest(8192, (4.0, 2.0, 6.0)))
    assert (row.dense_us, row.dense_x_floor, row.speed_up, row.bytes_ratio) == (None, None, None, None)
    assert row.missing["dense_us"] == row.missing["speed_up"] == "no dense baseline at this point"
    assert row.quest_us == 12.0
    assert not row.usable


def test_a_refused_baseline_says_why_and_is_no_rival():
    absent = dense(8192, None, backend="flashinfer", status="unavailable", reason="not installed")
    row = row_of(absent, quest(8192, (4.0, 2.0, 6.0)))
    assert row.missing["dense_us"] == "no valid dense baseline (flashinfer unavailable: not installed)"
    assert row_of(absent, dense(8192, 24.0), quest(8192, (4.0, 2.0, 6.0))).speed_up == 2.0


def test_a_wrong_baseline_is_never_the_fastest():
    wrong = dense(8192, 1.0, backend="sdpa", checks=(Check("dense", "after", 3.0, 1.0),))
    row = row_of(wrong, dense(8192, 24.0), quest(8192, (4.0, 2.0, 6.0)))
    assert (row.dense_backend, row.speed_up, row.usable) == ("questprof", 2.0, True)
    assert row.baselines[0].status == "wrong"
    assert row.baselines[0].reason == "dense after timing: error 3 x its tolerance of 1"
    assert row.baselines[0].stat is None


def test_a_quest_point_that_is_wrong_shows_no_times():
    row = row_of(
        dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0), checks=(Check("attend", "before", 0.5, 0.1),))
    )
    assert (row.status, row.check, row.check_ratio) == ("wrong", "wrong", 5.0)
    assert (row.quest_us, row.score_us, row.speed_up, row.quest_spread_us) == (None, None, None, None)
    assert row.missing["quest_us"] == "wrong: attend before timing: error 5 x its tolerance of 0.1"
    assert row.dense_us == 40.0


@pytest.mark.parametrize(
    ("check", "ratio", "words"),
    [
        (Check("attend", "after", None, 0.1), math.inf, "NaN or infinity"),
        (Check("select", "after", 0.0, 0.0), 0.0, "error 0 x"),
        (Check("select", "after", 1.0, 0.0), math.inf, "error inf x"),
    ],
)
def test_checks_without_a_finite_ratio(check, ratio, words):
    row = row_of(quest(8192, (1.0, 1.0, 1.0), checks=(check,)))
    assert row.check_ratio == ratio
    assert row.check == ("ok" if ratio == 0 else "wrong")
    assert words in row.check_detail


def test_no_check_is_a_dash():
    row = row_of(dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0), checks=()))
    assert (row.check, row.check_ratio, row.check_detail) == ("-", None, "")


def test_a_point_out_of_memory_is_a_row_with_reasons():
    row = row_of(dense(8192, 40.0), quest(8192, None, status="oom", reason="needs 3 GiB, 2 GiB free"))
    assert (row.status, row.quest_us, row.speed_up) == ("oom", None, None)
    assert row.missing["score_us"] == row.missing["speed_up"] == "oom: needs 3 GiB, 2 GiB free"
    assert row.check == "-"


def test_unstable_points_are_shown_but_are_no_evidence():
    unstable = row_of(dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0), status="unstable"))
    assert (unstable.speed_up, unstable.usable) == (pytest.approx(40 / 12), False)
    shaky_dense = row_of(
        dense(8192, 50.0), dense(8192, 40.0, backend="sdpa", status="unstable"), quest(8192, (4.0, 2.0, 6.0))
    )
    assert (shaky_dense.dense_backend, shaky_dense.usable) == ("sdpa", False)


def test_without_a_ceiling_there_is_no_floor():
    row = row_of(dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0)), ceilings=())
    assert (row.ceiling_gb_s, row.floor_us, row.dense_x_floor, row.quest_x_floor) == (None, {}, None, None)
    assert row.missing["quest_x_floor"] == "no read ceiling was measured"
    assert row.speed_up == pytest.approx(40 / 12)


def test_faster_than_memory_raises_an_alarm_and_compares_nothing():
    """4194304 bytes in 4.0 us are 1048.6 GB/s, above 1.02 x 1000; in 4.2 us they are 998.6."""
    quest_record = quest(8192, (0.5, 0.5, 0.6))
    assert row_of(dense(8192, 4.2), quest_record).alarms == ()
    row = row_of(dense(8192, 4.0), quest_record)
    (alarm,) = row.alarms
    assert (
        "dense (questprof) at 8k: 1049 GB/s is above 1.02 x the measured read ceiling of 1000 GB/s" in alarm
    )
    assert (row.dense_us, row.speed_up, row.usable) == (4.0, None, False)
    assert row.missing["speed_up"] == "faster than memory can be, see alarms"


def test_the_alarm_starts_above_the_factor():
    """At 4.194304 / 1.02 = 4.1121 us the figure is 1020 GB/s exactly."""
    for us, alarmed in ((4.1125, False), (4.1115, True)):
        assert bool(row_of(dense(8192, us), quest(8192, (1.0, 1.0, 1.0))).alarms) is alarmed


def test_an_alarm_on_one_stage_names_it_and_its_label():
    record = quest(8192, (0.1, 1.0, 1.0))  # score: 262144 bytes in 0.1 us, 2621 GB/s
    warm = replace(record, timing={"score": StageTiming(1, 1, 100, "warm", "loop", "fixed")})
    row = row_of(dense(8192, 40.0), warm)
    assert row.impossible == ("score",)
    assert "score, budget 1024, at 8k: 2621 GB/s" in row.alarms[0]
    assert "labelled warm" in row.alarms[0]
    assert row.speed_up == pytest.approx(40 / 2.1)  # the chain itself is possible


def test_quest_faster_than_memory_is_compared_with_nothing():
    row = row_of(dense(8192, 40.0), quest(8192, (0.25, 0.1, 0.4)))  # 786432 bytes in 0.75 us: 1049 GB/s
    assert "quest" in row.impossible
    assert (row.speed_up, row.usable) == (None, False)


@pytest.mark.parametrize(
    ("more", "trivial"),
    [
        ({"budget": 8192}, True),
        ({"budget": 8176}, False),
        ({"seq_lens": (8192, 512)}, False),
        ({"seq_lens": (8192, 512), "token_budgets": (8192, 512)}, True),
    ],
)
def test_a_budget_of_the_whole_length_is_trivial(more, trivial):
    assert row_of(quest(8192, (1.0, 1.0, 1.0), **more)).trivial is trivial


def test_series_differ_in_length_alone_and_are_sorted():
    rows = scan_rows(profile(*reversed(two_baselines()), quest(2048, (1.0, 1.0, 1.0), seed=7)))
    found = series(rows)
    assert [(s.token_budget, len(s.rows)) for s in found] == [(1024, 5), (1024, 1), (4096, 5)]
    assert [row.seq_len for row in found[-1].rows] == [2048, 4096, 8192, 16384, 32768]
    assert sum(len(s.rows) for s in found) == len(rows) == 11


@pytest.mark.parametrize(
    "more",
    [{"batch_size": 2}, {"page_size": 32}, {"policy": "quest-open"}, {"data": "shared"}, {"variant": "cuda"}],
)
def test_series_part_at(more):
    rows = scan_rows(profile(quest(2048, (1.0, 1.0, 1.0)), quest(4096, (1.0, 1.0, 1.0), **more)))
    assert [len(s.rows) for s in series(rows)] == [1, 1]


def test_shapes_of_one_name_but_other_heads_part_too():
    other = Shape("toy", num_qo_heads=4, num_kv_heads=4, head_dim=64)
    rows = scan_rows(profile(quest(2048, (1.0, 1.0, 1.0)), quest(4096, (1.0, 1.0, 1.0), shape=other)))
    assert len(series(rows)) == 2


def test_other_kinds_and_policies_are_no_rows():
    oracle = replace(quest(8192, (1.0, 1.0, 1.0)), point=replace(quest(8192, None).point, policy="oracle"))
    bytes_record = replace(quest(8192, (1.0, 1.0, 1.0)), kind="bytes")
    assert scan_rows(profile(oracle, bytes_record, dense(8192, 1.0))) == ()


def test_rows_can_be_written_as_json():
    record = quest(8192, (1.0, 1.0, 1.0), checks=(Check("attend", "after", None, 0.1),))
    rows = scan_rows(profile(*two_baselines(), record, quest(65536, None, status="oom")))
    found = msgspec.json.decode(msgspec.json.encode(rows))
    assert [row["quest_us"] for row in found] == [row.quest_us for row in rows]
    assert found[0]["fastest"]["name"] == "sdpa"
    assert found[-1]["missing"]["quest_us"] == "oom"


def test_samples_far_apart_are_no_evidence():
    """Real samples of a CPU that other programs used: the median says 32.6x, the spread that it says nothing.

    Quest 255, 269, 8590: p10 = 255 + 0.2 x 14 = 257.8, p90 = 269 + 0.8 x 8321 = 6925.8, 27 times as much.
    """
    records = (
        replace(dense(8192, 1.0), times_us={"dense": (8763.0, 8937.0, 8923.0)}),
        replace(quest(8192, (4.0, 2.0, 6.0)), times_us={"quest": (255.0, 8590.0, 269.0)}),
    )
    (row,) = scan_rows(profile(*records))
    assert row.speed_up == pytest.approx(8923 / 269)
    assert (row.usable, row.unsteady) == (False, "Quest samples too far apart")
    assert verdicts(series([row]))[0].count("8k Quest samples too far apart") == 1


def test_two_samples_are_too_few_for_a_verdict():
    """However close: nothing says that the next would be as well."""
    records = (
        replace(dense(8192, 40.0), times_us={"dense": (40.0, 40.0)}),
        replace(quest(8192, (4.0, 2.0, 6.0)), times_us={"quest": (12.0, 12.0, 12.0)}),
    )
    (row,) = scan_rows(profile(*records))
    assert row.speed_up == pytest.approx(40 / 12)
    assert (row.usable, row.unsteady) == (False, "dense samples too few")
    assert "8k dense samples too few" in verdicts(series([row]))[0]


def test_dense_over_a_read_of_its_bytes_in_its_own_loop():
    """4194304 bytes: 5.24288 us at 800 GB/s, 4.194304 at 1000; each baseline over its own loop's rate."""
    slow, fast = (Ceiling("read", 1 << 22, (rate,) * 3) for rate in (800.0, 1000.0))
    row = row_of(
        dense(8192, 40.0, calibration=(slow,), variant="v1"),
        dense(8192, 36.0, backend="sdpa", calibration=(fast,)),
        dense(8192, 38.0, backend="flashinfer"),
        quest(8192, (4.0, 2.0, 6.0)),
    )
    assert [b.x_read for b in row.baselines] == [
        pytest.approx(40 / 5.24288),
        pytest.approx(36 / 4.194304),
        None,
    ]
    assert row.dense_x_read == pytest.approx(36 / 4.194304)
    assert row.most_speed_up == 1 / row.bytes_ratio
    only = row_of(dense(8192, 36.0), quest(8192, (4.0, 2.0, 6.0)))
    assert only.dense_x_read is None
    assert only.missing["dense_x_read"] == "no streaming read was timed in its loop"


def test_the_fastest_of_many_baselines_is_found_at_each_point():
    names = ("questprof", "triton", "sdpa", "sdpa-cudnn", "flashinfer", "flashinfer-tc")
    records = []
    for length, best in zip((2048, 4096, 8192), ("flashinfer", "sdpa-cudnn", "triton"), strict=True):
        records += [dense(length, 30.0 if name == best else 40.0, backend=name) for name in names]
        records.append(quest(length, (4.0, 2.0, 6.0), backend="triton"))
    rows = scan_rows(profile(*records))
    assert [row.dense_backend for row in rows] == ["flashinfer", "sdpa-cudnn", "triton"]
    assert all(len(row.baselines) == 6 and row.speed_up == 2.5 for row in rows)


def test_a_baseline_names_what_ran():
    refused = dense(8192, None, backend="fa3", status="unavailable")
    records = [replace(record, variant="v1") for record in (dense(8192, 40.0, backend="sdpa"), refused)]
    row = row_of(*records, quest(8192, (1.0, 1.0, 1.0)))
    assert [(b.name, b.variant) for b in row.baselines] == [("sdpa", "v1"), ("fa3", "v1")]


def test_a_layout_is_compared_with_the_dense_passes_of_its_own_loop():
    transposed = {"summary_layout": "transposed"}
    records = [dense(8192, 20.0), dense(8192, 30.0, **transposed)]
    rows = scan_rows(
        profile(*records, quest(8192, (2.0, 1.0, 2.0)), quest(8192, (2.0, 1.0, 2.0), **transposed))
    )
    assert [row.dense_us for row in rows] == [20.0, 30.0]
    assert len(series(rows)) == 2


def test_adversarial_keys_have_dense_passes_of_their_own():
    records = [dense(8192, 20.0), dense(8192, 30.0, data="ramp")]
    rows = scan_rows(
        profile(*records, *(quest(8192, (1.0, 1.0, 1.0), data=d) for d in ("shared", "ramp", "needle")))
    )
    assert [row.dense_us for row in rows] == [20.0, 30.0, None]


def test_extra_states_of_stages_are_in_the_stats():
    own = dense(8192, 20.0)
    own = replace(own, times_us={**own.times_us, "append_kv_prefill": (7.0,)})
    record = quest(8192, (1.0, 1.0, 1.0))
    record = replace(record, times_us={**record.times_us, "append_cold": (3.0,), "select_cold": (2.0,)})
    stats = row_of(own, record).stats
    found = {stage: stats[stage].median for stage in EXTRA_STAGES if stage in stats}
    assert found == {"append_kv_prefill": 7.0, "append_cold": 3.0, "select_cold": 2.0}


@pytest.mark.parametrize(
    ("launches", "count", "p95", "p99", "why"),
    [
        (1, 101, 96.0, 100.0, ""),  # of 1 to 101: ranks 0.95 x 100 and 0.99 x 100 from 0
        (1, 21, 20.0, None, "21 samples: p95 needs 20 and p99 100"),
        (1, 19, None, None, "19 samples: p95 needs 20 and p99 100"),
        (182, 101, None, None, "a sample is the mean of many steps"),
        (None, 101, None, None, "how many steps a sample holds is not recorded"),
    ],
)
def test_tails_come_from_single_steps_alone(launches, count, p95, p99, why):
    timing = StageTiming(launches, 1, 100, "cold", "loop", "fixed") if launches else None
    stat = summarise([float(i) for i in range(1, count + 1)], timing)
    assert (stat.p95, stat.p99, stat.no_tail) == (p95, p99, why)


def test_steps_timed_one_by_one_go_before_means_of_many():
    """Means of 1 to 101 us in a row; 100 steps of 11 to 110 us one by one: ranks 94.05 and 98.01 from 0."""
    many = StageTiming(182, 1, 100, "cold", "loop", "fixed")
    steps = SingleSteps(tuple(float(i) for i in range(11, 111)), 3, 100, "cold")
    samples = [float(i) for i in range(1, 102)]
    stat = summarise(samples, many, steps)
    assert (stat.median, stat.p50, stat.num_samples, stat.no_tail) == (51.0, 60.5, 101, "")
    assert (stat.p95, stat.p99) == (pytest.approx(105.05), pytest.approx(109.01))
    few = summarise(samples, many, replace(steps, samples_us=steps.samples_us[:30]))
    assert (few.p95, few.p99) == (pytest.approx(38.55), None)
    assert few.no_tail == "30 samples: p95 needs 20 and p99 100"
    broken = summarise(samples, many, replace(steps, samples_us=(0.0, 1.0)))
    assert (broken.p50, broken.p95, broken.no_tail) == (None, None, "a sample is the mean of many steps")
    assert summarise(samples, replace(many, launches_per_sample=1)).p50 is None  # the median is theirs


def test_samples_are_at_hand_and_in_no_document():
    row = row_of(dense(8192, 40.0), quest(8192, (4.0, 2.0, 6.0)))
    stat = row.stats["quest"]
    assert (stat.samples, stat.loop_id) == (pytest.approx((13.2, 10.8, 12.0)), "loop")
    assert set(msgspec.to_builtins(stat)) == {
        *("median", "p10", "p90", "num_samples"),
        *("p50", "p95", "p99", "no_tail"),
    }


def test_how_samples_are_labelled_is_in_the_row():
    record = quest(8192, (4.0, 2.0, 6.0))
    warm = replace(record, timing={"quest": StageTiming(1, 1, 100, "warm", "loop", "fixed")})
    row = row_of(dense(8192, 40.0), warm)
    assert (row.cache_states, row.warm) == ({"dense": "cold", "quest": "warm"}, ("quest",))


def test_budgets_of_the_length_itself_make_one_series():
    """Lengths 2k to 8k with budget 2k and with the length itself: 2k/2k is the first series' own."""
    records = [quest(n, (1.0, 1.0, 1.0), budget=2048) for n in (2048, 4096, 8192)]
    records += [quest(n, (1.0, 1.0, 1.0), budget=n) for n in (4096, 8192)]
    found = series(scan_rows(profile(*records)))
    assert [(s.budget_text, [row.seq_len for row in s.rows]) for s in found] == [
        ("2048", [2048, 4096, 8192]),
        ("all", [4096, 8192]),
    ]
    (alone,) = series(scan_rows(profile(quest(4096, (1.0, 1.0, 1.0), budget=4096))))
    assert alone.budget_text == "4096"

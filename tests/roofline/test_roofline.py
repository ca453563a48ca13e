"""Stages under roofs: every figure worked by hand from round ceilings, faults refused, gaps explained."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from profiles import CPU, GPU, GQA_SHAPE, READ_1000, SHAPE, dense, profile, quest
from questprof.counts import ByteCount, StageCount
from questprof.model import Ceiling, Check, Point, Record
from questprof.roofline.display import ROOF_NAMES
from questprof.roofline.finding import Roofline, as_document, roofline
from questprof.roofline.flops import stage_flops
from questprof.roofline.placing import Limits, place_text
from questprof.roofs import Bandwidth, FlopRate, Launch, MemoryBus, Roofs
from questprof.store import seal, unseal
from questprof.sweep.merge import merge_profiles

L2_2000 = Bandwidth("read", "reader", 1 << 19, (2000.0,))
FP16 = FlopRate("torch.matmul", "fp16", "tensor cores", "8192 x 8192 x 8192", 1, (100.0,))
FP32 = FlopRate("torch.matmul", "fp32", "CUDA cores", "4096 x 4096 x 4096", 1, (10.0,))
NODE = Launch("empty kernel, a node of a CUDA graph", 1000, (0.9, 1.0, 1.1), "graph node")
ROOFS = Roofs((L2_2000, Bandwidth("read", "reader", 1 << 30, (1000.0,))), (FP16, FP32), (NODE,))


def ledger(record: Record, **num_bytes: tuple[int, int]) -> Record:
    """`record` with the ledger's (read, write) of its stages."""
    return replace(record, bytes={stage: {"formula": ByteCount(*pair)} for stage, pair in num_bytes.items()})


def of(*records: Record, roofs: Roofs | None = ROOFS, **header: object) -> Roofline:
    return roofline(profile(*records, roofs=roofs, **header))


def line(found: Roofline, stage: str):
    (one,) = (one for one in found.lines if one.stage == stage)
    return one


def test_dense_worked_by_hand() -> None:
    """8192 tokens of 512 B: 4194304 B of K and V, 4 x 2 heads x 64 dims x 8192 = 4194304 operations.

    Memory at 1000 GB/s takes 4.194 us, the L2 at 2000 GB/s takes 2.1 for 4200000 B in all, fp16 at 100
    TFLOP/s 0.042, a launch 1. In 8.388608 us: 500 GB/s, half of the roof, bound by memory.
    """
    record = ledger(dense(8192, 8.388608), dense=(4_190_000, 10_000))
    one = line(of(record), "dense")
    memory, cache = one.at("memory"), one.at("cache")
    assert memory is not None
    assert cache is not None
    assert (one.flops, memory.num_bytes, cache.num_bytes) == (4194304, 4194304, 4_200_000)
    assert memory.intensity == 1.0
    assert memory.gb_s == pytest.approx(500)
    assert memory.gflop_s == pytest.approx(500)
    assert cache.intensity == pytest.approx(4194304 / 4_200_000)
    assert one.roof_us == pytest.approx(
        {"memory": 4.194304, "cache": 2.1, "compute": 0.04194304, "launch": 1.0}
    )
    assert (one.bound, one.roof_share, one.memory_share) == ("memory", pytest.approx(0.5), pytest.approx(0.5))


def test_the_roof_that_takes_longest_bounds() -> None:
    """1024 tokens: memory 0.52 us, launch 1. Select writes 400 kB: the L2 takes 0.2. A slow unit: compute."""
    small = ledger(dense(1024, 2.0), dense=(524_288, 0))
    assert line(of(small), "dense").bound == "launch"
    hot = ledger(quest(8192, (4.0, 2.0, 8.0)), select=(3_000_000, 1_000_000))
    assert line(of(hot), "select").bound == "cache"  # 4 MB over 2000 GB/s are 2 us
    slow = Roofs(ROOFS.bandwidths, (replace(FP16, samples_tflop_s=(0.001,)),), (NODE,))
    assert line(of(ledger(dense(1024, 600.0), dense=(524_288, 0)), roofs=slow), "dense").bound == "compute"


NAMES = ROOF_NAMES["cuda"]


def test_a_stage_far_below_its_nearest_roof_is_not_bound_by_it() -> None:
    """4.194304 us of DRAM in 8.39 us are half of the time; in 15.5 us they are 27 %."""
    half, far = (line(of(dense(8192, us)), "dense") for us in (8.388608, 15.5344592))
    assert (half.bound, half.roof_text(NAMES)) == ("memory", "bound by DRAM (50%)")
    assert (far.bound, far.nearest_roof, far.roof_text(NAMES)) == (None, "memory", "under DRAM (27%)")


def test_the_launch_roof_is_of_the_kind_that_stages_are_timed_as() -> None:
    """Whatever the order, and though an eager launch of nothing was clocked faster once."""
    eager = Launch("eager", 1000, (0.1,), "eager")
    call, stage = Launch("call", 200, (2.0,), "compiled call"), Launch("stage", 200, (9.0,), "stage call")
    assert of(roofs=Roofs(launches=(eager, NODE))).launch_us == 1.0
    assert of(roofs=Roofs(launches=(stage, call)), env=CPU).launch_us == 2.0
    assert of(roofs=Roofs(launches=(eager,))).launch_us is None
    old = [replace(one, kind="") for one in (stage, call)]
    assert of(roofs=Roofs(launches=tuple(old)), env=CPU).launch_us == 2.0


def test_a_dtype_without_a_measured_rate_has_no_compute_roof() -> None:
    limits = Limits(None, None, (FP16, FP32), None)
    assert (limits.gflop_s("fp16"), limits.gflop_s("fp32")) == (100e3, 10e3)
    assert limits.gflop_s("int8") is None
    assert limits.gflop_s("bf16") is None
    assert Limits(None, None, (replace(FP16, samples_tflop_s=(1.0,)), FP32), None).gflop_s("fp16") == 10e3


def test_hot_and_warm_stages_are_not_under_the_memory_roof() -> None:
    record = quest(8192, (4.0, 2.0, 8.0))
    timing = {name: replace(one, cache_state="warm") for name, one in record.timing.items()}
    one = line(of(ledger(replace(record, timing=timing), attend=(600_000, 0))), "attend")
    assert one.at("memory") is None
    assert one.memory_share is None
    assert one.at("cache") is not None


def test_every_stage_with_its_operations() -> None:
    record = ledger(quest(8192, (4.0, 2.0, 8.0)), append=(1000, 1000))
    found = of(dense(8192, 40.0), record)
    flops = stage_flops(record.point)
    assert {one.stage: one.flops for one in found.lines} == flops | {"append_kv": 0}
    assert [p.level for p in line(found, "append").placed] == ["cache"]
    assert line(found, "select").placed == ()


def test_above_a_roof_is_refused_with_a_text() -> None:
    """4194304 B in 4 us are 1049 GB/s, above 1.02 x 1000; in 4.12 us 1018 GB/s, within."""
    found = of(dense(8192, 4.0))
    assert line(found, "dense").placed == ()
    assert line(found, "dense").bound is None
    (refused,) = (one for one in as_document(found)["lines"] if one["stage"] == "dense")
    assert [refused[name] for name in ("bound", "nearest_roof", "roof_share", "memory_share")] == [None] * 4
    (alarm,) = found.alarms
    assert "dense (questprof) at 8k: 1049 GB/s (ledger) is above 1.02 x the memory roof of 1000 GB/s" in alarm
    assert "not drawn" in alarm
    assert of(dense(8192, 4.12)).alarms == ()
    cached = ledger(quest(8192, (4.0, 2.0, 8.0)), select=(5_000_000, 0))  # 2500 GB/s of 2000
    (alarm,) = of(cached).alarms
    assert "select (questprof) at 8k, budget 1k: 2500 GB/s" in alarm
    assert "the cache roof" in alarm


def test_dense_above_a_cpu_ceiling_is_a_fault_of_the_ceiling() -> None:
    (alarm,) = of(dense(8192, 4.0, env=CPU), env=CPU).alarms
    assert "fault of the ceiling" in alarm


def test_reads_of_the_timing_loop_raise_the_memory_roof() -> None:
    faster = replace(READ_1000, samples_gb_s=(1100.0,))
    found = of(dense(8192, 4.0, calibration=(faster,)))
    assert found.memory_gb_s == 1100
    assert found.alarms == ()


def counted(record: Record, *counts: StageCount, **point: object) -> Record:
    other = replace(record.point, **point)
    return Record("bytes", other, other.point_id, record.env_id, "ok", counts=counts)


def test_counters_give_a_second_mark() -> None:
    """Counted 8388608 B, twice the ledger's: half an operation a byte, 1000 GB/s in 8.388608 us."""
    record = dense(8192, 8.388608)
    count = StageCount("dense", "ncu", 8_388_608 - 1000, 1000, kernels=("dense",))
    bytes_record = counted(quest(8192, None), count, variant="cuda")
    second = line(of(record, bytes_record), "dense").at("memory", "ncu")
    assert second is not None
    assert (second.num_bytes, second.intensity) == (8_388_608, 0.5)
    assert second.gb_s == pytest.approx(1000)
    assert second.gflop_s == pytest.approx(500)


def test_counts_of_another_point_source_or_mode_are_no_mark() -> None:
    record = quest(8192, (4.0, 2.0, 8.0))
    good = StageCount("attend", "ncu", 600_000, 0)
    for other in (
        counted(record, good, seq_len=4096),
        counted(record, good, token_budget=2048),
        counted(record, replace(good, source="trace")),
        counted(record, replace(good, mode="pipelined")),
        replace(counted(record, good), status="wrong"),
    ):
        assert line(of(record, other), "attend").at("memory", "ncu") is None
    chain = counted(record, replace(good, stage="quest", mode="pipelined"))
    assert line(of(record, chain), "quest").at("memory", "ncu") is not None
    assert line(of(record, counted(record, good)), "attend").at("memory", "ncu") is not None


def test_counted_bytes_above_the_roof_are_refused_too() -> None:
    count = StageCount("dense", "ncu", 90_000_000, 0)
    (alarm,) = of(dense(8192, 8.4), counted(dense(8192, 1.0), count)).alarms
    assert "(ncu) is above" in alarm


def test_only_checked_points_are_placed() -> None:
    bad = Check("dense", "after", 3.0, 1.0)
    records = [dense(8192, 40.0, checks=(bad,)), dense(4096, 40.0, status="wrong"), dense(2048, None)]
    assert of(*records).lines == ()


def test_vendor_figures_stand_beside_and_enter_nothing() -> None:
    known = replace(GPU, device_name="NVIDIA H200")
    mine, theirs = of(dense(8192, 40.0)), of(dense(8192, 40.0, env=known), env=known)
    assert mine.vendor is None
    assert theirs.vendor is not None
    assert any("measured only" in note for note in mine.notes)
    assert not any("measured only" in note for note in theirs.notes)
    assert [one.roof_us for one in mine.lines] == [one.roof_us for one in theirs.lines]
    assert [rate.vendor_tflop_s for rate in theirs.rates] == [989, 67]
    assert theirs.rates[0].x_vendor == pytest.approx(100 / 989)


def test_a_mistaken_bus_width_is_noticed() -> None:
    """A memory that reads 1000 GB/s has no bus of 4096 bits x 900 MHz x 2 / 8 = 921.6 GB/s."""
    wrong = replace(ROOFS, memory_bus=MemoryBus(4096, 900))
    found = of(roofs=wrong)
    assert found.bus_gb_s == pytest.approx(921.6)
    assert any("bus width was mistaken" in note for note in found.notes)
    assert not any(
        "mistaken" in note for note in of(roofs=replace(ROOFS, memory_bus=MemoryBus(5120, 900))).notes
    )


def test_a_profile_without_roofs_still_has_its_memory_roof() -> None:
    found = of(dense(8192, 40.0), roofs=None)
    assert (found.memory_gb_s, found.cache_gb_s, found.launch_us, found.sizes) == (1000, None, None, ())
    assert set(line(found, "dense").roof_us) == {"memory"}
    assert any("no bandwidth by working set" in note for note in found.notes)
    nothing = roofline(profile(dense(8192, 40.0), ceilings=()))
    assert line(nothing, "dense").roof_us == {}
    assert line(nothing, "dense").bound is None
    assert any("no memory roof" in note for note in nothing.notes)


def test_what_could_not_be_measured_is_said() -> None:
    found = of(roofs=Roofs(absent=(("bf16 rate", "needs compute capability 8.0"),)))
    assert "bf16 rate: needs compute capability 8.0" in found.notes


def test_the_header_keeps_the_roofs_and_old_headers_have_none() -> None:
    header = profile(roofs=ROOFS).header
    assert msgspec.json.decode(unseal(seal(header).rstrip()), type=type(header)) == header
    assert b"roofs" not in seal(profile().header)


def test_the_document_names_the_bound_of_every_line() -> None:
    document = as_document(of(dense(8192, 8.388608)))
    (one,) = document["lines"]
    assert (one["bound"], one["nearest_roof"]) == ("memory", "memory")
    assert (one["roof_share"], one["memory_share"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert one["point"]["shape"]["name"] == SHAPE.name
    assert msgspec.json.encode(document)


def test_an_unknown_cache_is_said() -> None:
    blind = replace(GPU, last_level_cache_bytes=0)
    found = of(dense(8192, 40.0, env=blind), env=blind)
    assert found.cache_gb_s is None
    assert any("does not tell the size" in note for note in found.notes)
    assert found.sizes[0].served == "unknown"


def test_points_are_named_by_length_and_budget() -> None:
    assert place_text(Point(SHAPE, 8192, policy="dense")) == "8k"
    assert place_text(Point(SHAPE, 8192, token_budget=1024)) == "8k budget 1k"
    odd = Point(SHAPE, 8192, 32, 1024, 8, policy="quest-open", summary_layout="transposed", data="shared")
    wanted = "toy (fp16) 8k budget 1k batch 8 page 32 quest-open transposed shared"
    assert place_text(odd, with_shape=True) == wanted


def test_lines_name_the_shape_where_there_are_several() -> None:
    assert of(dense(8192, 40.0)).lines[0].where == "8k"
    found = of(dense(8192, 40.0), dense(8192, 40.0, shape=GQA_SHAPE))
    assert [one.where for one in found.lines] == ["toy (fp16) 8k", "toy-gqa (fp16) 8k"]


def test_stages_of_joined_runs_stand_under_the_memory_roof_of_their_own() -> None:
    """8388608 B in 10 us are 838.9 GB/s: 0.839 of 1000, and 0.932 of the 900 that the other run read."""
    roofed = ledger(dense(16384, 10.0), dense=(8_388_608, 0))
    other = ledger(dense(16384, 10.0, seed=1), dense=(8_388_608, 0))
    reads = [(Ceiling("read", 1 << 30, (gb_s,)),) for gb_s in (1000.0, 900.0)]
    first = profile(roofed, roofs=ROOFS, ceilings=reads[0])
    runs = [first, profile(other, ceilings=reads[1])]
    for order in (runs, runs[::-1]):
        (merged,) = merge_profiles(order)
        found = roofline(merged)
        shares = sorted(one.memory_share or 0 for one in found.lines if one.stage == "dense")
        assert shares == pytest.approx([0.8388608, 0.8388608 / 0.9])
        assert found.memory_gb_s == 1000.0

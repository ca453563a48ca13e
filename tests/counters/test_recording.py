"""The recorder on kernels whose accesses are known by hand, and its cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from questprof.backends import paged
from questprof.counters.recording import lean, recording
from questprof.counters.sectors import SectorLog, Span
from questprof.counters.trace_fill import fill
from questprof.counts import TensorCount
from questprof.model import Point, Shape
from questprof.policies import bind
from questprof.workload import make_cache, make_pool, make_query

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="records the interpreter; beside a GPU kernels are compiled"
)


def span(name: str, tensor: torch.Tensor) -> Span:
    return Span(name, tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def traced(launch: Callable[[], object], **tensors: torch.Tensor) -> dict[str, TensorCount]:
    log = SectorLog(span(name, tensor) for name, tensor in tensors.items())
    with recording(log):
        launch()
    return log.counts()


@triton.jit
def strided_kernel(x, y, stride, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y + lane, tl.load(x + lane * stride))


@pytest.mark.parametrize(
    ("stride", "sectors"),
    [(1, 4), (2, 8), (8, 32), (9, 32)],  # 32 lanes of 4 bytes: 8 to a sector, 4 to one, one each
)
def test_a_stride_spreads_the_lanes(stride: int, sectors: int) -> None:
    x, y = torch.zeros(32 * 9), torch.zeros(32)
    counts = traced(lambda: strided_kernel[(1,)](x, y, stride, N=32), x=x, y=y)
    assert counts == {"x": TensorCount(read=32 * sectors), "y": TensorCount(write=128)}


@triton.jit
def masked_kernel(x, y, count, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y + lane, tl.load(x + lane, mask=lane < count, other=0.0), mask=lane >= count)


def test_lanes_that_are_masked_off_are_not_accesses() -> None:
    x, y = torch.ones(64), torch.full((64,), 7.0)
    counts = traced(lambda: masked_kernel[(1,)](x, y, 17, N=64), x=x, y=y)
    # Lanes 0..16 are 68 bytes, three sectors; lanes 17..63 begin inside the third of eight.
    assert counts == {"x": TensorCount(read=96), "y": TensorCount(write=6 * 32)}
    assert y[:17].eq(7).all()
    assert y[17:].eq(0).all()


@triton.jit
def overlapping_kernel(x, y, N: tl.constexpr):
    lane = tl.arange(0, N)
    start = tl.program_id(0) * (N // 2)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + start + lane), axis=0))


def test_programs_that_overlap_repeat_each_other() -> None:
    x, y = torch.zeros(64), torch.zeros(3)
    counts = traced(lambda: overlapping_kernel[(3,)](x, y, N=32), x=x, y=y)
    # Each reads 4 sectors, half of them those of the one before: 8 in all, 12 visits. y lies in one.
    assert counts == {
        "x": TensorCount(read=256, repeat_read=128),
        "y": TensorCount(write=32, repeat_write=64),
    }


@triton.jit
def broadcast_kernel(x, y, ROWS: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, N)[None, :]
    tile = tl.load(x + row * 0 + lane)  # every row the same addresses
    once = tl.load(x)  # a scalar
    tl.store(y + row * N + lane, tile + once)


def test_broadcast_addresses_are_one_visit_and_the_scalar_a_repeat() -> None:
    x, y = torch.zeros(16), torch.zeros(64)
    counts = traced(lambda: broadcast_kernel[(1,)](x, y, ROWS=4, N=16), x=x, y=y)
    assert counts == {"x": TensorCount(read=64, repeat_read=32), "y": TensorCount(write=256)}


@triton.jit
def square_kernel(x, y, x_stride, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    tile = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    tl.store(y + column * ROWS + row, tile, mask=inside)


def test_two_axes_with_a_partial_tile() -> None:
    x, y = torch.zeros(8, 64, dtype=torch.float16), torch.zeros(32, 8, dtype=torch.float16)
    counts = traced(lambda: square_kernel[(1,)](x, y, 64, 5, 20, ROWS=8, COLUMNS=32), x=x, y=y)
    # 5 rows, 128 bytes apart, of 40 bytes: two sectors each. y: columns 0..19 of 16 bytes, two to a sector.
    assert counts == {"x": TensorCount(read=5 * 64), "y": TensorCount(write=10 * 32)}


@triton.jit
def looping_kernel(x, y, rounds, N: tl.constexpr):
    lane = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in range(rounds):
        total += tl.load(x + (i % 2) * N + lane)
    tl.store(y + lane, total)


def test_a_loop_repeats_what_it_reads_again() -> None:
    x, y = torch.zeros(32), torch.zeros(16)
    counts = traced(lambda: looping_kernel[(1,)](x, y, 5, N=16), x=x, y=y)
    # Five reads of two sectors: four of them new.
    assert counts["x"] == TensorCount(read=4 * 32, repeat_read=6 * 32)


@triton.jit
def narrow_kernel(x, y, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y + lane, tl.load(x + lane * 33).to(tl.int8))


def test_one_byte_costs_a_sector() -> None:
    x, y = torch.zeros(256, dtype=torch.int8), torch.zeros(4, dtype=torch.int8)
    counts = traced(lambda: narrow_kernel[(1,)](x, y, N=4), x=x, y=y)
    assert counts == {"x": TensorCount(read=128), "y": TensorCount(write=32)}


@triton.jit
def atomic_kernel(x, flags, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.atomic_add(x + lane, 1.0, mask=lane < 12)
    tl.atomic_cas(flags, 0, 1)
    tl.atomic_max(flags + 8, 5)


def test_atomics_read_and_write() -> None:
    x, flags = torch.zeros(32), torch.zeros(16, dtype=torch.int32)
    counts = traced(lambda: atomic_kernel[(2,)](x, flags, N=32), x=x, flags=flags)
    both = TensorCount(read=64, write=64, repeat_read=64, repeat_write=64)
    assert counts == {"x": both, "flags": both}
    assert x[:12].eq(2).all()
    assert not x[12:].any()


@triton.jit
def descriptor_kernel(x, y, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    target.store([2, 0], source.load([2, 0]))


def test_descriptors_end_at_the_tensor() -> None:
    x, y = torch.zeros(4, 16), torch.zeros(4, 16)
    counts = traced(lambda: descriptor_kernel[(1,)](x, y, 4, 16, ROWS=4, COLUMNS=16), x=x, y=y)
    # Of the tile's rows 2..5 the tensor has two, of 64 bytes.
    assert counts == {"x": TensorCount(read=128), "y": TensorCount(write=128)}


@triton.jit
def picking_kernel(x, y, offsets, there, N: tl.constexpr):
    lane = tl.arange(0, N)
    at = tl.load(offsets + tl.program_id(0) * N + lane)
    on = tl.load(there + tl.program_id(0) * N + lane) != 0
    tl.store(y + at, tl.load(x + at, mask=on, other=0.0), mask=on)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 199), st.booleans()), min_size=8, max_size=8),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_any_addresses_against_sets(programs: list[list[tuple[int, bool]]], dtype: torch.dtype) -> None:
    x, y = torch.zeros(200, dtype=dtype), torch.zeros(200, dtype=dtype)
    offsets = torch.tensor([[at for at, _ in lanes] for lanes in programs], dtype=torch.int32)
    there = torch.tensor([[int(on) for _, on in lanes] for lanes in programs], dtype=torch.int32)
    counts = traced(
        lambda: picking_kernel[(len(programs),)](x, y, offsets, there, N=8),
        x=x,
        y=y,
        offsets=offsets,
        there=there,
    )
    each = [{at * dtype.itemsize // 32 for at, on in lanes if on} for lanes in programs]
    distinct, visits = len(set().union(*each)), sum(map(len, each))
    expected = (32 * distinct, 32 * (visits - distinct))
    read, write = counts.get("x", TensorCount()), counts.get("y", TensorCount())
    assert (read.read, read.repeat_read) == expected
    assert (write.write, write.repeat_write) == expected


def test_kernels_are_named_and_the_interpreter_is_left_as_it_was() -> None:
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    before = interpreter.GridExecutor.__call__, interpreter._patch_lang, builder.options
    x, y = torch.zeros(32), torch.zeros(32)
    with recording(SectorLog([])) as kernels:
        strided_kernel[(1,)](x, y, 1, N=32)
        masked_kernel[(1,)](x, y, 3, N=32)
    assert kernels == ["strided_kernel", "masked_kernel"]
    with pytest.raises(ZeroDivisionError), recording(SectorLog([])):
        raise ZeroDivisionError
    assert (interpreter.GridExecutor.__call__, interpreter._patch_lang, builder.options) == before
    assert not [name for name in vars(builder) if name.startswith("create_")]


def test_recording_costs_less_than_the_interpreter_itself() -> None:
    point = Point(Shape("four", 4, 2, 128, "fp16"), 1000, 16, 512, device="cpu")
    pool, backend = make_pool(point, 1, 4), paged.load_triton("cuda")
    cache = make_cache(point, pool, replace(backend, stages={"append": fill}), 0)
    q = make_query(point, pool, point.data, 0)
    steps = bind("quest", backend, cache, q, point.num_selected).steps

    def launch() -> None:
        for step in steps:
            step.launch()

    plain, recorded = [], []
    for _ in range(4):  # by turns, so that other load on the machine meets both
        with lean():
            started = time.perf_counter()
            launch()
            plain.append(time.perf_counter() - started)
        log = SectorLog([span("k", cache.pool.k), span("v", cache.pool.v)])
        started = time.perf_counter()
        with recording(log):
            launch()
        recorded.append(time.perf_counter() - started)
        assert log.counts()["k"].read
    ratio = min(recorded) / min(plain)
    print(f"recorded over plain: {ratio:.2f}")
    assert ratio < 2

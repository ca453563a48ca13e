"""The roofs of a CPU: bandwidth by working set, matrix products and multiply-adds, a compiled call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from questprof.environment import available_bytes
from questprof.model import Environment, Point, Shape
from questprof.roofline.working_sets import num_passes, working_sets
from questprof.roofs import Bandwidth, FlopRate, Launch, LaunchKind, Operation, Roofs
from questprof.units import count

LEAST_BYTES = 256 << 10
MOST_CACHES = 4
"""The largest working set over the last-level cache: memory beyond shows nothing new and takes long."""
UNKNOWN_CACHE_BYTES = 1 << 30
MEMORY_SHARE = 0.25
"""Of the available memory that the largest working set may take."""
SAMPLE_BYTES = 64 << 20
TRIALS = 2
ROUNDS = 5
PRODUCTS = (("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"))
PRODUCT_SIZES = (256, 512, 1024, 2048)
PRODUCT_SECONDS = 0.15
"""A product that would take longer is not tried: the next smaller one is the figure's."""
MULTIPLY_ADD_SECONDS = 0.05
CALLS = 200
COMPILED_CALL = "compiled call, threads with nothing to do"


def measure(environment: Environment, most_bytes: int) -> Roofs:
    """Every roof of this CPU with `environment.num_workers` threads, working sets up to `most_bytes`."""
    threads = environment.num_workers
    rates = (*(_product(dtype, storage) for dtype, storage in PRODUCTS), _multiply_add(threads))
    bandwidths = _bandwidths(environment, most_bytes)
    absent = () if bandwidths else (("bandwidth by working set", "no working set fits the free memory"),)
    return Roofs(bandwidths, rates, (_nothing(threads), _one_page(threads)), None, absent)


def _bandwidths(environment: Environment, most_bytes: int) -> tuple[Bandwidth, ...]:
    from questprof_kernels import streaming_cpu

    cache = environment.last_level_cache_bytes
    most = MOST_CACHES * cache if cache else UNKNOWN_CACHE_BYTES
    free = int(available_bytes("cpu") * MEMORY_SHARE)
    sizes = working_sets(cache, LEAST_BYTES, min(most, most_bytes, free))
    if not sizes:
        return ()
    buffer = streaming_cpu.stream_buffer(sizes[-1])
    found = []
    for size in sizes:
        for operation, candidates in _candidates(buffer[: size // 4], environment.num_workers):
            found.append(_fastest(operation, size, candidates))
    return tuple(found)


Candidates = dict[str, Callable[[], object]]


def _candidates(buffer: object, num_workers: int) -> Iterator[tuple[Operation, Candidates]]:
    """Reads and copies of `buffer` (fp32 [n]), each with one thread and with all."""
    from questprof_kernels import working_set_cpu

    size = 4 * len(buffer)  # type: ignore[arg-type]
    half = size // 8
    passes = num_passes(size, SAMPLE_BYTES)
    reads: Candidates = {}
    copies: Candidates = {}
    for threads in sorted({1, num_workers}):
        suffix = count(threads, "thread")
        for name, streams in working_set_cpu.READERS:
            read = partial(working_set_cpu.read_passes, buffer, passes, streams, threads)
            reads[f"{name}, {suffix}"] = read
        one, other = buffer[:half], buffer[half:]  # type: ignore[index]
        copies[suffix] = partial(working_set_cpu.copy_passes, one, other, passes, threads)
    yield "read", reads
    yield "copy", copies


def _fastest(operation: Operation, size: int, candidates: Candidates) -> Bandwidth:
    """The candidate with the fastest trial, then sampled in full."""
    number = TRIALS if size <= SAMPLE_BYTES else 1  # a pass over more takes long, and differs less
    trials = {name: min(_seconds(run) for _ in range(number)) for name, run in candidates.items()}
    name = min(trials, key=lambda tried: trials[tried])
    moved = size * num_passes(size, SAMPLE_BYTES)
    samples = tuple(moved / _seconds(candidates[name]) / 1e9 for _ in range(ROUNDS))
    return Bandwidth(operation, name, size, samples)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _product(dtype: str, storage: str) -> FlopRate:
    """The largest square product of PRODUCT_SIZES that stays within PRODUCT_SECONDS."""
    import torch

    for n in PRODUCT_SIZES:
        a, b = (torch.randn((n, n)).to(getattr(torch, storage)) for _ in range(2))
        run = partial(torch.matmul, a, b, out=torch.empty_like(a))
        run()
        if 8 * min(_seconds(run) for _ in range(TRIALS)) > PRODUCT_SECONDS:
            break
    flops = 2 * n**3
    samples = tuple(flops / _seconds(run) / 1e12 for _ in range(ROUNDS))
    return FlopRate("torch.matmul", dtype, "CPU", f"{n} x {n} x {n}", flops, samples)


def _multiply_add(threads: int) -> FlopRate:
    """Fused multiply-adds in registers, compiled as the stages are."""
    from questprof_kernels import flops_cpu

    flops_cpu.multiply_add(1, threads)  # compiles
    steps = 1000
    while _seconds(partial(flops_cpu.multiply_add, steps, threads)) < MULTIPLY_ADD_SECONDS / 2:
        steps *= 2
    flops = flops_cpu.FLOPS_A_STEP * steps * threads
    run = partial(flops_cpu.multiply_add, steps, threads)
    samples = tuple(flops / _seconds(run) / 1e12 for _ in range(ROUNDS))
    return FlopRate("multiply-adds in registers (numba)", "fp32", "CPU", f"{steps} steps", flops, samples)


def _nothing(threads: int) -> Launch:
    from questprof_kernels import working_set_cpu

    return _calls(COMPILED_CALL, "compiled call", partial(working_set_cpu.call_nothing, threads))


def _one_page(threads: int) -> Launch:
    """A whole stage call, from its Python border on, with one page to score."""
    from questprof.backends import load
    from questprof.policies import bind
    from questprof.workload import make_cache, make_pool, make_query

    shape = Shape("one page", num_qo_heads=1, num_kv_heads=1, head_dim=64, kv_dtype="fp32")
    point = Point(shape, 16, token_budget=16, device="cpu")
    backend = load("questprof", "cpu")
    cache = make_cache(point, make_pool(point, 1, threads), backend, 0)
    bound = bind("quest", backend, cache, make_query(point, cache.pool, point.data, 0), point.num_selected)
    (score,) = (step for step in bound.steps if step.stage == "score")
    return _calls("stage call, score over one page", "stage call", score.launch)


def _calls(name: str, kind: LaunchKind, call: Callable[[], object]) -> Launch:
    """The median of CALLS single calls, ROUNDS times: a mean would tell of the one that was interrupted."""
    call()
    samples = tuple(statistics.median(_seconds(call) for _ in range(CALLS)) * 1e6 for _ in range(ROUNDS))
    return Launch(name, CALLS, samples, kind)

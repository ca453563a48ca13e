"""The roofs of a GPU: bandwidth by working set, matrix products, launches, and what NVML says of the bus.

Bandwidths are CUDA graphs of launches that make many passes each; products are clocked by events around eager
launches, which are long enough. Everything runs on the device that the stages run on, in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from questprof.ceilings import graph_samples
from questprof.environment import available_bytes
from questprof.model import Environment
from questprof.roofline.working_sets import num_passes, working_sets
from questprof.roofs import Bandwidth, FlopRate, Launch, Operation, Roofs, Unit
from questprof.timing.nvml import open_gpu

if TYPE_CHECKING:
    import torch

SAMPLE_BYTES = 4 << 30
"""Moved by a launch: about a millisecond, beside which the launch of a graph is nothing."""
TRIALS = 3
ROUNDS = 20
LEAST_SHARE = 64
"""The smallest working set is this part of the L2."""
MEMORY_SHARE = 0.25
"""Of the free memory that the largest working set may take."""
PRODUCTS: tuple[tuple[str, str, Unit, int, int], ...] = (
    ("fp16", "float16", "tensor cores", 8192, 7),
    ("bf16", "bfloat16", "tensor cores", 8192, 8),
    ("tf32", "float32", "tensor cores", 8192, 8),
    ("fp32", "float32", "CUDA cores", 4096, 0),
)
"""dtype, torch's name for its storage, what computes it, n of n x n x n, major capability it needs."""
PRODUCT_ROUNDS = 10
PRODUCT_SAMPLE_US = 10_000.0
EMPTY_LAUNCHES = 1000
EMPTY_ROUNDS = 10


def measure(environment: Environment, most_bytes: int) -> Roofs:
    """Every roof of this GPU, working sets up to `most_bytes`; `absent` says what could not be measured."""
    import torch

    absent: list[tuple[str, str]] = []
    bandwidths = _bandwidths(environment, most_bytes)
    torch.cuda.empty_cache()
    rates = tuple(_flop_rates(absent))
    torch.cuda.empty_cache()
    gpu = open_gpu()
    bus = gpu.memory_bus() if gpu else None
    if not bandwidths:
        absent.append(("bandwidth by working set", "no working set fits the free memory"))
    if bus is None:
        absent.append(("memory bus", "NVML does not tell its width and clock"))
    return Roofs(bandwidths, rates, (_graph_node(), _eager()), bus, tuple(absent))


def _bandwidths(environment: Environment, most_bytes: int) -> tuple[Bandwidth, ...]:
    import torch

    cache = environment.last_level_cache_bytes
    most = min(most_bytes, int(available_bytes("cuda") * MEMORY_SHARE))
    sizes = working_sets(cache, cache // LEAST_SHARE, most)
    if not sizes:
        return ()
    buffer = torch.empty(sizes[-1] // 4, dtype=torch.int32, device="cuda").random_()
    found = []
    for size in sizes:
        words = buffer[: size // 4]
        found.append(_fastest("read", size, _reads(words)))
        found.append(_fastest("copy", size, _copies(words, cache)))
    return tuple(found)


Candidate = tuple[str, int, Callable[[], object]]
"""Name, passes of a launch, the launch."""


def _reads(words: torch.Tensor) -> Iterator[Candidate]:
    import torch
    from questprof_kernels import working_set

    passes = num_passes(4 * words.numel(), SAMPLE_BYTES)
    for walk in working_set.WALKS:
        out = torch.empty(
            working_set.num_programs(words, passes, walk), dtype=torch.int32, device=words.device
        )
        yield walk.name, passes, partial(working_set.read_passes, words, out, passes, walk)


def _copies(words: torch.Tensor, cache_bytes: int) -> Iterator[Candidate]:
    from questprof_kernels import working_set

    half = words.numel() // 2
    source, target = words[:half], words[half:]
    passes = num_passes(4 * words.numel(), SAMPLE_BYTES)
    for walk in working_set.WALKS:
        yield walk.name, passes, partial(working_set.copy_passes, source, target, passes, walk)
    if 4 * words.numel() > cache_bytes:  # a launch of its own for every pass: only where passes are long
        yield "the driver's copy", 1, partial(target.copy_, source)


def _fastest(operation: Operation, size: int, candidates: Iterator[Candidate]) -> Bandwidth:
    """The candidate with the best median of a few trials, then sampled in full."""
    trials = {}
    for name, passes, launch in candidates:
        launches = max(2, num_passes(size * passes, SAMPLE_BYTES))
        us = statistics.median(graph_samples(launch, launches, TRIALS)) / passes  # type: ignore[arg-type]
        trials[us] = (name, passes, launches, launch)
    name, passes, launches, launch = trials[min(trials)]
    samples = graph_samples(launch, launches, ROUNDS)  # type: ignore[arg-type]
    return Bandwidth(operation, name, size, tuple(size * passes / us / 1e3 for us in samples))


def _flop_rates(absent: list[tuple[str, str]]) -> Iterator[FlopRate]:
    import torch

    major = torch.cuda.get_device_capability()[0]
    for dtype, storage, unit, n, needed in PRODUCTS:
        if major < needed:
            absent.append((f"{dtype} rate", f"needs compute capability {needed}.0, this is {major}.x"))
            continue
        try:
            yield _product(dtype, getattr(torch, storage), unit, n)
        except torch.cuda.OutOfMemoryError:
            absent.append((f"{dtype} rate", f"three {n} x {n} matrices do not fit"))


def _product(dtype: str, storage: torch.dtype, unit: Unit, n: int, device: str = "cuda") -> FlopRate:
    """A large matrix product of standard normal numbers: zeros would draw less power and run faster."""
    import torch

    a, b = (torch.randn((n, n), device=device).to(storage) for _ in range(2))
    out = torch.empty((n, n), dtype=storage, device=device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        launch = partial(torch.matmul, a, b, out=out)
        for _ in range(3):
            launch()
        launches = max(2, int(PRODUCT_SAMPLE_US / event_us(launch, 2)) + 1)
        samples = [event_us(launch, launches) for _ in range(PRODUCT_ROUNDS)]
    finally:
        torch.set_float32_matmul_precision(before)
    flops = 2 * n**3
    rates = tuple(flops / us / 1e6 for us in samples)
    return FlopRate("torch.matmul", dtype, unit, f"{n} x {n} x {n}", flops, rates)


def event_us(launch: Callable[[], object], launches: int) -> float:
    """Microseconds a launch of `launches` eager ones, between two events."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        launch()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / launches


def _graph_node() -> Launch:
    from questprof_kernels import working_set

    samples = graph_samples(working_set.launch_empty, EMPTY_LAUNCHES, EMPTY_ROUNDS)
    return Launch("empty kernel, a node of a CUDA graph", EMPTY_LAUNCHES, tuple(samples), "graph node")


def _eager() -> Launch:
    """Wall clock of launches from Python, one after another, until the device is idle again."""
    import torch
    from questprof_kernels import working_set

    samples = []
    for _ in range(EMPTY_ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(EMPTY_LAUNCHES):
            working_set.launch_empty()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e6 / EMPTY_LAUNCHES)
    return Launch("empty Triton kernel, eager, from Python", EMPTY_LAUNCHES, tuple(samples), "eager")

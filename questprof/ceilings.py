"""The streaming-read ceiling of this device, measured in this run, never taken from a table.

On the CPU it is the best of several readers (streams x threads, and dense's own access pattern) over a
buffer of more than three times the last-level cache; the best one then runs between the timed samples,
where it both evicts the caches and shows how the machine drifts. On a GPU a Triton kernel reads
buffers of two sizes, and beside the stages of every block as many bytes as dense does. A figure above
the ceiling is a fault of the ceiling, never a pass.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from questprof.environment import available_bytes
from questprof.model import CACHE_MULTIPLE, Ceiling, Environment
from questprof.units import count

if TYPE_CHECKING:
    import torch
    from questprof_kernels.streaming import Reader

CPU_FINALISTS = 4
CPU_ROUNDS = 4
"""Every CPU reader runs once; the fastest CPU_FINALISTS then CPU_ROUNDS times more, in turn."""
GPU_ROUNDS = 20
GPU_BUFFER_BYTES = (512 << 20, 2 << 30)
DEFAULT_CPU_BUFFER_BYTES = 256 << 20
READ_ALIGN = 16
"""Bytes that a buffer of a streaming read is a multiple of."""
READ_SHARE = 0.9
"""Share of the free memory that the buffers of a read beside the stages may take."""
PAGE_FLOATS = 16 * 32 * 128
"""fp32 numbers of one K or V page of llama-2-7b at page size 16: the unit in which dense reads."""


@dataclass
class CpuReader:
    """One way to stream a buffer; every call reads all of it and notes the time."""

    name: str
    read: Callable[[], object]
    num_bytes: int
    seconds: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Read the buffer once."""
        started = time.perf_counter()
        self.read()
        self.seconds.append(time.perf_counter() - started)

    def ceiling(self) -> Ceiling:
        """The samples so far, in GB/s."""
        return Ceiling(
            self.name, self.num_bytes, tuple(self.num_bytes / second / 1e9 for second in self.seconds)
        )


def cpu_readers(environment: Environment) -> list[CpuReader]:
    """Every reader worth trying on this CPU, over one shared buffer."""
    from questprof_kernels import streaming_cpu

    floor = CACHE_MULTIPLE * environment.last_level_cache_bytes + (1 << 20)
    wanted = min(max(DEFAULT_CPU_BUFFER_BYTES, floor), available_bytes("cpu") // 3)
    num_bytes = -(-wanted // (8 * PAGE_FLOATS)) * 8 * PAGE_FLOATS
    buffer = streaming_cpu.stream_buffer(num_bytes)
    k, v = buffer[: len(buffer) // 2], buffer[len(buffer) // 2 :]
    readers = []
    for threads in sorted({1, environment.num_workers}, reverse=True):
        suffix = count(threads, "thread")
        for name, streams in streaming_cpu.READERS:
            read = partial(streaming_cpu.read_streams, buffer, streams, threads)
            readers.append(CpuReader(f"{name}, {suffix}", read, num_bytes))
        read = partial(streaming_cpu.read_pages, k, v, PAGE_FLOATS, threads)
        readers.append(CpuReader(f"pages of K and V in turn, {suffix}", read, num_bytes))
    return readers


def measure_cpu(environment: Environment, limit_s: float = math.inf) -> tuple[tuple[Ceiling, ...], CpuReader]:
    """(all readers' figures, a fresh copy of the fastest reader for use between samples).

    After `limit_s` seconds no further read begins, but for one of one reader.
    """
    end = time.perf_counter() + limit_s
    tried: list[CpuReader] = []
    for reader in cpu_readers(environment):
        if not tried or time.perf_counter() < end:
            reader.read()  # compiles
            reader.run()
            tried.append(reader)
    finalists = sorted(tried, key=lambda reader: min(reader.seconds))[:CPU_FINALISTS]
    for reader in finalists * CPU_ROUNDS:
        if time.perf_counter() < end:
            reader.run()
    best = min(finalists, key=lambda reader: statistics.median(reader.seconds))
    return tuple(r.ceiling() for r in tried), CpuReader(best.name, best.read, best.num_bytes)


def measure_cuda() -> tuple[Ceiling, ...]:
    """Streaming reads of GPU_BUFFER_BYTES (what fits), each a graph that reads past the L2 every launch."""
    import torch
    from questprof_kernels import streaming

    free = torch.cuda.mem_get_info()[0]
    measured = []
    for num_bytes in GPU_BUFFER_BYTES:
        if num_bytes < free // 2:
            buffer = torch.randn(num_bytes // 4, device="cuda")
            measured += [_cuda_read(buffer, reader) for reader in streaming.READERS]
    return tuple(measured)


def _cuda_read(buffer: torch.Tensor, reader: Reader) -> Ceiling:
    import torch
    from questprof_kernels import streaming

    num_bytes = buffer.numel() * buffer.element_size()
    out = torch.empty(streaming.out_size(buffer, reader), device="cuda")
    launches = max(2, (4 << 30) // num_bytes)
    microseconds = graph_samples(lambda: streaming.read(buffer, out, reader), launches, GPU_ROUNDS)
    return Ceiling(reader.name, num_bytes, tuple(num_bytes / us / 1e3 for us in microseconds))


@dataclass(frozen=True, eq=False)
class SizedReader:
    """One way to stream `num_bytes` on a GPU: launches over buffers in rotation, none cached at its turn."""

    name: str
    num_bytes: int
    launches: tuple[Callable[[], None], ...]


def sized_readers(num_bytes: int, cache_bytes: int, device: str = "cuda") -> list[SizedReader]:
    """Every reader over the same rotated buffers of `num_bytes` (up to 16 more); none where they do not fit.

    Together the buffers exceed CACHE_MULTIPLE times `cache_bytes`, the L2.
    """
    import torch
    from questprof_kernels import streaming

    num_bytes = -(-num_bytes // READ_ALIGN) * READ_ALIGN
    number = CACHE_MULTIPLE * cache_bytes // max(1, num_bytes) + 1
    torch.cuda.empty_cache()
    if not num_bytes or number * num_bytes > READ_SHARE * available_bytes(device):
        return []
    try:
        buffers = torch.empty((number, num_bytes // 4), dtype=torch.int32, device=device).random_()
    except torch.cuda.OutOfMemoryError:  # free, but not in one piece
        return []
    found = []
    for reader in streaming.READERS:
        out = torch.empty(streaming.out_size(buffers[0], reader), dtype=torch.int32, device=device)
        launches = tuple(partial(streaming.read, buffer, out, reader) for buffer in buffers)
        found.append(SizedReader(reader.name, num_bytes, launches))
    return found


def graph_samples(launch: Callable[[], None], launches: int, rounds: int) -> list[float]:
    """Microseconds a launch, one sample a replay of a CUDA graph of `launches` launches."""
    import torch

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            launch()
    graph.replay()
    return [replay_us(graph) / launches for _ in range(rounds)]


def replay_us(graph: torch.cuda.CUDAGraph, lead: torch.cuda.CUDAGraph | None = None) -> float:
    """Microseconds of one replay, between two events, right behind one of `lead`, which is not timed."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if lead is not None:
        lead.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3

"""Streaming-read kernels for the CPU's bandwidth ceiling: loads and additions, nothing else.

The ceiling is the best of several readers and thread counts, so that no stage can beat it by a better order
of reading. Each reads its whole input once and returns the sum, so that no load can be left out. Compiled
with numba on the first call and cached on disk.
"""

from __future__ import annotations

import numba
import numpy as np
import questprof_kernels.compiled_cache  # noqa: F401 -- before anything is compiled
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LINE = 16  # fp32 numbers of a cache line, and of a vector
BLOCK = 1024  # fp32 numbers a stream reads before it is the next one's turn: one small memory page
AHEAD = 2048  # fp32 numbers between a load and the prefetch that goes with it
SUMS = 8  # vectors summed side by side, enough to hide the latency of an addition

#: Readers worth trying, each with one thread and with all: (name, num_streams of a thread).
READERS = (("one stream", 1), ("two streams", 2), ("four streams", 4), ("eight streams", 8))

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(ir.FloatType(), LINE)


def _summing(ahead):
    """An intrinsic that sums whole lines, with a prefetch `ahead` numbers before each load; 0: with none."""

    @intrinsic
    def sum_lines(typing, buffer, at, stop):
        """Sum of buffer[at:stop], a multiple of SUMS * LINE numbers."""

        def codegen(context, builder, signature, args):
            buffer, at, stop = args
            data = make_array(signature.args[0])(context, builder, buffer).data
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
            sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(SUMS)]
            for total in sums:
                builder.store(ir.Constant(_VECTOR, [0.0] * LINE), total)
            with cgutils.for_range_slice(builder, at, stop, _I64(SUMS * LINE), _I64) as (start, _):
                for j, total in enumerate(sums):
                    line = builder.gep(data, [builder.add(start, _I64(j * LINE))])
                    if ahead:
                        later = builder.bitcast(builder.gep(line, [_I64(ahead)]), byte)
                        builder.call(prefetch, [later, _I32(0), _I32(2), _I32(1)])
                    vector = builder.load(builder.bitcast(line, _VECTOR.as_pointer()), align=4)
                    builder.store(builder.fadd(vector, builder.load(total)), total)
            vector = builder.load(sums[0])
            for total in sums[1:]:
                vector = builder.fadd(vector, builder.load(total))
            number = builder.extract_element(vector, _I32(0))
            for lane in range(1, LINE):
                number = builder.fadd(number, builder.extract_element(vector, _I32(lane)))
            return number

        return types.float32(buffer, types.intp, types.intp), codegen

    return sum_lines


_sum_lines = _summing(AHEAD)
_sum_lines_at_hand = _summing(0)


@numba.njit(cache=True)
def _read_share(buffer, thread, num_threads, num_streams):
    """Sum of one thread's share of the blocks, its streams in turn block by block."""
    num_blocks = len(buffer) // BLOCK
    first, last = num_blocks * thread // num_threads, num_blocks * (thread + 1) // num_threads
    total = np.float64(0.0)
    for step in range(-(-(last - first) // num_streams)):
        for stream in range(num_streams):
            start = first + (last - first) * stream // num_streams
            stop = first + (last - first) * (stream + 1) // num_streams
            if start + step < stop:
                total += _sum_lines(buffer, (start + step) * BLOCK, (start + step + 1) * BLOCK)
    return total


@numba.njit(cache=True, parallel=True)
def _read_streams(buffer, num_streams, num_threads):
    sums = np.zeros(num_threads, np.float64)
    for thread in prange(num_threads):
        sums[thread] = _read_share(buffer, np.int64(thread), num_threads, num_streams)
    return sums.sum() + buffer[len(buffer) // BLOCK * BLOCK :].sum()


@numba.njit(cache=True)
def _read_page_share(k, v, page_floats, thread, num_threads):
    """Sum of one thread's share of the pages: a page of k, the same page of v, the next page."""
    num_pages = len(k) // page_floats
    total = np.float64(0.0)
    for page in range(num_pages * thread // num_threads, num_pages * (thread + 1) // num_threads):
        total += _sum_lines(k, page * page_floats, (page + 1) * page_floats)
        total += _sum_lines(v, page * page_floats, (page + 1) * page_floats)
    return total


@numba.njit(cache=True, parallel=True)
def _read_pages(k, v, page_floats, num_threads):
    sums = np.zeros(num_threads, np.float64)
    for thread in prange(num_threads):
        sums[thread] = _read_page_share(k, v, page_floats, np.int64(thread), num_threads)
    return sums.sum()


def stream_buffer(num_bytes: int) -> np.ndarray:
    """fp32 ones filling `num_bytes`, every memory page touched; numpy asks for huge pages where it can."""
    return np.ones(num_bytes // 4, np.float32)


def read_streams(buffer: np.ndarray, num_streams: int, num_threads: int) -> float:
    """Read `buffer` (fp32, 1-D) once with `num_threads` threads of `num_streams` address streams; its sum.

    At most numba's thread count run at once. ValueError on another dtype or layout and on counts below 1.
    """
    _check(buffer, num_streams, num_threads)
    return float(_read_streams(buffer, num_streams, num_threads))


def read_pages(k: np.ndarray, v: np.ndarray, page_floats: int, num_threads: int) -> float:
    """Read `k` and `v` (fp32, 1-D, equally long) as `dense` does, a page of each in turn; their sum.

    `page_floats`: numbers of a page, a multiple of 128 that divides the length. ValueError otherwise.
    """
    _check(k, page_floats, num_threads)
    _check(v, page_floats, num_threads)
    if len(k) != len(v) or len(k) % page_floats or page_floats % (SUMS * LINE):
        raise ValueError(f"pages of {page_floats} numbers do not fill buffers of {len(k)} and {len(v)}")
    return float(_read_pages(k, v, page_floats, num_threads))


def _check(buffer: np.ndarray, *counts: int) -> None:
    if buffer.dtype != np.float32 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError(f"the buffer must be contiguous fp32 [n], not {buffer.dtype} {list(buffer.shape)}")
    if min(counts) < 1:
        raise ValueError(f"counts of streams, threads and numbers start at 1, not {min(counts)}")

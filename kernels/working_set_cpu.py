"""Reads or copies a working set again and again in one call: bandwidth by its size, caches included.

Every thread has its own share of the buffer and goes over it pass by pass, so that a share that fits a
private cache is read from there, and what fits the shared one from that. Compiled with numba on the first
call and cached on disk.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import prange
from questprof_kernels.streaming_cpu import BLOCK, _read_share, _sum_lines_at_hand

#: Readers worth trying at every size, each with one thread and with all: (name, address streams of a thread).
#: 0 is one stream without prefetches, which cost time where the numbers are in a cache.
READERS = (("without prefetch", 0), ("two streams", 2))


@numba.njit(cache=True)
def _sum_share(buffer, thread, num_threads):
    """Sum of one thread's share of the blocks, without a prefetch."""
    num_blocks = len(buffer) // BLOCK
    total = np.float64(0.0)
    for block in range(num_blocks * thread // num_threads, num_blocks * (thread + 1) // num_threads):
        total += _sum_lines_at_hand(buffer, block * BLOCK, (block + 1) * BLOCK)
    return total


@numba.njit(cache=True, parallel=True)
def _read_passes(buffer, num_passes, num_streams, num_threads):
    sums = np.zeros(num_threads, np.float64)
    for thread in prange(num_threads):
        total = np.float64(0.0)
        for number in range(num_passes):
            if num_streams:
                share = _read_share(buffer, np.int64(thread), num_threads, num_streams)
            else:
                share = _sum_share(buffer, np.int64(thread), num_threads)
            total += (number + 1) * share  # a factor of its own: no two passes may be taken for one
        sums[thread] = total
    return sums.sum()


@numba.njit(cache=True, parallel=True)
def _copy_passes(one, other, num_passes, num_threads):
    for thread in prange(num_threads):
        first = len(one) * np.int64(thread) // num_threads
        last = len(one) * (np.int64(thread) + 1) // num_threads
        for number in range(num_passes):
            if number % 2:
                one[first:last] = other[first:last]
            else:
                other[first:last] = one[first:last]


@numba.njit(cache=True, parallel=True)
def _nothing(num_threads):
    done = np.zeros(num_threads, np.int64)
    for thread in prange(num_threads):
        done[thread] = 1
    return done.sum()


def read_passes(buffer: np.ndarray, num_passes: int, num_streams: int, num_threads: int) -> float:
    """Read `buffer` (fp32, 1-D, whole blocks of 1024) `num_passes` times; the sum of (pass + 1) x number.

    `num_streams` as in READERS. ValueError on another dtype, layout or length and on counts below 1.
    """
    _check(buffer, num_passes, num_threads)
    if len(buffer) % BLOCK:
        raise ValueError(f"{len(buffer)} numbers are no whole blocks of {BLOCK}")
    return float(_read_passes(buffer, num_passes, num_streams, num_threads))


def copy_passes(one: np.ndarray, other: np.ndarray, num_passes: int, num_threads: int) -> None:
    """Copy `one` to `other` (fp32, 1-D, equally long), then back, and so on: `num_passes` copies.

    ValueError on another dtype or layout, different lengths and counts below 1.
    """
    _check(one, num_passes, num_threads)
    _check(other, num_passes, num_threads)
    if len(one) != len(other):
        raise ValueError(f"buffers of {len(one)} and {len(other)} numbers are not equally long")
    _copy_passes(one, other, num_passes, num_threads)


def call_nothing(num_threads: int) -> int:
    """One compiled call whose threads have nothing to do; how many there were."""
    return int(_nothing(num_threads))


def _check(buffer: np.ndarray, num_passes: int, num_threads: int) -> None:
    if buffer.dtype != np.float32 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError(f"the buffer must be contiguous fp32 [n], not {buffer.dtype} {list(buffer.shape)}")
    if min(num_passes, num_threads) < 1:
        raise ValueError(f"counts of passes and threads start at 1, not {min(num_passes, num_threads)}")

"""Passes over a working set on a CPU, and the multiply-adds of its arithmetic roof."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import flops_cpu, working_set_cpu
from questprof_kernels.streaming_cpu import BLOCK


def small_numbers(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-999, 1000, count).astype(np.float32)


@settings(deadline=None, max_examples=30)
@given(
    blocks=st.integers(0, 20),
    num_passes=st.integers(1, 5),
    num_streams=st.sampled_from([streams for _, streams in working_set_cpu.READERS]),
    num_threads=st.integers(1, 5),
)
def test_every_pass_reads_every_number_once(
    blocks: int, num_passes: int, num_streams: int, num_threads: int
) -> None:
    """Pass p counts p + 1 times: 1 + 2 + ... + n = n (n + 1) / 2 sums in all."""
    buffer = small_numbers(blocks * BLOCK, blocks)
    wanted = num_passes * (num_passes + 1) // 2 * buffer.astype(np.float64).sum()
    assert working_set_cpu.read_passes(buffer, num_passes, num_streams, num_threads) == wanted


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 3000), num_passes=st.integers(1, 4), num_threads=st.integers(1, 5))
def test_copies_go_there_and_back(count: int, num_passes: int, num_threads: int) -> None:
    one, other = small_numbers(count, 1), small_numbers(count, 2)
    wanted = one.copy()
    working_set_cpu.copy_passes(one, other, num_passes, num_threads)
    assert np.array_equal(one, wanted)
    assert np.array_equal(other, wanted)


def test_nothing_is_done_by_every_thread() -> None:
    assert working_set_cpu.call_nothing(3) == 3


@pytest.mark.parametrize(("steps", "threads"), [(1, 1), (2, 1), (3, 2)])
def test_multiply_adds_do_every_step(steps: int, threads: int) -> None:
    """x = x / 2 + a from 1, with a = 1/2 + thread: after s steps x = 2a + (1 - 2a) / 2^s, in every lane."""
    numbers = 0.0
    for thread in range(threads):
        a = 0.5 + thread
        numbers += flops_cpu.CHAINS * flops_cpu.LANES * (2 * a + (1 - 2 * a) / 2**steps)
    assert flops_cpu.multiply_add(steps, threads) == numbers


def test_the_operations_of_a_step() -> None:
    assert flops_cpu.FLOPS_A_STEP == 2 * 16 * 12  # a product and a sum, 16 lanes, 12 chains


def test_wrong_arguments_are_refused() -> None:
    buffer = np.ones(BLOCK, np.float32)
    for bad in (buffer.astype(np.float64), buffer[::2], buffer[: BLOCK - 1], buffer.reshape(2, -1)):
        with pytest.raises(ValueError, match=r"must be|whole blocks"):
            working_set_cpu.read_passes(bad, 1, 0, 1)
    for counts in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="start at 1"):
            working_set_cpu.copy_passes(buffer, buffer, *counts)
    with pytest.raises(ValueError, match="equally long"):
        working_set_cpu.copy_passes(buffer, buffer[:4], 1, 1)
    with pytest.raises(ValueError, match="start at 1"):
        flops_cpu.multiply_add(0, 1)

"""The readers read every number once: sums of whole numbers, exact in fp32 blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels.streaming_cpu import BLOCK, READERS, read_pages, read_streams, stream_buffer


def small_numbers(count: int, seed: int) -> np.ndarray:
    """Whole numbers below 1000: a block's sum stays under 2**24, so that fp32 adds them without rounding."""
    return np.random.default_rng(seed).integers(-999, 1000, count).astype(np.float32)


@settings(deadline=None, max_examples=30)
@given(
    blocks=st.integers(0, 40),
    rest=st.integers(0, BLOCK - 1),
    num_streams=st.integers(1, 9),
    num_threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_reader_reads_every_number_once(
    blocks: int, rest: int, num_streams: int, num_threads: int, seed: int
) -> None:
    buffer = small_numbers(blocks * BLOCK + rest, seed)
    assert read_streams(buffer, num_streams, num_threads) == buffer.astype(np.float64).sum()


@pytest.mark.parametrize("num_streams", [count for _, count in READERS])
def test_every_listed_reader_sees_a_change_of_any_block(num_streams: int) -> None:
    buffer = np.zeros(24 * BLOCK + 5, np.float32)
    for place in range(7, len(buffer), BLOCK - 1):
        buffer[place] = 1.0
        assert read_streams(buffer, num_streams, 2) == 1.0, place
        buffer[place] = 0.0


def test_readers_are_distinct() -> None:
    assert len({name for name, _ in READERS}) == len({count for _, count in READERS}) == len(READERS) >= 3


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("page_floats", [128, 16 * 128])
def test_read_pages_reads_both_buffers_once(page_floats: int, num_threads: int) -> None:
    k, v = small_numbers(7 * page_floats, 1), small_numbers(7 * page_floats, 2)
    assert read_pages(k, v, page_floats, num_threads) == float(
        k.astype(np.float64).sum() + v.sum(dtype=np.float64)
    )


def test_a_nan_is_not_lost() -> None:
    buffer = stream_buffer(4 * 3 * BLOCK)
    assert read_streams(buffer, 2, 2) == 3 * BLOCK
    buffer[2 * BLOCK] = np.nan
    assert np.isnan(read_streams(buffer, 2, 2))


@pytest.mark.parametrize(
    ("buffer", "num_streams", "num_threads", "message"),
    [
        (np.ones(8), 1, 1, "contiguous fp32"),
        (np.ones((2, 8), np.float32), 1, 1, "contiguous fp32"),
        (np.ones(16, np.float32)[::2], 1, 1, "contiguous fp32"),
        (np.ones(8, np.float32), 0, 1, "start at 1"),
        (np.ones(8, np.float32), 1, 0, "start at 1"),
    ],
)
def test_bad_arguments_are_refused(
    buffer: np.ndarray, num_streams: int, num_threads: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_streams(buffer, num_streams, num_threads)


@pytest.mark.parametrize(("k_len", "v_len", "page_floats"), [(256, 128, 128), (200, 200, 128), (96, 96, 96)])
def test_pages_that_do_not_fit_are_refused(k_len: int, v_len: int, page_floats: int) -> None:
    with pytest.raises(ValueError, match="do not fill"):
        read_pages(np.ones(k_len, np.float32), np.ones(v_len, np.float32), page_floats, 1)

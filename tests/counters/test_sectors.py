"""Sectors, visits and repeats of single accesses: by hand, and against sets of bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.counters.sectors import OTHER, SectorLog, Span
from questprof.counts import TensorCount

BASE = 1 << 40


def addresses(*offsets: int) -> np.ndarray:
    return np.array(offsets, dtype=np.uint64) + np.uint64(BASE)


def log_of(*spans: tuple[str, int, int]) -> SectorLog:
    return SectorLog(Span(name, BASE + start, BASE + end) for name, start, end in spans)


def counted(log: SectorLog, name: str) -> TensorCount:
    return log.counts().get(name, TensorCount())


def test_lanes_of_one_sector_are_one_visit_and_a_later_one_is_a_repeat() -> None:
    log = log_of(("k", 0, 128))
    log.record("read", addresses(0, 4, 8, 32), None, 4)  # sectors 0 and 1
    log.record("read", addresses(28, 96), None, 4)  # sector 0 again, and 3
    assert counted(log, "k") == TensorCount(read=3 * 32, repeat_read=32)


def test_a_repeat_inside_one_access_is_no_second_visit_wherever_its_lanes_stand() -> None:
    log = log_of(("k", 0, 128))
    log.record("read", addresses(0, 64, 4, 68, 0), None, 4)
    assert counted(log, "k") == TensorCount(read=64)


def test_masked_lanes_do_nothing_and_reading_is_not_writing() -> None:
    log = log_of(("k", 0, 128))
    log.record("read", addresses(0, 32), np.array([False, True]), 4)
    log.record("write", addresses(64, 96), np.array([True, False]), 4)
    log.record("read", addresses(64, 96), np.array([False, False]), 4)
    assert counted(log, "k") == TensorCount(read=32, write=32)


def test_a_mask_of_fewer_axes_covers_the_lanes_it_broadcasts_to() -> None:
    log = log_of(("k", 0, 256))
    lanes = addresses(0, 32, 64, 96).reshape(2, 2)
    log.record("read", lanes, np.array([[True], [False]]), 4)
    assert counted(log, "k") == TensorCount(read=64)


def test_an_element_across_a_border_visits_both_sectors() -> None:
    log = log_of(("k", 0, 128))
    log.record("read", addresses(28, 30), None, 4)
    assert counted(log, "k") == TensorCount(read=64)


def test_a_tensor_that_begins_inside_a_sector_counts_it_whole() -> None:
    log = log_of(("counters", 0, 8), ("split_partials", 16, 64))
    log.record("write", addresses(4), None, 4)
    log.record("write", addresses(16, 20, 40), None, 4)
    assert counted(log, "counters") == TensorCount(write=32)
    assert counted(log, "split_partials") == TensorCount(write=64)


def test_an_access_over_several_tensors_is_parted_by_byte() -> None:
    log = log_of(("k", 0, 64), ("v", 64, 128))
    log.record("read", addresses(32, 64, 96, 4096, 62), None, 4)  # the last lies in both
    assert counted(log, "k") == TensorCount(read=32)
    assert counted(log, "v") == TensorCount(read=64)
    assert counted(log, OTHER) == TensorCount(read=32)


def test_addresses_outside_every_tensor_are_other_with_repeats() -> None:
    log = log_of(("k", 64, 128))
    log.record("read", addresses(0, 4), None, 4)
    log.record("read", addresses(0, 128), None, 4)
    assert log.counts() == {OTHER: TensorCount(read=64, repeat_read=32)}


def test_spans_of_one_name_add_up_and_empty_ones_are_nothing() -> None:
    log = log_of(("q", 0, 32), ("q", 64, 96), ("page_ids", 32, 32))
    log.record("read", addresses(0, 64), None, 4)
    assert log.counts() == {"q": TensorCount(read=64)}


def test_overlapping_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="k and v overlap"):
        log_of(("k", 0, 64), ("v", 32, 96))


def test_seen_says_which_sectors() -> None:
    log = log_of(("k", 0, 128))
    log.record("read", addresses(40, 100), None, 2)
    assert log.seen("k", "read").tolist() == [False, True, False, True]
    assert not log.seen("k", "write").any()


borders = st.lists(st.integers(0, 400), min_size=2, max_size=6, unique=True).map(sorted)
accesses = st.lists(
    st.tuples(
        st.sampled_from(["read", "write"]),
        st.sampled_from([1, 2, 4, 8]),
        st.lists(st.tuples(st.integers(0, 420), st.booleans()), min_size=1, max_size=12),
    ),
    max_size=8,
)


@given(borders, accesses)
def test_against_sets_of_bytes(ends: list[int], made: list[tuple[str, int, list[tuple[int, bool]]]]) -> None:
    spans = [(f"t{start}", start, end) for start, end in pairwise(ends)][::2]
    log = log_of(*spans)
    seen: dict[tuple[str, str], set[int]] = {}
    visits: dict[tuple[str, str], int] = {}
    for direction, element_bytes, lanes in made:
        log.record(
            direction,  # type: ignore[arg-type]
            addresses(*(offset for offset, _ in lanes)),
            np.array([on for _, on in lanes]),
            element_bytes,
        )
        touched: set[tuple[str, int]] = set()
        for offset, on in lanes:
            for byte in range(offset, offset + element_bytes * on):
                owner = next((name for name, start, end in spans if start <= byte < end), OTHER)
                touched.add((owner, (BASE + byte) // 32))
        for owner, sector in touched:
            seen.setdefault((owner, direction), set()).add(sector)
            visits[owner, direction] = visits.get((owner, direction), 0) + 1
    expected = {
        (owner, direction): (32 * len(sectors), 32 * (visits[owner, direction] - len(sectors)))
        for (owner, direction), sectors in seen.items()
    }
    ours = {
        (owner, direction): (getattr(count, direction), getattr(count, f"repeat_{direction}"))
        for owner, count in log.counts().items()
        for direction in ("read", "write")
        if getattr(count, direction)
    }
    assert ours == expected

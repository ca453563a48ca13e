"""Plateaus and knees of synthetic bandwidth curves, and the sizes that a curve is measured at."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import CPU, GPU
from questprof.roofline.curve import cache_roof, knee_bytes, large_reads, served, sizes
from questprof.roofline.vendor import Vendor
from questprof.roofline.working_sets import GRANULE_BYTES, num_passes, working_sets
from questprof.roofs import Bandwidth, Roofs
from questprof.scan import best_ceiling
from questprof.store import read_profile

MIB = 1 << 20
PROFILE = Path(__file__).parents[2] / "profiles" / "h200" / "roofline.jsonl"


def read(mib: float, gb_s: float) -> Bandwidth:
    return Bandwidth("read", "reader", int(mib * MIB), (0.9 * gb_s, gb_s, 1.1 * gb_s))


STEP = (read(1, 400), read(16, 400), read(64, 100), read(256, 100))


def test_the_knee_worked_by_hand() -> None:
    """The cache reads at 400, memory at 100: halfway is 200, half the way from 16 MiB to 64 in logarithms."""
    assert knee_bytes(STEP, 16 * MIB) == pytest.approx(32 * MIB, rel=1e-6)
    assert knee_bytes(reversed(STEP), 0) == knee_bytes(STEP, 33 * MIB)
    assert knee_bytes(STEP, 256 * MIB) is None  # the curve ends within the cache
    assert knee_bytes(STEP, MIB) is None  # no set of at most half of it


def test_a_cache_above_the_last_level_does_not_move_the_knee() -> None:
    """A private cache at 3200, the last level of 16 MiB at 200, memory at 50: halfway of those two is 100."""
    curve = (read(1, 3200), read(4, 200), read(8, 200), read(16, 200), read(64, 50), read(256, 50))
    assert knee_bytes(curve, 16 * MIB) == pytest.approx(32 * MIB, rel=1e-6)


def test_rates_that_cannot_be_told_apart_have_no_knee() -> None:
    """Samples within 10 %: p10 to p90 are 92 to 108 %; 110 x 0.92 is below 100 x 1.08, 120 x 0.92 is not."""
    assert knee_bytes((read(1, 110), read(64, 100)), 16 * MIB) is None
    assert knee_bytes((read(1, 120), read(64, 100)), 16 * MIB) is not None


def test_the_h200_by_its_kept_curve() -> None:
    """60 MiB of L2: 30 are read at its rate, 90 are not yet read at DRAM's, 240 are."""
    header = read_profile(PROFILE).header
    roofs, cache = header.roofs, header.environment.last_level_cache_bytes
    assert roofs is not None
    knee = knee_bytes(roofs.bandwidths, cache)
    assert knee is not None
    assert 0.9 <= knee / cache <= 1.5
    found = sizes(roofs.bandwidths, header.environment, None, None)
    by = {one.working_set_bytes // MIB: one.served for one in found if one.operation == "read"}
    assert (by[15], by[30], by[45], by[60], by[180]) == ("cache", "cache", "both", "both", "both")
    assert (by[240], by[480], by[1920]) == ("memory",) * 3
    assert min(c.num_bytes for c in large_reads(roofs, header.environment)) == 240 * MIB


def test_copies_and_invalid_samples_are_no_part_of_the_knee() -> None:
    copy = Bandwidth("copy", "copier", 128 * MIB, (1e6,))
    broken = Bandwidth("read", "reader", 512 * MIB, (0.0, 5.0))
    assert knee_bytes((*STEP, copy, broken), 0) == knee_bytes(STEP, 0)


def test_a_flat_curve_has_no_knee_and_no_cache_roof() -> None:
    flat = tuple(read(mib, 100) for mib in (1, 16, 256))
    assert knee_bytes(flat, MIB) is None
    assert knee_bytes((), 0) is None
    assert cache_roof(flat, 16 * MIB, 101.0) is None


def test_the_cache_roof_is_the_best_read_within_the_cache() -> None:
    curve = (read(1, 300), read(8, 400), read(64, 500), Bandwidth("copy", "copier", MIB, (9000.0,)))
    assert cache_roof(curve, 16 * MIB, 100.0) == 400
    assert cache_roof(curve, 0, 100.0) is None  # of unknown size
    assert cache_roof(curve, 64 * MIB, None) == 500


def test_vendor_shares_are_for_what_memory_alone_serves() -> None:
    """The toy GPU has 1 MiB of cache; 16 MiB are read faster than more, so that a part came from it."""
    found = sizes(STEP, GPU, 100.0, Vendor(200.0, {}, "print"))
    assert [(one.served, one.x_memory, one.x_vendor) for one in found] == [
        ("both", 4.0, None),
        ("both", 4.0, None),
        ("memory", 1.0, 0.5),
        ("memory", 1.0, 0.5),
    ]
    unknown = sizes(STEP, replace(GPU, last_level_cache_bytes=0), 100.0, Vendor(200.0, {}, "print"))
    assert {(one.served, one.x_vendor) for one in unknown} == {("unknown", None)}


@pytest.mark.parametrize(("gb_s", "by"), [(100, "memory"), (102, "memory"), (103, "both")])
def test_a_set_that_larger_ones_do_not_match_was_cached_in_part(gb_s: float, by: str) -> None:
    assert served(4 * MIB, gb_s, (100.0, 110.0), MIB) == by
    assert served(3 * MIB, gb_s, (), MIB) == "both"
    assert served(MIB // 2, gb_s, (), MIB) == "cache"
    assert served(MIB // 2 + 1, gb_s, (), MIB) == "both"


@given(at=st.integers(1, 9), factor=st.floats(1.3, 20))
def test_the_knee_lies_between_the_last_cached_and_the_first_uncached(at: int, factor: float) -> None:
    curve = [read(2**i, 100 * factor if i < at else 100) for i in range(10)]
    knee = knee_bytes(curve, 0)
    if 0.92 * factor <= 1.08:  # the spreads of the two rates
        assert knee is None
        return
    assert knee is not None
    assert 2 ** (at - 1) * MIB <= knee <= 2**at * MIB


def test_sizes_run_from_far_below_the_cache_to_far_above() -> None:
    """60 MiB as on an H200, from 1/64 of it on: 15/16 MiB doubled up to 15 MiB, then 30, 45, 60, 90 ..."""
    found = [size / MIB for size in working_sets(60 * MIB, 60 * MIB // 64, 1 << 40)]
    assert found[:5] == [0.9375, 1.875, 3.75, 7.5, 15]
    assert found[5:] == [30, 45, 60, 90, 120, 180, 240, 480, 960, 1920]


@given(cache=st.integers(0, 1 << 31), least=st.integers(0, 1 << 24), most=st.integers(0, 1 << 33))
def test_sizes_are_whole_granules_within_their_bounds(cache: int, least: int, most: int) -> None:
    found = working_sets(cache, least, most)
    assert list(found) == sorted(set(found))
    for size in found:
        assert size % GRANULE_BYTES == 0
        assert max(1, least) <= size <= most


def test_an_unknown_cache_leaves_doublings() -> None:
    assert working_sets(0, MIB, 10 * MIB) == (MIB, 2 * MIB, 4 * MIB, 8 * MIB)
    assert working_sets(0, MIB, MIB - 1) == ()


def test_reads_that_no_cache_helps_are_ceilings() -> None:
    """The toy GPU's L2 holds 1 MiB: beyond 3. The toy CPU's cache holds 32 MiB: beyond 96."""
    roofs = Roofs((*STEP, Bandwidth("copy", "copier", 64 * MIB, (9e9,))))
    found = large_reads(roofs, GPU)
    assert [ceiling.num_bytes // MIB for ceiling in found] == [64, 256]
    assert best_ceiling(found) == 100
    assert [ceiling.num_bytes // MIB for ceiling in large_reads(roofs, CPU)] == [256]
    assert large_reads(roofs, replace(GPU, last_level_cache_bytes=0)) == ()
    assert large_reads(Roofs(), GPU) == ()


def test_passes_move_about_the_bytes_asked_for() -> None:
    assert num_passes(MIB, 64 * MIB) == 64
    assert num_passes(100 * MIB, 64 * MIB) == 1
    assert math.isclose(num_passes(3 * MIB, 64 * MIB), 21)

"""Plateaus and knees of synthetic bandwidth curves, and the sizes that a curve is measured at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import CPU, GPU
from questprof.roofline.curve import cache_roof, knee_bytes, large_reads, sizes
from questprof.roofline.vendor import Vendor
from questprof.roofline.working_sets import GRANULE_BYTES, num_passes, working_sets
from questprof.roofs import Bandwidth, Roofs
from questprof.scan import best_ceiling

MIB = 1 << 20


def read(mib: float, gb_s: float) -> Bandwidth:
    return Bandwidth("read", "reader", int(mib * MIB), (0.9 * gb_s, gb_s, 1.1 * gb_s))


STEP = (read(1, 400), read(16, 400), read(64, 100), read(256, 100))


def test_the_knee_worked_by_hand() -> None:
    """Memory reads at 100; the knee is at 125, between 16 MiB (400) and 64 MiB (100).

    Share of the way down: ln(400 / 125) / ln(400 / 100) = ln 3.2 / ln 4; so 16 MiB x 4^share = 16 x 3.2 MiB.
    """
    assert knee_bytes(STEP, 16 * MIB) == pytest.approx(51.2 * MIB, rel=1e-6)
    assert knee_bytes(reversed(STEP), 0) == knee_bytes(STEP, 255 * MIB)
    assert knee_bytes(STEP, 256 * MIB) is None  # the curve ends within the cache


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


def test_vendor_shares_are_for_sets_beyond_the_cache() -> None:
    found = sizes(STEP, GPU, 100.0, Vendor(200.0, {}, "print"))  # the toy GPU's cache holds 1 MiB
    assert [(one.fits_cache, one.x_memory, one.x_vendor) for one in found] == [
        (True, 4.0, None),
        (False, 4.0, 2.0),
        (False, 1.0, 0.5),
        (False, 1.0, 0.5),
    ]


@given(at=st.integers(1, 9), factor=st.floats(1.3, 20))
def test_the_knee_lies_between_the_last_cached_and_the_first_uncached(at: int, factor: float) -> None:
    curve = [read(2**i, 100 * factor if i < at else 100) for i in range(10)]
    knee = knee_bytes(curve, 0)
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
    """The toy GPU's L2 holds 1 MiB: from 16 MiB on. The toy CPU's cache holds 32 MiB: from 96 on."""
    roofs = Roofs((*STEP, Bandwidth("copy", "copier", 64 * MIB, (9e9,))))
    found = large_reads(roofs, GPU)
    assert [ceiling.num_bytes // MIB for ceiling in found] == [16, 64, 256]
    assert best_ceiling(found) == 400
    assert [ceiling.num_bytes // MIB for ceiling in large_reads(roofs, CPU)] == [256]
    assert large_reads(roofs, replace(GPU, last_level_cache_bytes=0)) == ()
    assert large_reads(None, GPU) == ()


def test_passes_move_about_the_bytes_asked_for() -> None:
    assert num_passes(MIB, 64 * MIB) == 64
    assert num_passes(100 * MIB, 64 * MIB) == 1
    assert math.isclose(num_passes(3 * MIB, 64 * MIB), 21)

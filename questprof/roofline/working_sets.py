"""Which working sets the bandwidth curve takes: from far below the last-level cache to far above. Pure."""

from __future__ import annotations

GRANULE_BYTES = 64 << 10
"""Working sets are multiples of it, so that halves and shares are whole vectors."""
ABOUT_THE_CACHE = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0)
"""Sizes over that of the cache, where the curve bends and beyond; below they double."""


def working_sets(cache_bytes: int, least_bytes: int, most_bytes: int) -> tuple[int, ...]:
    """Sizes in bytes, ascending, multiples of GRANULE_BYTES in least_bytes..most_bytes.

    They double up to a quarter of the last-level cache, then follow ABOUT_THE_CACHE. A cache of unknown size
    (0) leaves doublings to the end. Empty where most_bytes is below the least.
    """
    sizes = []
    size = max(least_bytes, GRANULE_BYTES)
    while size <= (cache_bytes // 4 if cache_bytes else most_bytes):
        sizes.append(size)
        size *= 2
    sizes += [int(share * cache_bytes) for share in ABOUT_THE_CACHE]
    rounded = {size // GRANULE_BYTES * GRANULE_BYTES for size in sizes}
    return tuple(sorted(size for size in rounded if least_bytes <= size <= most_bytes and size))


def num_passes(working_set_bytes: int, moved_bytes: int) -> int:
    """Passes over a working set that move about `moved_bytes`, at least one."""
    return max(1, moved_bytes // working_set_bytes)

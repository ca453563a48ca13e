"""The length scan of a profile, worked out once for all sections of a page."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from questprof.model import Profile
from questprof.rows import Row
from questprof.scan import scan_rows

MOST_KEPT: Final = 4
_kept: OrderedDict[int, tuple[Profile, tuple[Row, ...]]] = OrderedDict()
"""By identity: a profile is frozen, and is kept here so that its id stays its own."""


def rows_of(profile: Profile) -> tuple[Row, ...]:
    """`scan_rows` of `profile`."""
    known = _kept.get(id(profile))
    if known is None:
        known = _kept[id(profile)] = (profile, scan_rows(profile))
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return known[1]

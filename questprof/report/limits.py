"""What a page takes: a profile is untrusted input, and a browser has an end.

Text is cut where it is longer than any name or command is; too many records, or a page too large to open, are
refused with the way out. Numbers that JSON cannot hold become gaps of a figure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.model import Profile, Record
from questprof.printable import printable

MOST_RECORDS: Final = 20_000
"""Records of one page."""
MOST_PAGE_BYTES: Final = 100 << 20
MOST_TEXT: Final = 2000
"""Characters of one text: a long command line has fewer."""
_LONG: Final = re.compile(rb'"(?:[^"\\\\]|\\\\.){%d}' % MOST_TEXT)
_CONTROL: Final = re.compile(rb"\\[bfru]|\x7f")
_OUT: Final = "`questprof export` writes every record as CSV; give the page fewer profiles or settings."


def bounded(profile: Profile) -> Profile:
    """`profile` with every text cut to MOST_TEXT characters that UTF-8 can hold.

    Control characters, and those that turn the direction of the words behind them, become U+FFFD.
    """
    records = tuple(record if _is_short(record) else _cut(record) for record in profile.records)
    same = all(one is other for one, other in zip(records, profile.records, strict=True))
    return replace(
        profile,
        header=_cut(profile.header),
        records=profile.records if same else records,
        warnings=_cut(profile.warnings),
        name=_cut(profile.name),
    )


def refuse_too_many(profiles: Sequence[Profile]) -> None:
    """QuestprofError for more records than a page holds."""
    count = sum(len(profile.records) for profile in profiles)
    if count > MOST_RECORDS:
        raise QuestprofError(f"a page of {count} records", f"it holds {MOST_RECORDS} at most", _OUT)


def refuse_too_large(page: str) -> None:
    """QuestprofError for a page that no browser opens."""
    if len(page) > MOST_PAGE_BYTES:
        size, most = len(page) >> 20, MOST_PAGE_BYTES >> 20
        raise QuestprofError(f"a page of {size} MiB", f"it may have {most} MiB at most", _OUT)


def _is_short(record: Record) -> bool:
    """Whether no text of `record` has to be cut, seen from its JSON: faster than field by field."""
    text = msgspec.json.encode(record)
    return text.isascii() and not _LONG.search(text) and not _CONTROL.search(text)


def _cut(value: Any) -> Any:
    """`value` itself where nothing in it has to be cut."""
    if isinstance(value, str):
        return _cut_text(value)
    if isinstance(value, msgspec.Struct):
        return _cut_struct(value)
    if isinstance(value, dict):
        found = {_cut(key): _cut(item) for key, item in value.items()}
        return value if all(found.get(key) is item for key, item in value.items()) else found
    if isinstance(value, tuple) and value and not isinstance(value[0], int | float):
        items = tuple(map(_cut, value))
        return value if all(one is other for one, other in zip(items, value, strict=True)) else items
    return value


def _cut_struct(value: msgspec.Struct) -> msgspec.Struct:
    changed = {}
    for name in value.__struct_fields__:
        old = getattr(value, name)
        if (new := _cut(old)) is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value


def _cut_text(text: str) -> str:
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}… ({len(text)} characters)"
    return printable(text if text.isascii() else text.encode(errors="replace").decode(), "\ufffd")


def dumps(value: Any, **settings: Any) -> str:
    """JSON for the page; what is not finite is null, as JSON has no such number."""
    settings |= {"separators": (",", ":"), "allow_nan": False}
    try:
        return json.dumps(value, **settings)
    except ValueError:
        return json.dumps(_finite(value), **settings)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value

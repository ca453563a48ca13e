"""What every stored struct shares: frozen, defaults left out by value, a canonical JSON and a hash of it."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Annotated

import msgspec
from msgspec.structs import force_setattr

Sample = Annotated[float, msgspec.Meta(ge=1e-9, le=1e15)]
"""What a clock can read, in us or as a rate: a femtosecond to thirty years. Others are refused on reading."""
TimeDifference = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""The difference of two times: it may be zero or negative."""

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
"""Tokens of a context or a page, requests of a batch. What no machine holds is refused on reading."""
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""The same where there may be none."""


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Base of every stored struct. One with a default that equal objects need not be is a `ByValue`."""


class ByValue(Struct, frozen=True):
    """Equal ones have the same JSON, whichever way their values came to be."""

    def __post_init__(self) -> None:
        """Put the default itself in place of a value that equals it: msgspec omits defaults by identity.

        A text from a command line or a file equals the default "quest" and is another object.
        """
        for name, default in defaults_by_value(type(self)):
            value = getattr(self, name)
            if value is not default and value == default:
                force_setattr(self, name, default)


@cache
def defaults_by_value(kind: type[Struct]) -> tuple[tuple[str, object], ...]:
    """Fields of `kind` with a default that an equal object need not be, by name."""
    defaults = kind.__struct_defaults__
    named = zip(kind.__struct_fields__[-len(defaults) :], defaults, strict=True) if defaults else ()
    return tuple((name, value) for name, value in named if isinstance(value, str | int | float) and value)


def canonical_json(value: Struct) -> bytes:
    """Compact JSON with sorted keys and defaults omitted."""
    return msgspec.json.encode(value, order="sorted")


def short_hash(value: Struct) -> str:
    """16 hex digits of SHA-256 over the canonical JSON."""
    return hash_text(canonical_json(value))


def hash_text(text: bytes) -> str:
    """16 hex digits of SHA-256."""
    return hashlib.sha256(text).hexdigest()[:16]

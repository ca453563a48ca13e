"""What every stored struct shares: frozen, defaults left out, a canonical JSON and a hash of it."""

from __future__ import annotations

import hashlib

import msgspec


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of every stored struct."""


def canonical_json(value: Struct) -> bytes:
    """Compact JSON with sorted keys and defaults omitted."""
    return msgspec.json.encode(value, order="sorted")


def short_hash(value: Struct) -> str:
    """16 hex digits of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:16]

"""What the vendor prints about a device: shown beside the measurement, used in no calculation."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from questprof.structs import Struct


class Vendor(Struct, frozen=True):
    """The vendor's figures of one device."""

    gb_s: float
    """Memory bandwidth, 1e9 bytes a second."""
    tflop_s: dict[str, float]
    """Dense rates by dtype, 1e12 operations a second."""
    source: str


def vendor(device_name: str) -> Vendor | None:
    """The figures of the device of exactly that name, or None: a similar name may be a slower card."""
    return _table().get(device_name)


@lru_cache(maxsize=1)
def _table() -> dict[str, Vendor]:
    entries = tomllib.loads(Path(__file__).with_name("devices.toml").read_text())["device"]
    return {
        name: Vendor(float(entry["gb_s"]), dict(entry["tflop_s"]), entry["source"])
        for entry in entries
        for name in entry["names"]
    }

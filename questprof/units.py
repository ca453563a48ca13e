"""Numbers as people write them: `8k`, dtypes, bytes, microseconds."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from questprof.errors import QuestprofError

DTYPE_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8_e4m3": 1}
"""Bytes an element, for every dtype name the tool knows."""

KERNEL_DTYPES: Final = ("fp16", "bf16", "fp32")
"""The dtypes the kernels take today; the equations take every name in DTYPE_BYTES."""

_COUNT = re.compile(r"([0-9]{1,15})([km]?)", re.IGNORECASE)
_MOST = 1 << 40
_FACTOR = {"": 1, "k": 1024, "m": 1048576}


def parse_count(text: str, what: str = "number") -> int:
    """`8192`, `8k` (1024s) or `1m` (1048576s) as an int; QuestprofError otherwise."""
    match = _COUNT.fullmatch(text.strip())
    value = int(match[1]) * _FACTOR[match[2].lower()] if match else -1
    if not 0 <= value <= _MOST:
        raise QuestprofError(
            f"{what} {text.strip()!r}",
            f"it is not a whole number from 0 to {_MOST}",
            "Write 8192, 8k (k = 1024) or 1m (m = 1048576).",
        )
    return value


def format_count(value: int) -> str:
    """An int in the shortest exact spelling: 32768 -> `32k`, 1048576 -> `1m`, 1000 -> `1000`."""
    for suffix, factor in (("m", 1048576), ("k", 1024)):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def format_bytes(value: float) -> str:
    """Bytes in binary units, four significant digits: 33554432 -> `32 MiB`, 1 << 62 -> `4 EiB`."""
    for suffix in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(float(f"{value:.4g}")) < 1024:
            return f"{value:.4g} {suffix}"
        value /= 1024
    return f"{value:.4g} EiB"


def parse_bytes(text: str, what: str = "size") -> int:
    """`100g` (GiB), `512m` (MiB) as bytes; QuestprofError otherwise."""
    match = re.fullmatch(r"([0-9]{1,6})([mg])", text.strip(), re.IGNORECASE)
    if not match or not int(match[1]):
        why = "it holds nothing" if match else "it is no whole number of m or g, of six digits at most"
        raise QuestprofError(f"{what} {text.strip()!r}", why, "Write 100g (GiB) or 512m (MiB).")
    return int(match[1]) << (20 if match[2].lower() == "m" else 30)


def format_us(value: float) -> str:
    """Microseconds, three significant digits, no exponent: 40.53 -> `40.5`, 81234.0 -> `81234`."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def format_ratio(value: float) -> str:
    """Four decimals, halves up, the last left out where it is 0: 0.3125 -> `0.3125`, 0.125 -> `0.125`.

    Ratios of equation (12) are sums of few powers of two, which three decimals cut.
    """
    text = str(Decimal(repr(float(value))).quantize(Decimal("0.0001"), ROUND_HALF_UP))
    return text.removesuffix("0")


def format_seconds(value: float) -> str:
    """Seconds in the largest unit that they fill, two significant digits of it: `48 s`, `3.5 min`, `24 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}" if value >= 10 * size else f"{value / size:.1f} {unit}"
    return f"{value:.0f} s"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 block`, `2 blocks`; with `plural` as in `1 head is`, `2 heads are`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def six_digits(value: float) -> float:
    """`value` to six significant digits: figures on a page need no more, and pages stay small."""
    return float(f"{value:.6g}")


def dtype_bytes(name: str) -> int:
    """Bytes an element of dtype `name`; QuestprofError for an unknown name."""
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        raise QuestprofError(
            f"dtype {name!r}", "it is unknown", f"Choose one of {', '.join(DTYPE_BYTES)}."
        ) from None

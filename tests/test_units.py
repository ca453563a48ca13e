"""Numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.errors import QuestprofError
from questprof.units import (
    count,
    dtype_bytes,
    format_bytes,
    format_count,
    format_ratio,
    format_seconds,
    format_us,
    parse_bytes,
    parse_count,
)


@pytest.mark.parametrize(
    ("text", "value"), [("8192", 8192), ("8k", 8192), ("8K", 8192), ("1m", 1048576), (" 2k ", 2048)]
)
def test_parse_count(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "8x", "-1", "1.5k", "8kk", "eight", "8 k", "\u0663", "9" * 30, "9999999999999m"]
)
def test_parse_count_refuses(text: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        parse_count(text, "length")
    assert "length" in caught.value.what
    assert "8k" in caught.value.fix


@given(st.integers(min_value=0, max_value=1 << 40))
def test_format_count_is_exact(value: int) -> None:
    assert parse_count(format_count(value)) == value


def test_formats() -> None:
    assert format_bytes(33554432) == "32 MiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023.97 * 1024) == "1 MiB"  # 1024 KiB are one
    assert [format_bytes(1 << power) for power in (40, 50, 60, 62)] == ["1 TiB", "1 PiB", "1 EiB", "4 EiB"]
    assert format_bytes(-(3 << 20)) == "-3 MiB"
    assert format_us(4.053) == "4.05"
    assert format_us(40.53) == "40.5"
    assert format_us(81234.0) == "81234"


@pytest.mark.parametrize(
    ("value", "text"),
    [(5 / 16, "0.3125"), (1 / 16, "0.0625"), (1 / 32, "0.0313"), (17 / 16, "1.0625"), (1 / 8, "0.125"),
     (2 / 3, "0.6667"), (1, "1.000"), (0.0, "0.000"), (12.34567, "12.3457")],
)  # fmt: skip
def test_a_ratio_is_not_cut(value: float, text: str) -> None:
    assert format_ratio(value) == text


def test_dtype_bytes() -> None:
    assert [dtype_bytes(name) for name in ("fp32", "fp16", "bf16", "int8", "fp8_e4m3")] == [4, 2, 2, 1, 1]
    with pytest.raises(QuestprofError):
        dtype_bytes("float16")


@pytest.mark.parametrize(("text", "value"), [("100g", 100 << 30), ("512M", 512 << 20), (" 1g ", 1 << 30)])
def test_parse_bytes(text: str, value: int) -> None:
    assert parse_bytes(text, "pool") == value


@pytest.mark.parametrize("text", ["", "100", "0g", "00m", "1.5g", "-1g", "1k", "g", "1234567g"])
def test_parse_bytes_refuses(text: str) -> None:
    """What is a number and no size says that, and not that it were no number."""
    with pytest.raises(QuestprofError, match="pool") as caught:
        parse_bytes(text, "pool")
    assert ("it holds nothing" in caught.value.why) == text.startswith("0")
    assert ("no whole number" in caught.value.why) == (not text.startswith("0"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (48.3, "48 s"), (119.6, "120 s"), (210, "3.5 min"), (3600, "60 min"), (86419, "24 h")],
)
def test_seconds_in_the_largest_unit_they_fill(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_one_is_no_plural() -> None:
    assert [count(n, "block") for n in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
    assert [count(n, "query is", "queries are") for n in (0, 1, 2)] == [
        "0 queries are",
        "1 query is",
        "2 queries are",
    ]

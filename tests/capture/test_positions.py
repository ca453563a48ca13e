from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.capture.positions import query_positions
from questprof.errors import QuestprofError


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("last:3", (7, 8, 9)),
        ("last:10", tuple(range(10))),
        ("every:4", (3, 7)),
        ("every:1", tuple(range(10))),
        ("9,0,4,4", (0, 4, 9)),
        (" 5 ", (5,)),
        ("generated", (6, 7, 8, 9)),
        ("generated:3", (6, 9)),
    ],
)
def test_forms(spec: str, expected: tuple[int, ...]) -> None:
    assert query_positions(spec, 10, num_generated=4) == expected


def test_counts_may_be_written_short() -> None:
    assert query_positions("1k,2k", 4096) == (1024, 2048)
    assert len(query_positions("last:1k", 4096)) == 1024


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("", "no form that is known"),
        ("first:3", "no form that is known"),
        ("-1", "no form that is known"),
        ("3,x", "no form that is known"),
        ("last:", "not a whole number"),
        ("last:0", "names no token"),
        ("last:11", "too short: it has 10 tokens"),
        ("every:11", "too short: it has 10 tokens"),
        ("10", "past the trace, whose tokens are 0 to 9"),
        ("generated", "no token is generated"),
    ],
)
def test_what_cannot_be_is_said(spec: str, why: str) -> None:
    with pytest.raises(QuestprofError, match=why):
        query_positions(spec, 10)


@given(num_tokens=st.integers(1, 500), number=st.integers(1, 500), kind=st.sampled_from(["last", "every"]))
def test_positions_ascend_inside_the_text(num_tokens: int, number: int, kind: str) -> None:
    if number > num_tokens:
        with pytest.raises(QuestprofError, match="too short"):
            query_positions(f"{kind}:{number}", num_tokens)
        return
    positions = query_positions(f"{kind}:{number}", num_tokens)
    assert list(positions) == sorted(set(positions))
    assert positions[0] >= 0
    assert positions[-1] < num_tokens
    assert len(positions) == (number if kind == "last" else num_tokens // number)

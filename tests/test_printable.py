"""Text of others on a terminal and on a page: what steers is replaced, what is read stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.printable import printable


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("plain, äöü, 中文, 1.5x", "plain, äöü, 中文, 1.5x"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("GPU \u202erewols si", "GPU ?rewols si"),
        ("a\x00b\x7fc\x9bd", "a?b?c?d"),
        ("", ""),
    ],
)
def test_only_what_steers_is_replaced(text: str, plain: str) -> None:
    assert printable(text) == plain


@given(st.text())
def test_it_keeps_the_length_and_leaves_nothing_that_steers(text: str) -> None:
    found = printable(text, "\ufffd")
    assert len(found) == len(text)
    assert all(c.isprintable() or c in "\n\t" for c in found)
    assert printable(found, "\ufffd") == found

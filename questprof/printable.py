"""Text of others, as of a kernel's exception, without what steers a terminal or turns words around."""

from __future__ import annotations


def printable(text: str, instead: str = "?") -> str:
    """`text` with `instead` for control and format characters; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else instead for c in text)

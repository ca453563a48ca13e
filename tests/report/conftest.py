"""The page as a reader's browser parses it: elements, tables, figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

NUMBER = re.compile(r"-?[0-9.]+")
VOID = {"meta", "input", "link", "img", "br", "hr"}
ENDS_BEFORE = {"td": {"td", "th"}, "th": {"td", "th"}, "tr": {"td", "th", "tr"}}
"""Elements that the start of another ends, where the page does not end them itself."""
ENDS_WITHIN = {"thead", "tbody", "table"}


@dataclass
class Page(HTMLParser):
    """One parsed page. `elements` are (tag, attributes, text inside), in order of opening."""

    html: str
    elements: list[tuple[str, dict[str, str], list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(self.html)
        self.close()
        assert self._open == [], f"left open: {[tag for tag, _, _ in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end(ENDS_BEFORE.get(tag, set()))
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def _end(self, tags: set[str]) -> None:
        while self._open and self._open[-1][0] in tags:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in ENDS_WITHIN:
            self._end({"td", "th", "tr"})
        opened = self._open.pop()
        assert opened[0] == tag, f"</{tag}> closes <{opened[0]}>"

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def all(self, tag: str, **attrs: str) -> list[tuple[dict[str, str], str]]:
        """Attributes and text of the elements of that tag with those attributes (class_ for class)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attrs.items()}
        return [
            (found, "".join(texts))
            for name, found, texts in self.elements
            if name == tag and wanted.items() <= found.items()
        ]

    @property
    def text(self) -> str:
        """What a reader sees (and hears), scripts and styles left out."""
        return "".join(self.all("main")[0][1] if self.all("main") else "")

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The figures' JSON, in order."""
        return [json.loads(text) for _, text in self.all("script", class_="figure-data")]

    @property
    def cells(self) -> dict[str, list[tuple[str | None, str]]]:
        """(raw value, text) down every column of the length-scan tables, by field."""
        columns: dict[str, list[tuple[str | None, str]]] = {}
        for name, attrs, text in self._cells():
            raw = attrs.get("data-v") or (text if NUMBER.fullmatch(text) else None)
            columns.setdefault(name, []).append((raw, text))
        return columns

    def cells_of(self, field: str) -> list[tuple[dict[str, str], str]]:
        """Attributes and text of every cell of the column."""
        return [(attrs, text) for name, attrs, text in self._cells() if name == field]

    def _cells(self) -> Iterator[tuple[str, dict[str, str], str]]:
        fields: list[str] = []
        column, in_body = 0, False
        for tag, attrs, texts in self.elements:
            if tag == "table":
                fields, in_body = [], False
            elif tag == "tbody":
                in_body = True
            elif tag == "tr":
                column = 0
            elif tag == "th" and "data-field" in attrs:
                fields.append(attrs["data-field"])
            elif tag in ("td", "th") and in_body and column < len(fields):
                yield fields[column], attrs, "".join(texts)
                column += 1


@pytest.fixture
def parse():
    """Parses a page; fails on elements that are not closed properly."""
    return Page

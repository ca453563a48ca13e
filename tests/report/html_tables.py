"""Rows and cells of a table's HTML, whose end tags HTML lets a page leave out."""

from __future__ import annotations

import re

ROW = re.compile(r"<tr[^>]*>(.*?)(?=<tr|</t(?:body|head|able)|\Z)", re.DOTALL)
CELL = re.compile(r"<t[hd]([^>]*)>(.*?)(?=<t[hd]|</t[hdr]|\Z)", re.DOTALL)


def rows(table: str) -> list[list[tuple[str, str]]]:
    """(attributes, inner HTML) of every cell, row by row."""
    return [CELL.findall(row) for row in ROW.findall(table)]


def texts(table: str) -> list[list[str]]:
    """The inner HTML of every cell, row by row."""
    return [[text for _, text in row] for row in rows(table)]

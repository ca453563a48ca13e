"""Imports go downward only: no two packages need each other, however many lie between them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "questprof"
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def imported(path: Path) -> Iterable[str]:
    """The packages of questprof that a file imports from, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "questprof":
            parts = node.module.split(".")[1:2] or [name.name for name in node.names]
            yield from (part for part in parts if part in PACKAGES)


def test_packages_import_in_one_direction() -> None:
    needs = {
        name: {other for path in (ROOT / name).glob("*.py") for other in imported(path) if other != name}
        for name in sorted(PACKAGES)
    }
    assert "sweep" in needs["roofline"]
    assert "roofline" not in needs["sweep"]
    order = list(TopologicalSorter(needs).static_order())  # CycleError names a cycle
    assert set(order) >= PACKAGES

"""The figures in the README and the kept pages come from the kept profiles, and from nowhere else."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from questprof.crossover.sentences import verdicts
from questprof.scan import scan_rows, series
from questprof.store import read_profile
from questprof.sweep.display import print_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROFILES = sorted((ROOT / "profiles").rglob("*.jsonl"))


def _printed(path: Path) -> list[str]:
    """What a sweep prints at its end for the profile at `path`."""
    rows = scan_rows(read_profile(path))
    console = Console(file=io.StringIO(), width=160)
    print_tables(console, rows)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()] + list(verdicts(series(rows)))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kept_profiles_are_whole_and_checked(path: Path) -> None:
    profile = read_profile(path)
    assert profile.warnings == ()
    assert {record.status for record in profile.records} == {"ok"}
    for record in profile.records:
        assert all(check.holds for check in record.checks)
        assert {check.when for check in record.checks} == {"before", "after"}
    assert profile.header.environment.commit
    assert not profile.header.environment.commit.endswith("-dirty")


def test_what_is_kept() -> None:
    assert [path.relative_to(ROOT / "profiles").as_posix() for path in PROFILES] == [
        "cpu/length-scan.jsonl",
        "h200/first-kernels.jsonl",
        "h200/kernels-append.jsonl",
        "h200/kernels-baselines.jsonl",
        "h200/kernels-batch.jsonl",
        "h200/kernels-bf16.jsonl",
        "h200/kernels-gqa.jsonl",
        "h200/kernels-order.jsonl",
        "h200/kernels-select.jsonl",
        "h200/kernels.jsonl",
    ]
    pages = {"cpu-length-scan.html", "h200-first-kernels.html", "h200-kernels.html"}
    assert {page.name for page in (ROOT / "reports").glob("*.html")} >= pages


@pytest.mark.parametrize("name", ["h200/kernels", "cpu/length-scan"])
def test_every_line_of_figures_in_the_readme_is_a_line_of_its_profile(name: str) -> None:
    block = re.search(rf"<!-- {name} -->\n```text\n(.*?)```", README, re.DOTALL)
    assert block
    shown = [line for line in block[1].splitlines() if line]
    assert len(shown) > 5
    printed = _printed(ROOT / "profiles" / f"{name}.jsonl")
    assert [line for line in shown if line not in printed] == []

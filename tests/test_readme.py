"""The figures in the README and the kept pages come from the kept profiles, and from nowhere else."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from questprof.amdahl.finding import amdahl
from questprof.amdahl.sentences import verdict
from questprof.bytecheck.judge import judge_profile, overall
from questprof.crossover.sentences import verdicts
from questprof.errors import Exit
from questprof.scan import scan_rows, series
from questprof.store import read_profile
from questprof.sweep.display import print_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
KEPT_PAGES = (
    "cpu-length-scan",
    "h200-amdahl-batch",
    "h200-amdahl-llama-2-7b",
    "h200-amdahl-llama-3.1-8b",
    "h200-bytes",
    "h200-energy",
    "h200-first-kernels",
    "h200-grid",
    "h200-kernels",
    "h200-roofline",
    "smollm2-135m-recall",
)
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
    too_large = (
        {"oom"} if path.stem == "amdahl-batch" else set()
    )  # 32 requests of 32k tokens: the record says so
    assert {record.status for record in profile.records} <= {"ok", "unstable"} | too_large
    for record in profile.records:
        if record.kind == "sweep":
            assert all(check.holds for check in record.checks)
            assert {check.when for check in record.checks} == {"before", "after"}
    assert overall(judge_profile(profile)) in (Exit.OK, Exit.MACHINE)  # the latter: it holds no counts
    assert profile.header.environment.commit
    assert not profile.header.environment.commit.endswith("-dirty")


def test_what_is_kept() -> None:
    assert [path.relative_to(ROOT / "profiles").as_posix() for path in PROFILES] == [
        "cpu/length-scan.jsonl",
        "h200/amdahl-batch.jsonl",
        "h200/amdahl-llama-2-7b.jsonl",
        "h200/amdahl-llama-3.1-8b.jsonl",
        "h200/bytes.jsonl",
        "h200/energy.jsonl",
        "h200/first-kernels.jsonl",
        "h200/grid-again.jsonl",
        "h200/grid.jsonl",
        "h200/kernels-append.jsonl",
        "h200/kernels-baselines.jsonl",
        "h200/kernels-batch.jsonl",
        "h200/kernels-bf16.jsonl",
        "h200/kernels-gqa.jsonl",
        "h200/kernels-order.jsonl",
        "h200/kernels-select.jsonl",
        "h200/kernels.jsonl",
        "h200/roofline.jsonl",
        "smollm2-135m/recall.jsonl",
    ]
    pages = {f"{name}.html" for name in KEPT_PAGES}
    assert {page.name for page in (ROOT / "reports").glob("*.html")} >= pages


@pytest.mark.parametrize("name", ["h200/kernels", "cpu/length-scan"])
def test_every_line_of_figures_in_the_readme_is_a_line_of_its_profile(name: str) -> None:
    block = re.search(rf"<!-- {name} -->\n```text\n(.*?)```", README, re.DOTALL)
    assert block
    shown = [line for line in block[1].splitlines() if line]
    assert len(shown) > 5
    printed = _printed(ROOT / "profiles" / f"{name}.jsonl")
    assert [line for line in shown if line not in printed] == []


def test_every_sentence_on_whole_steps_in_the_readme_is_of_its_profile() -> None:
    block = re.search(r"<!-- h200/amdahl-llama-2-7b -->\n```text\n(.*?)```", README, re.DOTALL)
    assert block
    found = amdahl(read_profile(ROOT / "profiles/h200/amdahl-llama-2-7b.jsonl"))
    assert found
    said = {verdict(pair) for pair in found.steps.pairs}
    shown = block[1].splitlines()
    assert len(shown) == 4
    assert [line for line in shown if line not in said] == []

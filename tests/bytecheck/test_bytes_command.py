"""`questprof bytes` in a process of its own: a real trace end to end, wrong kernels, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from questprof.errors import Exit
from questprof.store import read_profile

TESTS = Path(__file__).parents[1]
TINY = "--lengths 187 --page-sizes 12 --budgets 60"
"""16 pages, the last of 7 tokens, of which 5 are selected."""
FAULTS = {
    "keys_only": "K without V",
    "no_summary": "summary not read",
    "gather": "gather through a temporary",
    "touches_one": "unselected page touched",
    "wide_tile": "tile larger than page",
    "duplicate_id": "duplicate ids",
}
"""Wrong stage set -> the verdict it must get."""


def start(arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """`questprof ARGUMENTS` in `cwd`, with the tests' own stage sets to be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(TESTS)
    return subprocess.Popen(
        [sys.executable, "-m", "questprof", *arguments.split()],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts a suite in the background leaves Ctrl-C ignored for all below it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    status: int
    stdout: str
    stderr: str


def ended(process: subprocess.Popen[str]) -> Done:
    stdout, stderr = process.communicate(timeout=240)
    return Done(process.returncode, stdout, stderr)


def run(arguments: str, cwd: Path) -> Done:
    return ended(start(arguments, cwd))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A trace of both layouts with the ablation and a whole prompt, as JSON, and where it ran."""
    cwd = tmp_path_factory.mktemp("traced")
    return cwd, run(
        f"bytes --check-formula --source trace {TINY} --gather --append --json -o p.jsonl --html p.html", cwd
    )


def test_a_trace_of_the_projects_kernels_holds(traced: tuple[Path, Done]) -> None:
    _, done = traced
    assert done.status == Exit.OK, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == 0
    assert document["failures"] == []
    assert len(document["judgements"]) == 2
    for judgement in document["judgements"]:
        assert judgement["holds"] is True
        stages = {stage["stage"] for stage in judgement["stages"]}
        assert {"append", "append_prefill", "score", "select", "attend", "dense"} <= stages
        assert {stage["source"] for stage in judgement["stages"]} == {"trace"}
    assert "2 of 32 query heads of llama-2-7b" in done.stderr


def test_k_v_and_summary_are_those_of_the_ledger_to_the_byte(traced: tuple[Path, Done]) -> None:
    cwd, _ = traced
    profile = read_profile(cwd / "p.jsonl")
    assert profile.header.environment.device == "cpu"
    for record in profile.records:
        assert (record.kind, record.status, record.point.variant) == ("bytes", "ok", "triton")
        assert record.unselected_bytes == 0
        counts = {count.stage: count.tensors for count in record.counts}
        exact = [e for e in record.ledger if e.in_eq12 and e.stage != "quest"]
        assert {e.tensor for e in exact} == {"k", "v", "summary"}
        for entry in exact:
            if entry.tensor != "summary" or record.point.summary_layout == "paired":
                assert counts[entry.stage][entry.tensor].read == entry.read_bytes


def test_the_ablation_moves_what_its_ledger_says(traced: tuple[Path, Done]) -> None:
    """Four more transfers of the selected K and V, and of a table a hundredth of them."""
    _, done = traced
    for judgement in json.loads(done.stdout)["judgements"]:
        (cost,) = judgement["gather"]
        extra = cost["gather_bytes"] - cost["attend_bytes"]
        # Two heads, 4 whole pages and the tail's 7 tokens each: 2 x (4 x 12 + 7) x 256 B, K and V, twice.
        selected = 2 * (4 * 12 + 7) * 256
        assert 4 * selected <= extra <= 4.05 * selected


def test_the_page_is_written(traced: tuple[Path, Done]) -> None:
    cwd, _ = traced
    assert "plotly" in (cwd / "p.html").read_text()


def test_nothing_is_overwritten_and_resuming_has_nothing_left(traced: tuple[Path, Done]) -> None:
    cwd, _ = traced
    before = (cwd / "p.jsonl").read_bytes()
    refused = run(f"bytes --source trace {TINY} -o p.jsonl", cwd)
    assert refused.status == Exit.USAGE
    assert "nothing is overwritten unasked" in refused.stderr
    other = run(f"bytes --source trace {TINY} -o p.jsonl --resume --kernels faults.right:stages", cwd)
    assert other.status == Exit.USAGE
    assert "cannot resume with other options" in other.stderr
    resumed = run(f"bytes --source trace {TINY} --gather --append -o p.jsonl --resume", cwd)
    assert resumed.status == Exit.OK, resumed.stderr
    assert (cwd / "p.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Every stage set of tests/faults, traced; two at a time."""
    cwd = tmp_path_factory.mktemp("faulty")
    names = ["right", *FAULTS]
    done: dict[str, Done] = {}
    for pair in (names[i : i + 2] for i in range(0, len(names), 2)):
        processes = {
            name: start(
                f"bytes --check-formula --source trace {TINY} --summary-layout paired "
                f"--kernels faults.{name}:stages -o {name}.jsonl",
                cwd,
            )
            for name in pair
        }
        done |= {name: ended(process) for name, process in processes.items()}
    return done


def test_other_kernels_without_a_fault_hold(faulty: dict[str, Done]) -> None:
    done = faulty["right"]
    assert done.status == Exit.OK, done.stdout + done.stderr
    assert "faults.right:stages" in done.stdout  # the variant, so that the figures are not the project's


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_fails_with_its_verdict(fault: str, faulty: dict[str, Done]) -> None:
    done = faulty[fault]
    assert done.status == Exit.CHECK_FAILED, done.stdout + done.stderr
    assert FAULTS[fault] in done.stdout


def test_hardware_that_is_not_here_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing is traced in its place, and nothing is written."""
    done = run(f"bytes --source ncu --ncu /no/such/ncu {TINY} --html a.html -o a.jsonl", tmp_path)
    assert done.status == Exit.MACHINE
    assert "error: " in done.stderr
    assert "--source trace" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_the_profile_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start("bytes --source trace --lengths 64k --page-sizes 16 -o a.jsonl", tmp_path)
    for _ in range(200):
        if (tmp_path / "a.jsonl").exists():
            break
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert done.status == Exit.INTERRUPTED, done.stderr
    assert "-o a.jsonl --resume" in done.stderr
    assert read_profile(tmp_path / "a.jsonl").records == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--source magic", "Choose one of auto, ncu, trace, formula"),
        ("--grid magic", "Choose one of default, series, plane"),
        ("--source formula --check-formula", "the formula alone counts nothing"),
        ("--source formula -o a.jsonl", "-o with --source formula"),
        ("--source formula --kernels a:b --no-proof", "--proof, --kernels with --source formula"),
        ("--source trace --ncu /usr/bin/ncu", "--ncu with --source trace"),
        ("--kernels no_such:stages", "there is no module no_such"),
        ("--kernels faults.right:nothing", "faults.right has no nothing"),
        ("--kernels mine=faults.right", "it is not MODULE:OBJECT"),
        ("--budgets 8 --page-sizes 16", "the token budget is smaller than a page"),
        ("--resume", "it needs the profile to go on with"),
    ],
)
def test_what_cannot_be_is_a_usage_error(arguments: str, words: str, tmp_path: Path) -> None:
    done = run(f"bytes {arguments}", tmp_path)
    assert done.status == Exit.USAGE
    assert words in done.stderr
    assert not list(tmp_path.glob("*.jsonl"))


def test_the_formula_alone_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv = ['questprof', 'bytes', '--source', 'formula', '--lengths', '32k', '--page-sizes', '16', "
        "'--budgets', '2048', '--json']\n"
        "try:\n    runpy.run_module('questprof', run_name='__main__')\n"
        "finally:\n    assert not {'torch', 'triton', 'numba'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(done.stdout)
    assert [row["read_ratio"] for row in rows] == pytest.approx([0.125, 0.09375])
    assert {entry["stage"] for entry in rows[0]["ledger"]} >= {"score", "select", "attend", "dense", "append"}


def test_help_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, runpy\nsys.argv = ['questprof', 'bytes', '--help']\n"
        "try:\n    runpy.run_module('questprof', run_name='__main__')\n"
        "finally:\n    assert not {'torch', 'triton', 'numba', 'plotly'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--check-formula" in done.stdout

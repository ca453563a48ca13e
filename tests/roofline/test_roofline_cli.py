"""`questprof roofline` as people meet it: measured on this CPU, then read again from its profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from questprof.counts import StageCount
from questprof.errors import Exit
from questprof.model import Record
from questprof.store import read_profile, seal

SMALL_SWEEP = Path(__file__).parents[1] / "small_sweep.py"
"""The command line over a CPU whose caches are said to be small."""
SMALL = (
    "roofline --device cpu --shape smollm2-135m --lengths 1k --budgets 256 --samples 3 "
    "--max-working-set 32m -o small.jsonl --html small.html"
)


def run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [str(SMALL_SWEEP)] if arguments == SMALL else ["-m", "questprof"]
    command = [sys.executable, *program, *arguments.split()]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    cwd = tmp_path_factory.mktemp("roofline")
    return cwd, run(SMALL, cwd)


def test_a_run_shows_roofs_and_stages(measured: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = measured
    assert done.returncode == Exit.OK, done.stderr
    assert done.stdout.splitlines()[0].startswith("CPU figures")
    for text in ("bandwidth by working set", "torch.matmul", "compiled call", "stages under the roofs"):
        assert text in done.stdout, text
    assert done.stdout.splitlines()[-2:] == ["small.jsonl", "small.html"]
    assert 'id="p1-roofline"' in (cwd / "small.html").read_text()
    assert "measured only: no vendor figure" in done.stderr
    assert "the profile's own" not in done.stdout + done.stderr  # its repeated passes are of this run too


def test_the_profile_keeps_raw_samples_of_every_roof(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    roofs = read_profile(measured[0] / "small.jsonl").header.roofs
    assert roofs is not None
    assert {one.operation for one in roofs.bandwidths} == {"read", "copy"}
    assert max(one.working_set_bytes for one in roofs.bandwidths) <= 32 << 20
    assert {one.dtype for one in roofs.flop_rates} == {"fp32", "bf16", "fp16"}
    assert all(min(one.samples_gb_s) > 0 for one in roofs.bandwidths)
    assert all(min(one.samples_tflop_s) > 0 for one in roofs.flop_rates)
    assert all(min(one.samples_us) > 0 for one in roofs.launches)


def test_a_profile_is_read_again_without_measuring(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd = measured[0]
    done = run("roofline small.jsonl --json", cwd)
    assert done.returncode == Exit.OK, done.stderr
    document = json.loads(done.stdout)
    assert {line["stage"] for line in document["lines"]} >= {"dense", "score", "select", "attend", "quest"}
    dense = next(line for line in document["lines"] if line["stage"] == "dense")
    # 9 query heads x 64 dims x 4 x 1024 tokens over 2 x 3 KV heads x 64 dims x 4 B x 1024: 2304 / 1536.
    memory = [place for place in dense["placed"] if place["level"] == "memory"]
    assert [place["intensity"] for place in memory] == [1.5] * len(memory)
    assert dense["flops"] == 9 * 64 * 4 * 1024
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("roofline small.jsonl -o other.jsonl", "nothing is measured"),
        ("roofline small.jsonl --lengths 4k --seed 1", "--lengths, --seed with profiles to read"),
        ("roofline absent.jsonl", "cannot read"),
        ("roofline small.jsonl small.jsonl", "no common roof"),
        ("roofline --device cpu --max-working-set 5", "no whole number of m or g"),
        ("roofline --device cpu --budgets 8", "smaller than a page"),
    ],
)
def test_what_cannot_be_is_refused(
    measured: tuple[Path, subprocess.CompletedProcess[str]], arguments: str, said: str
) -> None:
    done = run(arguments, measured[0])
    assert done.returncode == Exit.USAGE
    assert said in done.stderr


def test_counted_bytes_may_come_from_another_profile(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """The counts of dense, 1024 tokens of 2 x 3 x 64 x 4 B twice, beside the times: half the intensity."""
    cwd = measured[0]
    swept = read_profile(cwd / "small.jsonl")
    dense = next(record for record in swept.records if record.point.policy == "dense")
    count = StageCount("dense", "ncu", 2 * 1536 * 1024, 0)
    point = msgspec.structs.replace(dense.point, variant="cuda")
    counted = Record("bytes", point, point.point_id, dense.env_id, "ok", counts=(count,))
    header = msgspec.structs.replace(swept.header, roofs=None, ceilings=())
    (cwd / "bytes.jsonl").write_bytes(seal(header) + seal(counted))
    document = json.loads(run("roofline bytes.jsonl small.jsonl --json", cwd).stdout)
    (line,) = (line for line in document["lines"] if line["stage"] == "dense")
    marks = {(place["level"], place["source"]): place["intensity"] for place in line["placed"]}
    assert line["alarm"] or line["cache_state"] != "cold" or marks["memory", "ncu"] == 0.75
    assert document["sizes"]


def test_reading_a_profile_imports_no_torch(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "import sys; from questprof.commands.roofline import roofline;"
        "from pathlib import Path; roofline([Path('small.jsonl')]); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=measured[0], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

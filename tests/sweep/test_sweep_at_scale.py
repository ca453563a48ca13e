"""Sweeps killed, interrupted, short of disk, sharded, bounded in time: real ones, small, on the CPU."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from questprof.errors import Exit
from questprof.store import read_profile
from questprof.sweep.merge import merge_profiles

PROGRAM = [sys.executable, "-u", str(Path(__file__).parents[1] / "small_sweep.py")]
GRID = "--device cpu --shape smollm2-135m --lengths 128,256,512,1k --budgets 64,all --samples 3"
NUM_POINTS = 4 * (2 + 2 * 2)
"""Lengths x (2 baselines + 2 budgets x 2 kinds of queries)."""


def _environment() -> dict[str, str]:
    """Native kernels, and one commit whatever happens to the checkout between a kill and its resume."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"QUESTPROF_COMMIT": "0123abc"}


def _start(arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*PROGRAM, *arguments.split()],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    with _start(arguments, cwd) as child:
        out, err = child.communicate(timeout=200)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def _ids(path: Path) -> list[str]:
    return [record.point_id for record in read_profile(path).records]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The ids that GRID asks for."""
    return _asked(tmp_path_factory.mktemp("asked"), GRID)


def _asked(cwd: Path, options: str) -> list[str]:
    """The ids that the grid asks for, from a dry run."""
    document = json.loads(_run(f"sweep {options} --dry-run --json", cwd).stdout)
    return [point_id for block in document["blocks"] for point_id in block["point_ids"]]


def test_killed_at_any_moment_a_resumed_sweep_has_every_point_once(tmp_path: Path, asked: list[str]) -> None:
    """SIGKILL at random moments, from its first line on, until a run comes to its end."""
    source, path, kills = random.Random(time.time_ns()), tmp_path / "p.jsonl", 0
    kept: list[bytes] = []
    for _ in range(12):
        with _start(f"sweep {GRID} -o p.jsonl --resume", tmp_path) as child:
            assert child.stdout is not None
            child.stdout.readline()  # imports are done
            if kills < 4:
                time.sleep(source.uniform(0.0, 1.5))
                child.kill()
            _, said = child.communicate(timeout=200)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, said
        kills += 1
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        assert whole[: len(kept)] == kept  # nothing that was complete is lost
        kept = whole
    assert child.returncode == 0
    assert kills >= 1
    ids = _ids(path)
    assert len(ids) == NUM_POINTS
    assert sorted(ids) == sorted(asked)
    assert read_profile(path).warnings == ()


def test_an_interrupt_keeps_the_block_it_ends(tmp_path: Path) -> None:
    with _start(f"sweep {GRID} -o p.jsonl", tmp_path) as child:
        assert child.stdout is not None
        assert any("length 256" in line for line in iter(child.stdout.readline, ""))
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    assert child.returncode == Exit.INTERRUPTED
    assert "ending this block" in said
    assert "--resume" in said
    assert "Traceback" not in said
    records = read_profile(tmp_path / "p.jsonl").records
    assert len(records) % 6 == 0  # whole blocks
    assert {record.point.seq_len for record in records} >= {128, 256}
    assert {record.status for record in records} <= {"ok", "unstable"}
    assert all(record.times_us for record in records)


def test_a_full_disk_is_one_error_and_what_was_complete_is_gone_on_with(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the write is cut short, then refused."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [*PROGRAM, *f"sweep {GRID} -o p.jsonl".split()]
    full = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
        preexec_fn=limit,
    )
    assert full.returncode == Exit.MACHINE, full.stderr
    assert "cannot write p.jsonl further" in full.stderr
    assert "--resume" in full.stderr
    assert "Traceback" not in full.stderr
    assert (tmp_path / "p.jsonl").stat().st_size == 60_000
    some = _ids(tmp_path / "p.jsonl")
    assert 0 < len(some) < NUM_POINTS
    done = _run(f"sweep {GRID} -o p.jsonl --resume", tmp_path)
    assert done.returncode == Exit.OK, done.stderr
    ids = _ids(tmp_path / "p.jsonl")
    assert ids[: len(some)] == some
    assert len(set(ids)) == len(ids) == NUM_POINTS


def test_an_output_that_takes_nothing_is_one_error(tmp_path: Path) -> None:
    for output in ("/dev/full", "."):
        done = _run(f"sweep {GRID} -o {output} --force", tmp_path)
        assert done.returncode == Exit.USAGE
        assert f"error: cannot write {output}" in done.stderr
        assert done.stdout == ""  # said before anything is measured


def test_shards_are_a_split_and_one_page(tmp_path: Path, asked: list[str]) -> None:
    for number in (1, 2):
        done = _run(f"sweep {GRID} --shard {number}/2 -o {number}.jsonl", tmp_path)
        assert done.returncode == Exit.OK, done.stderr
    one, two = (_ids(tmp_path / f"{number}.jsonl") for number in (1, 2))
    assert one
    assert two
    assert sorted(one + two) == sorted(asked)
    page = _run("report 1.jsonl 2.jsonl -o both.html", tmp_path)
    assert page.returncode == Exit.OK, page.stderr
    text = (tmp_path / "both.html").read_text()
    assert 'id="p1-length-scan"' in text
    assert 'id="p2-' not in text
    both = [read_profile(tmp_path / f"{number}.jsonl") for number in (1, 2)]
    assert len(merge_profiles(both)) == 1
    assert len(merge_profiles([both[0], both[0]])) == 2  # the same points twice are two runs


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    done = _run(f"sweep {GRID} --dry-run", tmp_path)
    assert done.returncode == Exit.OK, done.stderr
    assert f"{NUM_POINTS} points in 4 blocks" in done.stdout
    assert "Nothing was measured" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_preset_gives_defaults_that_the_command_line_goes_before(tmp_path: Path, asked: list[str]) -> None:
    """Six points a length: GRID's first two lengths, then the second of them alone."""
    (tmp_path / "mine.toml").write_text(
        "[tiny]\nshape = ['smollm2-135m']\ndevice = 'cpu'\nlengths = [128, 256]\nbudgets = '64,all'\n"
    )
    assert _asked(tmp_path, "--preset mine.toml:tiny") == asked[:12]
    assert _asked(tmp_path, "--preset mine.toml:tiny --lengths 256") == asked[6:12]
    assert "overhead" in _run("sweep --list-presets", tmp_path).stdout


def test_time_that_is_not_there_is_left_out_and_said(tmp_path: Path, asked: list[str]) -> None:
    done = _run(f"sweep {GRID} --time 1s -o p.jsonl", tmp_path)
    assert "left out for want of time" in done.stdout
    assert "Traceback" not in done.stderr
    assert len(_ids(tmp_path / "p.jsonl")) < NUM_POINTS
    later = _run(f"sweep {GRID} --time 10m -o p.jsonl --resume", tmp_path)
    assert later.returncode == Exit.OK, later.stderr
    assert sorted(_ids(tmp_path / "p.jsonl")) == sorted(asked)


STAGES = """
from questprof_kernels import cpu

def attend(q, cache, page_ids, select_indptr, out, lse, scratch):
    cpu.attend(q, cache, page_ids, select_indptr, out, lse, scratch)

base = {"score": cpu.score}
new = {"attend": attend, "dense": cpu.dense, "scratch_floats": {"dense": cpu.dense_scratch_floats}}
wrong = {"score": lambda q, cache, scores: scores.zero_()}
broken = {"score": lambda q, cache, scores: 1 // 0}
"""


def test_stages_of_ones_own_are_timed_in_one_loop(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STAGES)
    small = (
        "sweep --device cpu --shape smollm2-135m --lengths 256 --budgets 64 --samples 3 --data independent"
    )
    kernels = "--kernel base=mine:base --kernel new=mine:new --kernel wrong=mine:wrong"
    done = _run(f"{small} {kernels} -o p.jsonl", tmp_path)
    assert done.returncode == Exit.CHECK_FAILED, done.stderr
    records = {(r.point.backend, r.point.policy): r for r in read_profile(tmp_path / "p.jsonl").records}
    assert records.keys() == {
        *((name, "quest") for name in ("questprof", "base", "new", "wrong")),
        *((name, "dense") for name in ("questprof", "sdpa", "new")),
    }
    assert {key for key, record in records.items() if record.status == "wrong"} == {("wrong", "quest")}
    assert records["new", "quest"].variant == "mine:new"
    timed = [record for record in records.values() if record.status != "wrong"]
    assert len({timing.loop_id for record in timed for timing in record.timing.values()}) == 1
    bad = _run(f"{small} --kernel bad=mine:broken -o q.jsonl", tmp_path)
    assert bad.returncode == Exit.CHECK_FAILED
    assert "stage score of mine:broken" in bad.stderr
    assert "ZeroDivisionError" in bad.stderr
    assert "Traceback" not in bad.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ("--backends triton", Exit.MACHINE, "--backends questprof,sdpa"),
        ("--backends flashinfer", Exit.USAGE, "Add questprof"),
        ("--shard 3/2", Exit.USAGE, "1/4 to 4/4"),
        ("--shard 9/9", Exit.USAGE, "at most"),
        ("--time soon", Exit.USAGE, "5m"),
        ("--energy", Exit.MACHINE, "NVML"),
        ("--samples 5 --precision 1", Exit.USAGE, "either given or found"),
        ("--retry -o p.jsonl", Exit.USAGE, "--resume"),
        ("--skip-corrupt -o p.jsonl", Exit.USAGE, "--resume"),
        ("--kernel mine:base", Exit.USAGE, "there is no module mine"),
        ("--budgets 8,all", Exit.USAGE, "smaller than a page"),
        ("--head-dim 7 --dry-run", Exit.USAGE, "head_dim"),
        ("--precision 101", Exit.USAGE, "100"),
    ],
)
def test_options_that_cannot_be_are_one_screen(
    tmp_path: Path, arguments: str, status: Exit, says: str
) -> None:
    done = _run(f"sweep --device cpu {arguments}", tmp_path)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_resuming_with_other_samples_is_refused(tmp_path: Path) -> None:
    small = GRID.replace("128,256,512,1k", "128")
    assert _run(f"sweep {small} -o p.jsonl", tmp_path).returncode == Exit.OK
    before = (tmp_path / "p.jsonl").read_bytes()
    refused = _run(f"sweep {small.replace('--samples 3', '--samples 4')} -o p.jsonl --resume", tmp_path)
    assert refused.returncode == Exit.USAGE
    assert "--samples would differ" in refused.stderr
    assert (tmp_path / "p.jsonl").read_bytes() == before

"""A kernel is checked in a process of its own: what it does to that one is told, never suffered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from questprof.commands.check_only import check_only, settings
from questprof.errors import Exit, QuestprofError
from questprof.kernelcheck import process
from questprof.kernelcheck.display import kernel_lines
from questprof.kernelcheck.findings import KernelFinding, Order, Setting
from questprof.model import Shape

SETTING = Setting(4, 2, 64, "fp32", "fp32", 8, "paired", take_tail=True)


def check(source: str, patience: process.Patience | None = None) -> KernelFinding:
    return process.check_kernel("mine", Order(source, "cpu", (SETTING,)), patience)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), *sys.path]))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a terminal sends it: a shell's background job ignores it, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_triton_kernels_run_in_the_interpreter() -> None:
    found = check("faults.right:stages")
    assert found.passed, found
    assert {stage.stage: stage.status for stage in found.stages} == {"score": "pass", "attend": "pass"}
    assert found.borrowed == ("append", "append_kv", "select", "dense")


def test_a_wrong_triton_kernel_fails_where_it_is_wrong() -> None:
    found = check("faults.duplicate_id:stages")
    (stage,) = found.stages
    assert (stage.stage, stage.status) == ("select", "fail")
    assert "selected twice" in stage.why
    assert stage.place is not None
    assert stage.place.request == 0
    assert found.borrowed == ("append", "append_kv", "score", "attend", "dense")
    assert kernel_lines(found)[-1].startswith("mine: select failed: no time will be taken")


@pytest.mark.parametrize(
    ("source", "patience", "said"),
    [
        ("die:it", process.Patience(), "its process died of SIGABRT in score: the last words"),
        ("hang:it", process.Patience(total_s=3.0), "it was not done after 3 s in score"),
        ("hang:it", process.Patience(quiet_s=3.0), "it hung: nothing came of it for 3 s in score"),
    ],
)
def test_a_process_that_dies_or_hangs_says_in_which_stage(
    source: str, patience: process.Patience, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MODULE", "kernelcheck.fake_kernel_child")
    found = check(source, patience)
    assert not found.passed
    assert found.failure == said
    assert found.fix
    assert f"  FAIL  {said}" in kernel_lines(found)
    assert kernel_lines(found)[-1].startswith("mine: not checked to the end")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_of_the_kernel_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One set died of SIGINT: said as an interrupt with its status, and no fault of memory."""
    monkeypatch.setattr(process, "MODULE", "kernelcheck.fake_kernel_child")
    with pytest.raises(KeyboardInterrupt):
        check("interrupted:it")
    with pytest.raises(typer.Exit) as ended:
        check_only(
            ["mine=interrupted:it"], "cpu", [Shape("one", 5, 1, 64)], (8,), (), ("quest",), 0, json=False
        )
    assert ended.value.exit_code == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted; mine was not checked to the end\n")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_check_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n\n\ndef score(q, cache, scores):\n"
        "    pathlib.Path('began').touch()\n    time.sleep(600)\n"
    )
    command = [
        sys.executable,
        "-m",
        "questprof",
        "sweep",
        "--device",
        "cpu",
        "--check-only",
        "--kernel",
        "slow.py:score",
    ]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        until = time.monotonic() + 60
        while not (tmp_path / "began").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGINT)
        out, said = child.communicate(timeout=60)
    assert (child.returncode, out, said) == (
        Exit.INTERRUPTED,
        "",
        "interrupted; slow was not checked to the end\n",
    )


def test_a_quiet_check_says_what_it_is_at_and_a_hang_at_import_is_told(tmp_path: Path) -> None:
    source, told = tmp_path / "sleepy.py", []
    source.write_text("import time\n\ntime.sleep(600)\n")
    found = check(f"{source}:score", process.Patience(quiet_s=1.5, tell_s=0.5, tell=told.append))
    assert found.failure == "it hung: nothing came of it for 1.5 s while it was imported"
    assert told == ["mine: still importing it, quiet for 0.5 of 1.5 s"]


def test_every_sign_of_life_gives_a_check_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(process, "MODULE", "kernelcheck.fake_kernel_child")
    found = check("slowly:it", process.Patience(total_s=60.0, quiet_s=6.0, tell_s=0.5, tell=told.append))
    assert "hung" not in found.failure
    assert "mine: still in score over case 1 (a setting), quiet for 0.5 of 6 s" in told
    assert "mine: still in score over case 2 (a setting), quiet for 0.5 of 6 s" in told


def test_the_limits_are_those_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    assert f"for {process.QUIET_S['cpu']:g} s ({process.QUIET_S['cuda']:g} s on a GPU" in text
    assert f"{process.TOTAL_S:g} s in all" in text


def test_a_kernel_that_ends_its_process_well_has_not_passed(tmp_path: Path) -> None:
    source = tmp_path / "leaving.py"
    source.write_text("import os\n\n\ndef score(q, cache, scores):\n    os._exit(0)\n")
    found = check(f"{source}:score")
    assert not found.passed
    assert found.failure == "its process ended in score before the check was done"
    assert kernel_lines(found)[-1].startswith("mine: not checked to the end")


def test_a_module_that_cannot_be_imported_is_an_error_of_usage(tmp_path: Path) -> None:
    source = tmp_path / "broken.py"
    source.write_text("print('noise on standard output')\nimport no_such_library\n")
    with pytest.raises(QuestprofError, match=r"No module named 'no_such_library' \(broken.py:2\)"):
        check(f"{source}:stages")


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ("--summary-dtype int8", "--summary-dtype int8", "fp16, bf16 or fp32"),
        ("--dtype int8", "--dtype int8", "fp16, bf16 or fp32"),
        ("--dtype fp16,bf16", "--dtype fp16,bf16", "Give --dtype fp16, bf16 or fp32."),
        ("--dtype fp32 --summary-dtype fp16", "--summary-dtype fp16", "Give --summary-dtype fp32, or"),
        (
            "--dtype bf16 --summary-dtype fp16",
            "--summary-dtype fp16",
            "Give --summary-dtype bf16 or fp32, or",
        ),
        ("--page-sizes 1m", "page size 1048576", "up to 128"),
        ("--page-sizes 16,100000000", "page size 100000000", "up to 128"),
    ],
)
def test_what_no_cache_can_be_is_no_fault_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, options: str, what: str, fix: str
) -> None:
    """Refused before a process of the kernel's starts, as an error of usage."""
    from questprof.cli import app

    monkeypatch.setattr(process, "_run", lambda *_: pytest.fail("the kernel was run"))
    command = typer.main.get_command(app)
    line = f"sweep --device cpu --check-only --kernel mine=plain_stages:right {options}"
    with pytest.raises(QuestprofError) as refused:
        command.main(line.split(), standalone_mode=False)
    assert (refused.value.what, refused.value.status) == (what, Exit.USAGE)
    assert fix in refused.value.fix


def test_a_shape_is_checked_with_two_of_its_kv_heads() -> None:
    shapes = [Shape("wide", 32, 8, 128), Shape("one", 5, 1, 64)]
    chosen = settings(shapes, (16, 32), (), ("quest", "quest-open"), "cpu", 3)
    assert [(s.num_qo_heads, s.num_kv_heads, s.head_dim) for s in chosen[::4]] == [(8, 2, 128), (5, 1, 64)]
    assert [(s.page_size, s.take_tail) for s in chosen[:4]] == [
        (16, True),
        (16, False),
        (32, True),
        (32, False),
    ]
    assert {s.seed for s in chosen} == {3}
    assert chosen[-1].title.startswith("5 query heads over 1 KV head of 64, ")
    assert chosen[0].title == "8 query heads over 2 KV heads of 128, fp16, page 16"

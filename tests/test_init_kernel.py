"""What `init-kernel` writes passes its check and is timed; an error planted in a copy is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from questprof.commands.check_only import check_only
from questprof.commands.init_kernel import write_kernel
from questprof.errors import Exit, QuestprofError
from questprof.kernelcheck.findings import Order, Setting, StageFinding
from questprof.kernelcheck.run import check_stages

SHAPE = ("--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--page-size", "8")
SWEEP = ("sweep", *SHAPE, "--device", "cpu")
TIMES = (
    *("--lengths", "1k", "--budgets", "128", "--samples", "3"),
    *("--data", "independent", "--backends", "questprof", "--json"),
)
SETTING = Setting(4, 2, 64, "fp32", "fp32", 8, "paired", take_tail=True)


def questprof(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).with_name("small_sweep.py")
    command = [sys.executable, str(program), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `questprof init-kernel my_kernel.py` wrote, and a wrong copy of it."""
    path = tmp_path_factory.mktemp("kernels")
    written = questprof(path, "init-kernel", "my_kernel.py")
    assert written.returncode == 0, written.stderr
    assert "questprof sweep --kernel my_kernel.py:kernel --check-only" in written.stdout
    text = (path / "my_kernel.py").read_text()
    (path / "unscaled.py").write_text(text.replace(" * own.shape[1] ** -0.5", ""))
    return path


def test_it_is_short_and_names_its_own_file(folder: Path) -> None:
    text = (folder / "my_kernel.py").read_text()
    assert len(text.splitlines()) <= 45
    assert "type: ignore" not in text
    assert text.count("--kernel my_kernel.py:kernel") == 2


def test_it_passes_its_check_and_a_wrong_copy_fails(folder: Path) -> None:
    kernels = ("--kernel", "my_kernel.py:kernel", "--kernel", "bad=unscaled.py:kernel")
    done = questprof(folder, *SWEEP, *kernels, "--check-only", "--json")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is False
    right, wrong = document["kernels"]
    assert (right["name"], right["source"], right["passed"]) == ("my_kernel", "my_kernel.py:kernel", True)
    assert [(s["stage"], s["status"]) for s in right["stages"]] == [("decode", "pass")]
    assert right["borrowed"] == ["append", "append_kv", "dense"]
    assert (wrong["name"], wrong["passed"]) == ("bad", False)
    (decode,) = wrong["stages"]
    assert (decode["place"]["request"], decode["place"]["head"]) == (0, 0)
    assert f"page {decode['place']['page']} weighs" in decode["why"]


def test_it_is_timed_and_a_wrong_copy_is_refused_a_time(folder: Path) -> None:
    kernels = ("--kernel", "mine=my_kernel.py:kernel", "--kernel", "unscaled.py:kernel")
    done = questprof(folder, *SWEEP, *TIMES, "-o", "p.jsonl", *kernels)
    assert done.returncode == 1, done.stderr
    found = {row["point"].get("backend", "questprof"): row for row in json.loads(done.stdout)["rows"]}
    assert found["mine"]["status"] == "ok"
    assert found["mine"]["quest_us"] > 0
    assert found["mine"]["score_us"] is None
    checked = {check["stage"] for check in found["mine"]["checks"]}
    assert checked == {"append", "decode", "decode.page_ids"}
    assert (found["unscaled"]["status"], found["unscaled"]["quest_us"]) == ("wrong", None)


@pytest.mark.parametrize(
    ("right", "wrong", "head", "page", "said"),
    [
        ("// (q.shape[1] // pool.num_kv_heads)", "% pool.num_kv_heads", 1, None, "pages of another KV head"),
        (">= length", ">= length // 8 * 8", 0, 9, "page 9 was left out"),
        ("= best\n", "= best * 0\n", 0, 0, "page_ids says [0, 0, 0, 0]"),
    ],
)
def test_a_planted_error_is_caught_where_it_is(
    folder: Path, right: str, wrong: str, head: int, page: int | None, said: str
) -> None:
    text = (folder / "my_kernel.py").read_text()
    assert text.count(right) == 1
    source = folder / f"planted_{abs(hash(wrong))}.py"
    source.write_text(text.replace(right, wrong))
    order = Order(f"{source}:kernel", "cpu", (SETTING,))
    (found,) = (finding for finding in check_stages(order) if isinstance(finding, StageFinding))
    assert found.status == "fail"
    assert found.place is not None
    assert (found.place.request, found.place.head) == (0, head)
    assert page is None or found.place.page == page
    assert said in found.why


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    target.write_text("mine\n")
    with pytest.raises(QuestprofError, match="it is there"):
        write_kernel(target)
    assert target.read_text() == "mine\n"
    write_kernel(target, force=True)
    assert "def decode" in target.read_text()


@pytest.mark.parametrize("name", ["kernel", "my-kernel.py", "no_folder/kernel.py"])
def test_a_name_that_no_module_has_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(QuestprofError, match="cannot write") as caught:
        write_kernel(tmp_path / name)
    assert caught.value.status == Exit.USAGE


@pytest.mark.parametrize("name", ["torch.py", "numpy.py", "questprof.py", "json.py", "pytest.py"])
def test_a_name_that_hides_an_installed_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(QuestprofError, match="has the same name"):
        write_kernel(tmp_path / name, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_can_be_imported_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_kernel(tmp_path / "kernel_of_mine.py")
    write_kernel(tmp_path / "kernel_of_mine.py", force=True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("-o z.jsonl --lengths 8k", "--lengths, -o with --check-only"),
        ("--time 5m", "--time with --check-only"),
        ("--dry-run", "--dry-run with --check-only"),
        ("--kernel questprof=my_kernel.py:kernel", "a backend of the project has the name questprof"),
        ("--kernel my_kernel.py:decode", "my_kernel already stands for my_kernel.py:kernel"),
    ],
)
def test_a_check_refuses_what_it_would_not_heed(folder: Path, arguments: str, named: str) -> None:
    kernel = ("--kernel", "my_kernel.py:kernel", "--check-only", "--device", "cpu")
    done = questprof(folder, "sweep", *kernel, *arguments.split())
    assert done.returncode == 2
    assert named in done.stderr
    assert not (folder / "z.jsonl").exists()


def test_check_only_needs_a_kernel() -> None:
    with pytest.raises(QuestprofError, match=r"questprof init-kernel my_kernel.py"):
        check_only((), "cpu", (), (), (), (), 0, json=False)

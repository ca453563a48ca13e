"""The command line as people meet it: in a process of its own."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiles import CPU
from questprof.errors import Exit
from questprof.model import SCHEMA_VERSION, Header
from questprof.store import read_profile, seal

SMALL_SWEEP = str(Path(__file__).with_name("small_sweep.py"))
SMALL = "sweep --device cpu --shape smollm2-135m --lengths 512,1k --budgets 256 --samples 3"


def _program(arguments: str) -> tuple[str, ...]:
    return (SMALL_SWEEP,) if arguments.startswith("sweep") else ("-m", "questprof")


def run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`questprof ARGUMENTS` with compiled kernels (no interpreter) in `cwd`; a sweep over small caches."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *_program(arguments), *arguments.split()]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=240, check=False
    )


def _holds(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a sweep ended well: with 0, or with 4 exactly where it says that nothing has a verdict.

    Three samples of a machine that others use may lie too far apart.
    """
    said = done.stdout + done.stderr
    nothing = "no verdict" in said and "Quest is " not in said
    return done.returncode == (Exit.INCONCLUSIVE if nothing else Exit.OK)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A small CPU sweep without -o, and what it printed."""
    cwd = tmp_path_factory.mktemp("swept")
    return cwd, run(SMALL, cwd)


def test_formula_json(tmp_path: Path) -> None:
    done = run(
        "formula --length 65536 --page-size 16 --budget 4096 --head-dim 128 --dtype fp16 "
        "--kv-heads 1 --layers 1 --json",
        tmp_path,
    )
    assert done.returncode == Exit.OK
    wanted = {
        "rho": 0.125,
        "dense_bytes": 33554432,  # 2 x 256 B x 65536
        "index_bytes": 2097152,  # 2 x 256 B x 4096
        "selected_bytes": 2097152,  # 2 x 256 B x 256 x 16
        "quest_bytes": 4194304,
        "num_pages": 4096,
        "num_selected": 256,
    }
    document = json.loads(done.stdout)
    assert {name: document[name] for name in wanted} == wanted


def test_formula_explain_and_list(tmp_path: Path) -> None:
    explained = run("formula --length 64k --page-size 16 --budget 4096 --explain", tmp_path).stdout
    assert "1/16 + 256/4096 = 0.125" in explained
    listed = run("formula --list", tmp_path).stdout.splitlines()
    assert [line[:4] for line in listed] == [f"({n:>2})" for n in range(1, 16)]


def test_the_articles_16_gib(tmp_path: Path) -> None:
    """32 layers x 32 heads x 32768 tokens x 2 x 256 B = 16 GiB."""
    done = run("formula --shape llama-2-7b --length 32k --budget 2048 --json", tmp_path)
    assert json.loads(done.stdout)["resident_cache_bytes"] == 16 << 30


def test_sweep_writes_a_profile_and_a_page(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = swept
    assert _holds(done), done.stderr
    profile_path, page = (cwd / line for line in done.stdout.splitlines()[-2:])
    assert profile_path.suffix == ".jsonl"
    assert page.suffix == ".html"
    assert profile_path.parent == cwd / "reports"
    assert "CPU figures" in done.stdout.splitlines()[0]
    assert "<html" in page.read_text()
    profile = read_profile(profile_path)
    # 2 lengths x (2 baselines + 1 budget x 2 kinds of data, as smollm2 shares KV heads)
    assert len(profile.records) == 8
    assert {record.status for record in profile.records} == {"ok"}
    for record in profile.records:
        assert all(len(samples) == 3 for samples in record.times_us.values())
        assert {check.when for check in record.checks} == {"before", "after"}
        assert record.calibration[0].samples_gb_s
        assert record.timing.keys() == record.times_us.keys()
    quest = next(r for r in profile.records if r.point.data == "shared")
    assert quest.union_ratio == 1.0
    assert set(quest.times_us) == {"append", "score", "select", "attend", "quest"}


def test_quest_is_the_sum_of_its_stages_on_the_cpu(
    swept: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd, done = swept
    profile = read_profile(cwd / done.stdout.splitlines()[-2])
    for record in profile.records:
        if record.point.policy == "quest":
            stages = zip(*(record.times_us[stage] for stage in ("score", "select", "attend")), strict=True)
            assert record.times_us["quest"] == pytest.approx([sum(parts) for parts in stages])


def test_report_again_and_json(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = swept
    profile = done.stdout.splitlines()[-2]
    again = run(f"report {profile} -o again.html", cwd)
    assert again.returncode == Exit.OK
    assert (cwd / "again.html").stat().st_size < 6e6
    refused = run(f"report {profile} -o again.html", cwd)
    assert refused.returncode == Exit.USAGE
    assert "exists" in refused.stderr


def test_report_never_replaces_its_own_profile(
    swept: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd, done = swept
    profile = done.stdout.splitlines()[-2]
    before = (cwd / profile).read_bytes()
    refused = run(f"report {profile} -o {profile} --force", cwd)
    assert refused.returncode == Exit.USAGE
    assert (cwd / profile).read_bytes() == before


def test_resuming_another_grid_is_refused(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = swept
    profile = done.stdout.splitlines()[-2]
    before = (cwd / profile).read_bytes()
    refused = run(f"sweep --device cpu -o {profile} --resume", cwd)
    assert refused.returncode == Exit.USAGE
    assert "--shape smollm2-135m --lengths 512,1k" in refused.stderr
    assert (cwd / profile).read_bytes() == before


def test_an_interrupt_says_where_the_figures_are(tmp_path: Path) -> None:
    command = [sys.executable, "-u", SMALL_SWEEP, *SMALL.split(), "-o", "p.jsonl"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert any("length 512" in line for line in iter(child.stdout.readline, ""))
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    assert child.returncode == Exit.INTERRUPTED
    assert "p.jsonl" in said
    assert "--resume" in said
    assert read_profile(tmp_path / "p.jsonl").warnings == ()


def test_every_kind_of_point_in_one_profile(
    swept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Keys x page orders, with extra states, and a page of several such profiles."""
    small = SMALL.replace("512,1k", "512")
    options = "--data shared,ramp --page-orders shuffled,scattered --pool 64m --append --cold-select"
    done = run(f"{small} {options} -o one.jsonl --html one.html", tmp_path)
    assert _holds(done), done.stderr
    profile = read_profile(tmp_path / "one.jsonl")
    # 2 page orders x 2 kinds of keys x (2 baselines + 1 Quest point)
    assert len(profile.records) == 12
    assert {record.status for record in profile.records} == {"ok"}
    assert {bool(r.pool_bytes) for r in profile.records if r.point.page_order == "scattered"} == {True}
    quests = [record for record in profile.records if record.point.policy == "quest"]
    assert {record.point.data for record in quests} == {"shared", "ramp"}
    extras = {"append_cold", "append_prefill", "select_cold"}
    assert all(extras <= record.times_us.keys() for record in quests)
    assert "every dense baseline, pages scattered, keys ramp" in done.stdout
    both = run(f"report one.jsonl {_kept(swept)} -o both.html", tmp_path)
    assert both.returncode == Exit.OK, both.stderr
    page = (tmp_path / "both.html").read_text()
    assert 'id="p1-baselines"' in page
    assert 'id="p2-baselines"' in page
    before = (tmp_path / "one.jsonl").read_bytes()
    again = run(f"{small} {options} -o one.jsonl --resume", tmp_path)
    assert _holds(again), again.stderr
    assert (tmp_path / "one.jsonl").read_bytes() == before
    assert "one.jsonl holds every point: nothing is measured" in again.stdout
    assert "streaming read" not in again.stdout.partition("Times: measured")[0]  # no ceiling either


def _kept(swept: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The profile of the small sweep."""
    return swept[0] / swept[1].stdout.splitlines()[-2]


def test_resume_measures_only_what_is_missing_and_writes_its_page_again(
    swept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Killed between its blocks, of 512 tokens and of 1k: four points each."""
    lines = _kept(swept).read_bytes().splitlines(keepends=True)
    before = b"".join(lines[:5])
    (tmp_path / "p.jsonl").write_bytes(before)
    (tmp_path / "p.html").write_text("half a page")
    again = run(SMALL + " -o p.jsonl --html p.html --resume --json", tmp_path)
    assert _holds(again), again.stderr
    assert len(json.loads(again.stdout)["rows"]) == 4
    assert (tmp_path / "p.jsonl").read_bytes().startswith(before)
    records = read_profile(tmp_path / "p.jsonl").records
    assert [record.point_id for record in records] == [
        record.point_id for record in read_profile(_kept(swept)).records
    ]
    assert "<html" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ("sweep --device cpu --shape llama-9", Exit.USAGE, "llama-2-7b"),
        ("sweep --device cpu --lengths banana", Exit.USAGE, "whole number"),
        ("sweep --device cpu --seed 99999999999999999999", Exit.USAGE, "4294967295"),
        ("sweep --device cpu --seed -1", Exit.USAGE, "0"),
        ("sweep --device cpu --single-steps 100", Exit.USAGE, "single step already"),
        ("sweep --device cpu --budgets 8", Exit.USAGE, "smaller than a page"),
        ("sweep --device cpu --page-sizes 0", Exit.USAGE, "at least 1"),
        ("sweep --device cpu --lengths 2k..1k", Exit.USAGE, "downward"),
        ("sweep --device cpu --lengths 2k..100k", Exit.USAGE, "2k..128k"),
        ("sweep --device cpu --dtype fp12", Exit.USAGE, "fp12"),
        ("sweep --device cpu --backends magic", Exit.USAGE, "questprof, triton, sdpa"),
        ("sweep --device cpu --policies magic", Exit.USAGE, "quest-open"),
        ("sweep --device cpu --summary-layout diagonal", Exit.USAGE, "paired, transposed"),
        ("sweep --device cpu --data noise", Exit.USAGE, "independent, shared, constant, ramp, needle"),
        ("sweep --device cpu --page-order random", Exit.USAGE, "shuffled, sequential, scattered"),
        ("sweep --device cpu --pool 100", Exit.USAGE, "100g"),
        ("sweep --device cpu --pool 64m", Exit.USAGE, "--pool with pages that are shuffled"),
        ("sweep --device tpu", Exit.USAGE, "cuda"),
        ("sweep --device cpu --resume", Exit.USAGE, "-o"),
        ("sweep --device cpu --resume --force -o new.jsonl", Exit.USAGE, "--force"),
        ("sweep --device cpu --resume -o taken.jsonl", Exit.USAGE, "no questprof profile"),
        ("sweep --device cpu -o new.jsonl --html new.jsonl", Exit.USAGE, "a file each"),
        ("sweep --device cpu -o new.jsonl --html taken.jsonl", Exit.USAGE, "--force"),
        ("sweep --device cpu -o new.jsonl --html /proc/x.html", Exit.USAGE, "cannot write"),
        ("sweep --device cpu -o /proc/x/y.jsonl", Exit.USAGE, "cannot write"),
        ("sweep --device cpu --dtype int8", Exit.USAGE, "fp16, bf16, fp32"),
        ("sweep --device cpu --head-dim 96", Exit.USAGE, "64 and 128"),
        ("sweep --device cpu --backends sdpa", Exit.USAGE, "questprof"),
        ("report newer.jsonl -o newer.jsonl --force", Exit.USAGE, "schema version"),
        ("sweep --device cpu --page-sizes 256 --budgets 1k --lengths 1k", Exit.USAGE, "1 to 128"),
        ("sweep --device cpu --shape config.json", Exit.USAGE, "config.json"),
        ("sweep --device cpu -o taken.jsonl", Exit.USAGE, "--force"),
        ("report no.jsonl", Exit.USAGE, "cannot read"),
        ("report newer.jsonl", Exit.USAGE, "schema version"),
        ("report taken.jsonl", Exit.USAGE, "no questprof profile"),
        ("formula --page-size 0", Exit.USAGE, "page"),
        ("formula --budget 8", Exit.USAGE, "page"),
        ("formula --length many", Exit.USAGE, "whole number"),
        ("nonsense", Exit.USAGE, "nonsense"),
    ],
)
def test_bad_input_is_one_screen_and_loses_nothing(
    tmp_path: Path, arguments: str, status: Exit, says: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "taken.jsonl").write_text("mine")
    newer = Header(SCHEMA_VERSION + 1, CPU, "questprof sweep", "2026-01-01T00:00:00+00:00")
    (tmp_path / "newer.jsonl").write_bytes(seal(newer))
    done = run(arguments, tmp_path)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 25
    assert (tmp_path / "taken.jsonl").read_text() == "mine"


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="with a GPU --device cuda is no error")
def test_a_missing_gpu_is_the_machines_fault(tmp_path: Path) -> None:
    done = run("sweep --device cuda", tmp_path)
    assert done.returncode == Exit.MACHINE
    assert "--device cpu" in done.stderr


def test_help_is_fast_and_imports_no_torch(tmp_path: Path) -> None:
    """Under 0.2 s on an idle core: processor time, so that tests beside this one do not count."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help", tmp_path).returncode == Exit.OK
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.2
    code = (
        "import sys, questprof.cli\n"
        "print(sorted({'torch', 'numpy', 'plotly', 'numba', 'triton'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", ["formula --json", "report p.jsonl -o out.html"])
def test_formula_and_report_import_no_torch(
    swept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, arguments: str
) -> None:
    cwd, done = swept
    (tmp_path / "p.jsonl").write_bytes((cwd / done.stdout.splitlines()[-2]).read_bytes())
    code = (
        f"import sys; sys.argv[1:] = {arguments.split()!r}\n"
        "from questprof.cli import app\n"
        "try:\n    app()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr

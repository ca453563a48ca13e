"""Workflows and the action: they parse, every command line in them is one of the real tool, statuses map."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from questprof.cli import app

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "questprof"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMMAND: Any = typer.main.get_command(app)
DOCS = ROOT / "docs" / "ci.md"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    """Every step of a workflow or of the action."""
    document = load(path)
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step for job in jobs for step in job["steps"]]


def parse(words: list[str]) -> str:
    """The name of the command that `words` call; raises what the tool would for a wrong option.

    An option that ends the call, such as --version, ends it here too.
    """
    if words[0] == "--version":
        return "--version"
    name, *arguments = words
    command = COMMAND.get_command(None, name)
    assert command is not None, f"there is no command {name}"
    command.make_context(name, list(arguments), resilient_parsing=False)
    return name


def command_lines(text: str) -> Iterator[list[str]]:
    """The words behind `questprof` on every line that calls it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if line.strip().startswith("questprof ") else []
        if words:
            yield [word for word in words[1:] if word != "|"]


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION / "action.yml"], ids=lambda path: path.stem)
def test_yaml_is_whole(path: Path) -> None:
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step and not step["uses"].startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"]), step["uses"]
        if step.get("uses", "").startswith("./"):
            assert (ROOT / step["uses"] / "action.yml").exists()
            unknown = set(step["with"]) - set(load(ROOT / step["uses"] / "action.yml")["inputs"])
            assert not unknown


def test_there_is_a_workflow_for_each_device() -> None:
    assert [path.stem for path in WORKFLOWS] == ["cpu", "gpu"]
    gpu = load(ROOT / ".github" / "workflows" / "gpu.yml")
    (job,) = gpu["jobs"].values()
    assert "self-hosted" in job["runs-on"]
    assert "head.repo.full_name == github.repository" in job["if"]  # a fork's code runs on no runner of ours
    assert gpu["permissions"] == {"contents": "read"}


def test_inputs_reach_scripts_as_variables_alone() -> None:
    """An expression inside a script would run what an input holds."""
    for path in (*WORKFLOWS, ACTION / "action.yml"):
        for step in steps(path):
            assert "${{" not in step.get("run", ""), step


def test_every_command_line_is_one_of_the_tool() -> None:
    called = [
        parse(words)
        for path in WORKFLOWS
        for step in steps(path)
        for words in command_lines(step.get("run", ""))
    ]
    assert {"doctor", "--version"} <= set(called)


def test_every_command_line_of_the_documentation_is_one_of_the_tool() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    called = [parse(words) for block in blocks for words in command_lines(block)]
    assert {"doctor", "decide", "ci"} == set(called)


def test_a_renamed_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["decide", "--shape", "tiny", "--minutes", "3"])


def test_the_documented_inputs_and_outputs_are_the_actions() -> None:
    action = load(ACTION / "action.yml")
    text = DOCS.read_text()
    example = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    (job,) = example["jobs"].values()
    assert set(job["steps"][-1]["with"]) <= set(action["inputs"])
    assert all(f"`{name}`" in text for name in action["outputs"])
    # questprof is on no package index: what is installed lies in the checkout that the action is taken from.
    (used,) = (step for step in job["steps"] if "actions/questprof" in step["uses"])
    (checkout,) = (step for step in job["steps"] if "path" in step.get("with", {}))
    assert used["uses"] == f"./{checkout['with']['path']}/.github/actions/questprof"
    assert used["with"]["install"].startswith(f"./{checkout['with']['path']}[")


FAKE = """#!/usr/bin/env python3
import json, os, sys
json.dump(sys.argv[1:], open(os.environ["SEEN"], "w"))
print("error: it lacks\\n  why: a reason\\n  fix: give one", file=sys.stderr)
verdict = {"0": "pass", "1": "fail", "3": "cannot run", "4": "inconclusive"}.get(os.environ["STATUS"])
document = {"sentence": "Yes: 12 %\\nof it", "verdict": verdict, "next_baseline": True}
print(os.environ.get("SAYS", json.dumps(document)), end="")
if "SUMMARY" in os.environ:
    open(os.environ["GITHUB_STEP_SUMMARY"], "a").write(os.environ["SUMMARY"])
sys.exit(int(os.environ["STATUS"]))
"""


def run_action(
    tmp_path: Path, status: int, says: str | None = None, summary: str | None = None, **inputs: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The action's script over a questprof that notes its arguments and ends with `status`.

    `says` in place of its document, and `summary` what it adds to that of the job.
    """
    tool = tmp_path / "bin" / "questprof"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(FAKE)
    tool.chmod(0o755)
    given = {f"QP_{name.upper()}": value for name, value in inputs.items()}
    environment = os.environ | given | {
        "PATH": f"{tool.parent}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen.json"),
        "STATUS": str(status), "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    } | {name: text for name, text in (("SAYS", says), ("SUMMARY", summary)) if text is not None}  # fmt: skip
    done = subprocess.run(
        ["bash", str(ACTION / "run.sh")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, json.loads((tmp_path / "seen.json").read_text())


@pytest.mark.parametrize(
    ("status", "code", "verdict", "says"),
    [
        (0, 0, "pass", "::notice title=questprof passed::"),
        (1, 1, "fail", "::error title=questprof failed::"),
        (2, 2, "", "::error title=questprof stopped::"),
        (3, 3, "cannot run", "::error title=questprof cannot run here::"),
        (4, 0, "inconclusive", "::notice title=questprof inconclusive::"),
        (130, 130, "", "::error title=questprof stopped::"),
    ],
)
def test_statuses_map(tmp_path: Path, status: int, code: int, verdict: str, says: str) -> None:
    done, _ = run_action(tmp_path, status)
    assert done.returncode == code
    assert says in done.stdout
    outputs = (tmp_path / "outputs").read_text()
    assert f"status={status}\n" in outputs
    assert f"verdict={verdict}\n" in outputs
    assert "sentence=Yes: 12 % of it\n" in outputs  # a line break would be an output of its own
    assert "next_baseline=true\n" in outputs
    assert "Yes: 12 %25 of it" in done.stdout  # as annotations spell it


@pytest.mark.parametrize(("status", "title"), [(2, "stopped"), (3, "cannot run here"), (1, "failed")])
def test_a_run_without_a_verdict_gives_what_it_said_last_as_its_reason(
    tmp_path: Path, status: int, title: str
) -> None:
    done, _ = run_action(tmp_path, status, says="")
    reason = "error: it lacks why: a reason fix: give one"
    assert f"::error title=questprof {title}::" in done.stdout
    assert "%0Awhy: a reason%0Afix: give one" in done.stdout
    assert "error: it lacks" in done.stderr  # in the log of the job as well
    outputs = (tmp_path / "outputs").read_text()
    assert f"sentence={reason}\n" in outputs
    assert "verdict=\n" in outputs
    assert "next_baseline=\n" in outputs


@pytest.mark.parametrize("status", [0, 4])
@pytest.mark.parametrize(
    "document",
    [
        "",
        "a kernel was here",
        '{"verdict": "pass"',
        "[1]",
        '{"verdict": "fail", "next_baseline": true}',
        "{}",
    ],
)
def test_a_status_that_passes_needs_its_verdict(tmp_path: Path, status: int, document: str) -> None:
    """A kernel that ends the process, with any status, is no green job."""
    done, _ = run_action(tmp_path, status, says=document)
    assert done.returncode == 1
    assert (
        f"::error title=questprof failed::the run ended without a verdict (exit status {status}"
        in done.stdout
    )
    assert "::notice" not in done.stdout
    outputs = (tmp_path / "outputs").read_text()
    assert "status=1\n" in outputs
    assert "sentence=the run ended without a verdict" in outputs
    assert "next_baseline=\n" in outputs
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## questprof ci: fail\n\n~~~text\nthe run ended without a verdict")


def test_a_pass_does_not_excuse_an_inconclusive_status(tmp_path: Path) -> None:
    assert run_action(tmp_path, 4, says='{"verdict": "pass"}')[0].returncode == 1
    assert run_action(tmp_path, 0, says='{"verdict": "inconclusive"}')[0].returncode == 1


@pytest.mark.parametrize(
    ("status", "heading"), [(1, "fail"), (2, "stopped (exit status 2)"), (3, "cannot run here")]
)
def test_a_run_that_wrote_no_summary_has_its_reason_there(tmp_path: Path, status: int, heading: str) -> None:
    run_action(tmp_path, status, says="")
    (first, *_, said, why, fix, last) = (tmp_path / "summary.md").read_text().splitlines()
    assert first == f"## questprof ci: {heading}"
    assert (said, why, fix, last) == ("error: it lacks", "why: a reason", "fix: give one", "~~~")


@pytest.mark.parametrize("status", [0, 1, 3, 4])
def test_a_summary_that_is_there_stays_as_it_is(tmp_path: Path, status: int) -> None:
    (tmp_path / "summary.md").write_text("of another step\n")
    run_action(tmp_path, status, summary="the run's own\n")
    assert (tmp_path / "summary.md").read_text() == "of another step\nthe run's own\n"


def test_the_mapping_alone_without_a_sentence() -> None:
    for status, code in ((0, 0), (1, 1), (3, 3), (4, 0)):
        done = subprocess.run(
            ["bash", str(ACTION / "exit.sh"), str(status)], capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert ("::error" in done.stdout) == (code != 0)
        assert ("::notice" in done.stdout) == (status == 4)


def test_inputs_become_options_that_the_tool_knows(tmp_path: Path) -> None:
    (tmp_path / "base.jsonl").write_text("x")
    done, seen = run_action(
        tmp_path,
        0,
        shape="llama-3.1-8b",
        traffic="my lengths.csv",
        batch="1,8",
        lengths="2k..8k",
        budget="1024",
        device="cpu",
        time="3m",
        kernels="  base=a:stages\r\n\n\tnew=b:stages \n",
        baseline=" base.jsonl\r\n absent.jsonl\n",
        threshold="3%",
        output="out/ci.html",
        options="--samples 5\n  --seed 1 \r\n--ncu '/opt/my tools/ncu'\n",
    )
    assert seen[0] == "ci"
    assert parse(seen) == "ci"
    text = shlex.join(seen)
    assert "--traffic 'my lengths.csv'" in text
    assert "--kernel base=a:stages --kernel new=b:stages" in text
    assert "--baseline base.jsonl" in text
    assert "absent.jsonl" not in text
    assert "no baseline at absent.jsonl yet" in done.stdout
    assert "--output out/ci.html" in text
    assert seen[-6:] == ["--samples", "5", "--seed", "1", "--ncu", "/opt/my tools/ncu"]
    assert not any(word != word.strip() for word in seen)
    assert json.loads((tmp_path / "out" / "ci.json").read_text())["verdict"] == "pass"
    assert "profile=out/ci-sweep.jsonl" in (tmp_path / "outputs").read_text()


def test_without_inputs_the_defaults_of_the_tool_hold(tmp_path: Path) -> None:
    _, seen = run_action(tmp_path, 0)
    assert seen == ["ci", "--output", "questprof/ci.html", "--force", "--json"]
    assert parse(seen) == "ci"


def test_every_input_is_used() -> None:
    action = load(ACTION / "action.yml")
    text = (ACTION / "action.yml").read_text().split("runs:")[1]
    assert [name for name in action["inputs"] if f"inputs.{name}" not in text] == []
    run = next(step for step in action["runs"]["steps"] if step.get("id") == "gate")
    script = (ACTION / "run.sh").read_text()
    assert [name for name in run["env"] if name not in script] == []


@pytest.mark.parametrize(
    ("output", "stem"), [("./ci", "./ci"), ("out.v1/ci", "out.v1/ci"), ("a.b/c.d.html", "a.b/c.d")]
)
def test_an_output_without_a_suffix_keeps_its_name(tmp_path: Path, output: str, stem: str) -> None:
    run_action(tmp_path, 0, output=output)
    assert (tmp_path / f"{stem}.json").exists()
    outputs = (tmp_path / "outputs").read_text()
    assert f"profile={stem}-sweep.jsonl\n" in outputs
    assert f"files={stem}*.json*\n" in outputs


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"options": "--ncu '/opt/my tools"}, "a quote in it does not end"),
        ({"output": "file/ci.html"}, "write"),
    ],
)
def test_inputs_that_cannot_be_stop_with_their_reason(
    tmp_path: Path, inputs: dict[str, str], says: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "seen.json").write_text("[]")
    done, seen = run_action(tmp_path, 0, **inputs)
    assert seen == []  # nothing was run
    assert done.returncode == 2
    assert "::error title=questprof stopped::" in done.stdout
    assert says in done.stdout
    assert says in (tmp_path / "outputs").read_text()


def test_no_array_may_be_empty_where_it_is_spelt_out() -> None:
    """bash 3.2, which macOS has, takes an empty array under `set -u` for a variable that is not set."""
    script = (ACTION / "run.sh").read_text()
    assert re.findall(r"\$\{(\w+)\[@\]\}", script) == ["arguments"]
    assert "arguments+=(--output" in script.split("${arguments[@]}")[0]


def scripted(tmp_path: Path, name: str, text: str) -> None:
    tool = tmp_path / "bin" / name
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(text)
    tool.chmod(0o755)


MANAGED = """#!/bin/bash
case $1 in
-c) echo {managed} ;;
-m) echo "$0 $*" >>"$CALLS"
    if [ "$2" = venv ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi ;;
esac
"""


def install(tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """install.sh with nothing on PATH but the tools it needs and what is in tmp_path/bin."""
    import shutil

    for name in ("mkdir", "cp"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    bash = shutil.which("bash") or ""
    done = subprocess.run(
        [bash, str(ACTION / "install.sh"), "questprof[gpu]"],
        env={
            "PATH": str(tmp_path / "bin"), "CALLS": str(tmp_path / "calls"), "RUNNER_TEMP": str(tmp_path),
            "GITHUB_PATH": str(tmp_path / "path"),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    calls = tmp_path / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_a_python_of_the_job_gets_the_package(tmp_path: Path) -> None:
    scripted(tmp_path, "python3", MANAGED.format(managed="no"))
    done, calls = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert calls == [f"{tmp_path}/bin/python3 -m pip install --quiet questprof[gpu]"]
    assert not (tmp_path / "path").exists()


def test_a_python_of_the_system_is_left_alone(tmp_path: Path) -> None:
    """An environment beside it gets the package, and goes before it in the steps that follow."""
    scripted(tmp_path, "python3", MANAGED.format(managed="yes"))
    done, calls = install(tmp_path)
    own = f"{tmp_path}/questprof-environment"
    assert done.returncode == 0, done.stderr
    assert calls == [
        f"{tmp_path}/bin/python3 -m venv --system-site-packages {own}",
        f"{own}/bin/python -m pip install --quiet questprof[gpu]",
    ]
    assert (tmp_path / "path").read_text() == f"{own}/bin\n"


def test_a_runner_without_python_is_told_what_it_lacks(tmp_path: Path) -> None:
    done, _ = install(tmp_path)
    assert done.returncode == 2
    assert "no python: put actions/setup-python before this action" in done.stdout


def test_the_baseline_of_a_runner_is_its_own_and_can_be_replaced() -> None:
    """A key is a prefix of no other runner's, is written once a run, and a run by hand starts anew."""
    gpu = ROOT / ".github" / "workflows" / "gpu.yml"
    by_use = {step["uses"]: step for step in steps(gpu) if "cache/" in step.get("uses", "")}
    restore, save = by_use["actions/cache/restore@v4"], by_use["actions/cache/save@v4"]
    assert save["with"]["key"] == restore["with"]["key"]
    prefix = restore["with"]["restore-keys"]
    assert prefix.endswith("${{ runner.name }}/")
    assert restore["with"]["key"].startswith(prefix)
    for name in ("github.run_id", "github.run_attempt"):
        assert name in save["with"]["key"]
    assert "next_baseline == 'true'" in save["if"]
    assert restore["if"] == "${{ !inputs.reset_baseline }}"
    assert load(gpu)[True]["workflow_dispatch"]["inputs"]["reset_baseline"]["type"] == "boolean"


def test_descriptions_hold_no_expression() -> None:
    """They would be evaluated where there is nothing to evaluate them with."""
    action = load(ACTION / "action.yml")
    said = [one["description"] for one in (*action["inputs"].values(), *action["outputs"].values())]
    assert not any("${{" in text for text in said)

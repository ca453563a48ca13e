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


FAKE = """#!/usr/bin/env python3
import json, os, sys
json.dump(sys.argv[1:], open(os.environ["SEEN"], "w"))
print(json.dumps({"sentence": "Yes: 12 %\\nof it", "verdict": "pass"}))
sys.exit(int(os.environ["STATUS"]))
"""


def run_action(
    tmp_path: Path, status: int, **inputs: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The action's script over a questprof that notes its arguments and ends with `status`."""
    tool = tmp_path / "bin" / "questprof"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(FAKE)
    tool.chmod(0o755)
    given = {f"QP_{name.upper()}": value for name, value in inputs.items()}
    environment = os.environ | given | {
        "PATH": f"{tool.parent}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen.json"),
        "STATUS": str(status), "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(ACTION / "run.sh")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, json.loads((tmp_path / "seen.json").read_text())


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (0, 0, "::notice title=questprof passed::"),
        (1, 1, "::error title=questprof failed::"),
        (2, 2, "::error title=questprof stopped::"),
        (3, 3, "::error title=questprof cannot run here::"),
        (4, 0, "::notice title=questprof inconclusive::"),
        (130, 130, "::error title=questprof stopped::"),
    ],
)
def test_statuses_map(tmp_path: Path, status: int, code: int, says: str) -> None:
    done, _ = run_action(tmp_path, status)
    assert done.returncode == code
    assert says in done.stdout
    outputs = (tmp_path / "outputs").read_text()
    assert f"status={status}\n" in outputs
    assert "verdict=pass\n" in outputs
    assert "sentence=Yes: 12 % of it\n" in outputs  # a line break would be an output of its own
    if status in (0, 1, 4):
        assert "Yes: 12 %25 of it" in done.stdout  # as annotations spell it


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
        kernels="base=a:stages\nnew=b:stages\n",
        baseline="base.jsonl\nabsent.jsonl\n",
        threshold="3%",
        output="out/ci.html",
        options="--samples 5 --seed 1",
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

"""`questprof capture` as people meet it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import WORDS, save_model
from typer.testing import CliRunner

from questprof.capture import checkpoint
from questprof.capture.captured import Captured
from questprof.cli import app
from questprof.errors import Exit, QuestprofError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("command") / "tiny-llama")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text(WORDS)
    return path


def _run(*arguments: object) -> Any:
    """Standard output; raises what the command raises."""
    result = CliRunner().invoke(
        app, ["capture", *map(str, arguments), "--device", "cpu"], catch_exceptions=False
    )
    return result


def test_a_capture_says_what_it_wrote(model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    done = _run(model, "--text", text, "-o", path, "--max-tokens", 80, "--queries", "last:8")
    assert done.exit_code == Exit.OK
    assert (
        "tiny-llama: 80 tokens of words.txt, 8 queries, 3 of 3 layers, 6 query and 2 KV heads of 8"
        in done.stdout
    )
    header = Captured.open(path).header
    assert header.query_positions == tuple(range(72, 80))
    assert path.stat().st_size == header.file_bytes


def test_json_is_one_document(model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    done = _run(
        model, "--text", text, "-o", path, "--max-tokens", 600, "--evidence", "fox=speaks of 37 ",
        "--segment", "question=0:9", "--segment", "answer=10:19", "--generate", 3, "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["trace"] == str(path)
    assert document["bytes"] == path.stat().st_size
    header = document["header"]
    first = WORDS.encode().index(b"speaks of 37 ")
    assert header["evidence"] == [["fox", first, first + len("speaks of 37 ") - 1]]
    assert header["segments"] == [["question", 0, 9], ["answer", 10, 19], ["generated", 600, 602]]
    assert document["warnings"] == [
        "603 tokens, but the model was trained for 512: beyond, its attention may be noise"
    ]
    assert "warning: 603 tokens" in done.stderr


def test_several_texts_are_documents(model: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Another document. " * 5)
    _run(model, "--text", other, "--text", text, "-o", tmp_path / "trace", "--max-tokens", 128)
    header = Captured.open(tmp_path / "trace").header
    assert header.segments == (("other", 0, 89), ("words", 90, 127))


def test_the_demo_needs_no_further_argument(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "demo_checkpoint", lambda: checkpoint.find_checkpoint(model))
    monkeypatch.chdir(tmp_path)
    done = _run("--demo", "--max-tokens", 100)
    assert done.stdout.startswith("tiny-llama: 100 tokens of alice.txt, 64 queries")
    assert Captured.open(tmp_path / "tiny-llama-trace.safetensors").header.num_tokens == 100


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "takes one model"),
        (("MODEL", "--demo"), "takes one model"),
        (("MODEL",), "nothing for the model to read"),
        (("absent", "--text", "TEXT"), "no such file or folder"),
        (("MODEL", "--text", "absent.txt"), "No such file"),
        (("MODEL", "--text", "TEXT", "--queries", "4000"), "past the trace"),
        (
            ("MODEL", "--text", "TEXT", "--max-tokens", "10"),
            "too short: it has 10",
        ),
        (("MODEL", "--text", "TEXT", "--max-tokens", "0"), "at least 1"),
        (("MODEL", "--text", "TEXT", "--evidence", "x=no such words"), "does not have these words"),
        (("MODEL", "--text", "TEXT", "-o", "TEXT"), "exists"),
        (("MODEL", "--text", "TEXT", "-o", "TEXT/trace"), "cannot write"),
    ],
)
def test_mistakes_are_said_and_leave_nothing(
    model: Path, text: Path, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    given = [a.replace("MODEL", str(model)).replace("TEXT", str(text)) for a in arguments]
    if "-o" not in given:
        given += ["-o", str(tmp_path / "trace")]
    with pytest.raises(QuestprofError, match=why):
        _run(*given)
    assert [p.name for p in tmp_path.iterdir()] == ["words.txt"]
    assert text.read_text() == WORDS


def test_max_tokens_is_one_number(model: Path, text: Path, tmp_path: Path) -> None:
    for given, why in (("8k,32k", "not a whole number"), ("0", "it must be at least 1")):
        with pytest.raises(QuestprofError, match=f"--max-tokens.*{given}.*{why}") as found:
            _run(model, "--text", text, "-o", tmp_path / "trace", "--max-tokens", given)
        assert "--max-tokenss" not in found.value.fix


def test_an_interrupt_is_said_and_leaves_nothing(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("questprof.capture.writer.CaptureWriter.write", interrupted)
    done = _run(model, "--text", text, "-o", tmp_path / "trace", "--max-tokens", 80)
    assert done.exit_code == Exit.INTERRUPTED
    assert done.stderr.endswith("interrupted; nothing was written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]


def test_without_the_extra_it_says_what_to_install(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(QuestprofError, match="a package that is not installed") as raised:
        _run(model, "--text", text, "-o", tmp_path / "trace")
    assert raised.value.status == Exit.MACHINE
    assert raised.value.fix == "Install it, in the checkout of questprof: pip install -e '.[model]'"

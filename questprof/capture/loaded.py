"""A causal language model and its tokenizer in memory, from disk alone, in float32."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from questprof.capture.checkpoint import Checkpoint
from questprof.errors import IN_CHECKOUT, Exit, QuestprofError, install


@dataclass(frozen=True)
class Loaded:
    """`model` attends through `recorder.ATTENTION`."""

    model: Any
    tokenizer: Any
    tokenizer_name: str
    """How many tokens, and the SHA-256 of its vocabulary: names differ from folder to folder."""
    num_layers: int
    max_positions: int
    """Positions the model was trained for; 0 where it does not say."""


def load(checkpoint: Checkpoint, device: str) -> Loaded:
    """The model of `checkpoint` on `device` and its tokenizer.

    QuestprofError when the extra is missing, when the files cannot be read as a causal language model, when
    weights are missing, and for an architecture whose attention cannot be listened to.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
    _require_extra(checkpoint)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from questprof.capture.recorder import ATTENTION, register

    register()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # What a folder brings as Python is never run, nor is the user asked whether to.
    source: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if checkpoint.gguf:
        source["gguf_file"] = checkpoint.gguf
    with _explained(checkpoint):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, **source)
        model, info = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            **source,
            dtype=torch.float32,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            output_loading_info=True,
        )
    _refuse_gaps(checkpoint, info)
    config = model.config.get_text_config()
    return Loaded(
        model=model.eval().to(device),
        tokenizer=tokenizer,
        tokenizer_name=_tokenizer_name(tokenizer),
        num_layers=int(config.num_hidden_layers),
        max_positions=int(getattr(config, "max_position_embeddings", 0) or 0),
    )


def _tokenizer_name(tokenizer: Any) -> str:
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    return f"{len(tokenizer)} tokens, sha256 {hashlib.sha256(vocabulary).hexdigest()}"


def _require_extra(checkpoint: Checkpoint) -> None:
    names = ["transformers", *(["gguf", "accelerate"] if checkpoint.gguf else [])]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise QuestprofError(
                "questprof capture needs a package that is not installed",
                f"import {name}: {error}",
                f"Install it, {IN_CHECKOUT}: {install('model')}",
                Exit.MACHINE,
            ) from error


@contextmanager
def _explained(checkpoint: Checkpoint) -> Iterator[None]:
    """Whatever a loader of any architecture and format raises is a fault of the files, said in a line."""
    try:
        yield
    except QuestprofError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise QuestprofError(
            f"cannot load {checkpoint.folder / checkpoint.gguf}",
            f"{type(error).__name__}: {lines[0]}",
            "Name the complete files of a causal language model that the installed transformers knows.",
        ) from error


def _refuse_gaps(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    """Transformers fills weights that are not in the files with random numbers."""
    for what in ("missing_keys", "mismatched_keys"):
        names = sorted(str(name) for name in info.get(what) or ())
        if names:
            raise QuestprofError(
                f"{checkpoint.folder / checkpoint.gguf} is no complete model",
                f"{len(names)} weights are missing or of another shape, the first {names[0]}",
                "Name the complete files of a causal language model.",
            )

"""Values of options that a shell completes, the same in every command that has them."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from questprof.cli import app
from questprof.commands.options import model_names, shape_names
from questprof.decode.config import presets


def completed(command: str, option: str, incomplete: str) -> list[str]:
    """What a shell offers for `questprof COMMAND OPTION INCOMPLETE<TAB>`."""
    root: Any = typer.main.get_command(app)
    found = root.commands[command]
    (parameter,) = [param for param in found.params if option in param.opts]
    return [item.value for item in parameter.shell_complete(typer.Context(found), incomplete)]


@pytest.mark.parametrize("command", ["sweep", "bytes", "formula", "amdahl", "roofline", "decide", "ci"])
def test_shapes_complete(command: str) -> None:
    assert completed(command, "--shape", "ll") == ["llama-2-7b", "llama-3.1-8b"]
    assert completed(command, "--shape", "ti") == ["tiny"]


@pytest.mark.parametrize("command", ["sweep", "amdahl", "roofline", "decide", "ci"])
def test_devices_complete(command: str) -> None:
    assert completed(command, "--device", "c") == ["cpu", "cuda"]


def test_every_model_has_an_attention_shape_of_its_name() -> None:
    """So that a command for one command's gap can name the shape of another's."""
    assert set(model_names("")) == set(presets())
    assert set(presets()) <= set(shape_names(""))

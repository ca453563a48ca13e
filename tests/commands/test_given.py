"""An option is refused that would be lost: one value given twice, or an empty one, whatever the command."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from questprof.cli import app
from questprof.errors import Exit, QuestprofError

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SINGLE = {
    name: next(spelling for spelling in option.opts if spelling.startswith("--"))
    for name, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option" and not (option.multiple or option.is_flag)
}
"""Of every command that has one, an option that takes one value."""

ARGUMENT = "argument"


def kinds(command: object) -> set[str]:
    """Whether a command has options, arguments or both."""
    return {one.param_type_name for one in command.params}  # type: ignore[attr-defined]


def refused(*arguments: str) -> str:
    """What a command line is refused with; '' where its options are taken."""
    error = CliRunner().invoke(app, arguments).exception
    if not isinstance(error, QuestprofError):
        return ""
    assert error.status == Exit.USAGE
    return str(error)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("sweep --lengths 8k --lengths 32k --dry-run", "--lengths"),
        ("sweep --length 8k --lengths 32k --dry-run", "--lengths"),
        ("sweep --time 5m --time 5m --dry-run", "--time"),
        ("ci --summary a.md --summary b.md --shape tiny", "--summary"),
        ("report a.jsonl -o a.html -o b.html", "--output"),
        ("formula --budget 1024 --length 8k --budget 2048", "--budget"),
    ],
)
def test_all_but_the_last_value_are_not_lost_in_silence(line: str, name: str) -> None:
    text = refused(*line.split())
    assert text.startswith(f"{name} is given 2 times in {line.split(maxsplit=1)[1]}: it takes one value")


def test_what_may_be_repeated_stays_so() -> None:
    """Two shapes are two shapes, and a switch that is on twice is on."""
    line = "sweep --shape smollm2-135m --shape llama-3.1-8b --device cpu --lengths 2k --dry-run --json --json"
    done = CliRunner().invoke(app, line.split())
    assert (done.exit_code, refused(*line.split())) == (0, "")
    assert re.search(r'"num_blocks": ?2\b', done.stdout)


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_every_command_takes_each_of_its_values_once(name: str) -> None:
    assert refused(name, *[SINGLE[name], "1"] * 3).startswith(f"{SINGLE[name]} is given 3 times in ")


def test_nearly_every_command_has_such_an_option() -> None:
    assert COMMANDS.keys() - SINGLE.keys() <= {"doctor", "init-kernel", "predict"}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *SINGLE.items(),
        ("decide", "--traffic"),
        ("sweep", "--shape"),
        ("predict", "--traffic"),
        ("recall", "-o"),
    ],
)
def test_an_empty_value_is_not_as_good_as_none(name: str, option: str) -> None:
    """As of a variable that is not set: `decide --traffic "$FILE"` would take minutes without the traffic."""
    long = "--output" if option == "-o" else option
    assert refused(name, option, "").startswith(f"{long} '': it is empty")


@pytest.mark.parametrize(
    "line",
    [
        *([name, ""] for name, command in COMMANDS.items() if ARGUMENT in kinds(command)),
        ["compare", "", "x.jsonl"],
        ["compare", "x.jsonl", ""],
        ["report", "-o", "x.html", "x.jsonl", ""],
    ],
    ids=" ".join,
)
def test_an_empty_argument_is_no_folder(line: list[str]) -> None:
    """As a path it would be the folder that one is in, which no message would make clear."""
    assert refused(*line).startswith("an empty argument in ")
    assert "it names no file" in refused(*line)

"""The command line: registers the commands and turns errors into one screen and an exit status."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from questprof import __version__
from questprof.commands.bytes import bytes_
from questprof.commands.compare import compare
from questprof.commands.doctor import doctor
from questprof.commands.export import export
from questprof.commands.formula import formula
from questprof.commands.predict import predict
from questprof.commands.report import report
from questprof.commands.roofline import roofline
from questprof.commands.sweep import sweep
from questprof.errors import QuestprofError

app = typer.Typer(
    name="questprof",
    help="Will Quest pay off on this GPU, with this model's shape, at these lengths, and why?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (doctor, formula, sweep, roofline, report, compare, predict, export):
    app.command()(_command)
app.command("bytes")(bytes_)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"questprof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Will Quest pay off on this GPU, with this model's shape, at these lengths, and why?"""


def main() -> None:
    """Entry point: QuestprofError becomes what / why / how to fix on stderr and its exit status."""
    try:
        app()
    except QuestprofError as error:
        print(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}", file=sys.stderr)
        sys.exit(error.status)

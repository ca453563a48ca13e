"""The command line: registers the commands and turns errors into one screen and an exit status."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

from questprof import early_interrupt

# What follows takes its time.
# isort: split
import typer
from typer.core import TyperGroup

from questprof import streams
from questprof.commands.amdahl import amdahl
from questprof.commands.bytes import bytes_
from questprof.commands.capture import capture
from questprof.commands.ci import ci
from questprof.commands.compare import compare
from questprof.commands.decide import decide
from questprof.commands.doctor import doctor
from questprof.commands.export import export
from questprof.commands.formula import formula
from questprof.commands.given import Command
from questprof.commands.init_kernel import init_kernel
from questprof.commands.predict import predict
from questprof.commands.recall import recall
from questprof.commands.report import report
from questprof.commands.roofline import roofline
from questprof.commands.sweep import sweep
from questprof.errors import Exit, QuestprofError
from questprof.printable import printable

early_interrupt.over()


class _Commands(TyperGroup):
    """Commands with the whole first sentence of each; the plain form takes half the time of a drawn one."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        names = self.list_commands(ctx)
        commands = {name: command for name in names if (command := self.get_command(ctx, name))}
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in commands.items()])


app = typer.Typer(
    name="questprof",
    help="Will Quest pay off on this GPU, with this model's shape, at these lengths, and why?",
    no_args_is_help=True,
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    doctor,
    formula,
    sweep,
    roofline,
    amdahl,
    capture,
    recall,
    report,
    compare,
    predict,
    export,
    decide,
    init_kernel,
    ci,
):
    app.command(cls=Command)(_command)
app.command("bytes", cls=Command)(bytes_)


def _print_version(wanted: bool) -> None:
    if wanted:
        from questprof.version import describe

        print(f"questprof {describe()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and commit."
        ),
    ] = False,
) -> None:
    """Will Quest pay off on this GPU, with this model's shape, at these lengths, and why?"""


def main() -> None:
    """Entry point: QuestprofError becomes what / why / how to fix on stderr and its exit status.

    What was printed and did not arrive is an error too; a reader that is gone (`| head`) ends it quietly.
    """
    streams.guard()
    try:
        try:
            app()
        except QuestprofError as error:
            _say(error)
            sys.exit(error.status)
        except KeyboardInterrupt:  # before a command began
            sys.exit(Exit.INTERRUPTED)
        finally:
            streams.flush()
    except streams.OutputLostError as lost:
        sys.exit(_lost(lost))


def _say(error: QuestprofError) -> None:
    print(printable(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}"), file=sys.stderr)


def _lost(lost: streams.OutputLostError) -> Exit:
    """Say on stderr what stdout could not take, and the status."""
    if lost.reader_gone:
        return Exit.READER_GONE
    if lost.stream == "stdout":
        fix = "Make room, or send it elsewhere; a profile keeps what was measured."
        with suppress(streams.OutputLostError):
            _say(QuestprofError("cannot write to stdout", lost.why, fix))
    return Exit.MACHINE

"""`questprof doctor`: what this machine can measure, how to get the rest, and what to type next."""

from __future__ import annotations

import typer

from questprof.commands import options
from questprof.errors import Exit
from questprof.streams import print_json


def doctor(json: options.JSON = False) -> None:
    """Say what this machine can measure, how to get what is missing, and what to type next.

    Each line is ok, warning (figures are poorer) or fix (something is broken). Exit 3 when nothing can be
    measured here.
    """
    from questprof.doctor.checks import diagnose
    from questprof.doctor.display import document, show
    from questprof.doctor.probes import gather
    from questprof.terminal import plain_console

    found = diagnose(gather())
    if json:
        print_json(document(found))
    else:
        show(found, plain_console())
    if not found.ready:
        raise typer.Exit(Exit.MACHINE)

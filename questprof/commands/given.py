"""What every command has: no option that is lost in silence, and with --json a document alone on stdout."""

from __future__ import annotations

import shlex
from typing import Any

from typer.core import TyperCommand

from questprof import streams
from questprof.errors import QuestprofError


class Command(TyperCommand):
    """A command that takes no empty value, and each option once but for switches and what may be repeated.

    With --json all it prints goes to stderr, but for the document: a user's kernel may print as it likes.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left, as of any command; QuestprofError for what would be lost."""
        parsed: tuple[Any, ...] = self.make_parser(ctx).parse_args(args=list(args))
        values, _, given = parsed
        for option in dict.fromkeys(given):
            if option.param_type_name != "option":
                _refuse_empty_argument(values[option.name], f"{ctx.command_path} {shlex.join(args)}")
                continue
            if option.is_flag or option.count:
                continue
            if given.count(option) > 1 and not option.multiple:
                raise _twice(option, given.count(option), args)
            if "" in (values[option.name] if option.multiple else [values[option.name]]):
                raise _empty(option)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        if not ctx.params.get("json"):
            return super().invoke(ctx)
        with streams.document_alone():
            return super().invoke(ctx)


def _name(option: Any) -> str:
    return str(next(one for one in option.opts if one.startswith("--")))


def _twice(option: Any, times: int, args: list[str]) -> QuestprofError:
    return QuestprofError(
        f"{_name(option)} is given {times} times in {shlex.join(args)}",
        "it takes one value, and all but the last would be lost",
        f"Give {_name(option)} once; where it takes a list, with commas.",
    )


def _refuse_empty_argument(value: Any, line: str) -> None:
    """QuestprofError for an argument that is the empty string, which as a path would be the folder itself."""
    if "" in (value if isinstance(value, tuple | list) else [value]):
        raise QuestprofError(
            f"an empty argument in `{line}`",
            "it names no file",
            "Give a name, or leave it out; a variable of your shell may not be set.",
        )


def _empty(option: Any) -> QuestprofError:
    return QuestprofError(
        f"{_name(option)} ''",
        "it is empty, and names no value, no file and no folder",
        f"Give a value, or leave {_name(option)} out; a variable of your shell may not be set.",
    )

"""`questprof compare BASE NEW`: two runs, or two stage sets of one run, stage by stage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.compare.outcome import Outcome
    from questprof.compare.pairs import Pairs
    from questprof.compare.spread import Spread

UNDECIDED = {"pass": 0, "fail": 1, "4": 4}
FORMATS = ("table", "json", "md")


def compare(
    profiles: Annotated[
        list[Path],
        typer.Argument(help="BASE NEW; or one profile with --base and --new.", metavar="BASE [NEW]"),
    ],
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also", help="A further run of BASE's code; two or more measure the spread between runs."
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="One profile: the backend that is compared with.")
    ] = None,
    new: Annotated[str | None, typer.Option("--new", help="One profile: the backend that is judged.")] = None,
    threshold: Annotated[
        str, typer.Option("--threshold", help="Where the whole interval lies within it: same. 2%, 0.02.")
    ] = "2%",
    between_runs: Annotated[
        str | None,
        typer.Option("--between-runs", help="Stated spread between runs in place of the device's own: 3%."),
    ] = None,
    undecided: Annotated[
        str, typer.Option("--undecided", help="Exit status of an undecided comparison: pass, fail or 4.")
    ] = "4",
    form: Annotated[str, typer.Option("--format", help="table, json, md (a CI summary).")] = "table",
    everything: Annotated[bool, typer.Option("--all", help="Every row, not only the first.")] = False,
    skip_corrupt: options.SKIP_CORRUPT = False,
    force: Annotated[
        bool, typer.Option("--force", help="Compare other machines, dtypes and shapes as well.")
    ] = False,
    json: options.JSON = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer fills it in
) -> None:
    """Every stage: same, within the spread between runs, faster (exit 0), slower (1), undecided (4)."""
    from questprof.compare.verdicts import compare as judge

    _choice("--undecided", undecided, tuple(UNDECIDED))
    _choice("--format", form, FORMATS)
    if json and form != "json" and "form" in options.typed(context):
        from questprof.errors import QuestprofError

        raise QuestprofError(f"--format {form} with --json", "there is one document on stdout", "Give one.")
    limit = _share("--threshold", threshold)
    stated = None if between_runs is None else _share("--between-runs", between_runs)
    pairs, spread = _load(profiles, also or [], (base, new), stated, skip_corrupt, force)
    outcome = judge(pairs, spread, limit)
    _print(outcome, "json" if json else form, everything)
    if status := outcome.exit_status(UNDECIDED[undecided]):
        raise typer.Exit(status)


def _load(
    profiles: list[Path],
    also: list[Path],
    sides: tuple[str | None, str | None],
    stated: float | None,
    skip_corrupt: bool,
    force: bool,
) -> tuple[Pairs, Spread]:
    """Read the profiles and pair them; QuestprofError when the arguments make no comparison."""
    from questprof.compare.pairs import (
        across,
        refuse_other_machine,
        refuse_repeats,
        refuse_strangers,
        within,
    )
    from questprof.compare.spread import spread_of
    from questprof.errors import QuestprofError
    from questprof.store import read_profile
    from questprof.units import count

    base, new = sides
    one_run = base is not None and new is not None
    if len(profiles) != (1 if one_run else 2) or (base is None) != (new is None) or (one_run and also):
        raise QuestprofError(
            f"compare of {count(len(profiles), 'profile')}",
            "it takes two profiles, or one with both --base and --new (and no --also)",
            "questprof compare BASE.jsonl NEW.jsonl, or questprof compare RUN.jsonl --base base --new new.",
        )
    read = [read_profile(path, skip_corrupt=skip_corrupt) for path in (*profiles, *also)]
    for warning in dict.fromkeys(warning for profile in read for warning in profile.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    baselines = [read[0], *read[len(profiles) :]]
    if base is not None and new is not None:
        return within(read[0], base, new), spread_of(baselines, stated)
    for other in baselines[1:] if not force else ():
        refuse_other_machine(read[0], other)
    pairs = across(read[0], read[1], force=force)
    if also:
        refuse_strangers(baselines)
        refuse_repeats(baselines, read[1])
    return pairs, spread_of(baselines, stated)


def _print(outcome: Outcome, form: str, everything: bool) -> None:
    from questprof.compare.text import document, markdown, print_table
    from questprof.terminal import plain_console

    if form == "json":
        print_json(document(outcome))
    elif form == "md":
        print(markdown(outcome, everything=everything))
    else:
        print_table(plain_console(), outcome, everything=everything)


def _share(option: str, text: str) -> float:
    """`2%` or `0.02` as 0.02; QuestprofError unless it lies from 0 up to 10 (1000 %).

    From 1 on only with its `%`: who writes 2 means 2 %, and 200 % would call everything the same.
    """
    from questprof.errors import QuestprofError

    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise QuestprofError(f"{option} {text!r}", "it is no share from 0 to 1000%", "Write 2% or 0.02.")
    if value >= 1 and not percent:
        raise QuestprofError(
            f"{option} {text!r}", "it is no share below 1", f"Write {number}%, or {100 * value:g}%."
        )
    return value


def _choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    from questprof.errors import QuestprofError

    if value not in choices:
        raise QuestprofError(f"{option} {value!r}", "it is unknown", f"Choose one of {', '.join(choices)}.")

"""The answers in a terminal: a verdict, then one line a finding; tables only where times were joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from questprof.crossover.tables import Table
from questprof.model import Profile
from questprof.recall.answers import finding_tables, sentences
from questprof.recall.answers.evaluation import Evaluation, evaluations
from questprof.recall.answers.finding import Answers, answers, between_traces
from questprof.recall.answers.step_sentences import trace_sentence
from questprof.terminal import folded, plain_table, print_prose, print_table

Pair = tuple[Evaluation, Answers]


def print_answers(console: Console, profile: Profile, timings: Iterable[Profile] = ()) -> None:
    """Everything `profile` answers, trace by trace; nothing for a profile without rows of Quest."""
    pairs = paired(profile, timings)
    for evaluation, found in pairs:
        if len(pairs) > 1:
            console.print(
                f"\n{sentences.title(evaluation.trace)}", style="bold", highlight=False, markup=False
            )
        for line in sentences.verdict(evaluation, found):
            print_prose(console, line)
        console.print()
        for line in sentences.findings(found):
            print_prose(console, f"- {line}")
        for made in (finding_tables.equal_table(found.joined), finding_tables.timed_table(found.joined)):
            _print(console, made)
    if text := trace_sentence(between_traces(profile)):
        print_prose(console, f"- {text}")


def paired(profile: Profile, timings: Iterable[Profile] = ()) -> list[Pair]:
    """Every trace's rows with what they answer."""
    shown = [one for one in evaluations(profile) if one.policy]
    return list(zip(shown, answers(profile, timings), strict=True))


def document(pairs: Sequence[Pair]) -> list[dict[str, object]]:
    """The answers for `recall --json`: the findings, and the sentences made of them."""
    return [
        {
            "verdict": sentences.verdict(evaluation, found),
            "findings": sentences.findings(found),
            "suggested": found.suggestion.budgets,
            "dense_layers": found.suggestion.dense_layers,
            "answers": found,
        }
        for evaluation, found in pairs
    ]


def _print(console: Console, made: Table) -> None:
    if not made.rows:
        return
    table = plain_table(*made.heads, left=(made.heads[0],))
    for row in made.rows:
        table.add_row(*row)
    for number, part in enumerate(folded(console, table, 1)):
        print_table(console, part, made.title + ", continued" * (number > 0))
    print_prose(console, made.note, "dim")

"""A decision as one JSON document, as lines for a terminal, and as Markdown for a CI summary. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from questprof.compare.text import plain
from questprof.crossover.sentences import format_length, format_speed_up
from questprof.decide.case import Case, Gain
from questprof.decide.case_words import ms, percent
from questprof.decide.decision import Decision
from questprof.decide.evidence import Findings
from questprof.decide.remarks import remarks
from questprof.decide.sentences import by_batch, sentence
from questprof.units import format_count

HEADS = ("batch", "answer", "from", "attention", "requests", "ms a token", "saved", "limited by")


def document(found: Findings, made: Decision, paths: dict[str, Any]) -> dict[str, Any]:
    """The decision with everything it rests on; `paths` of the page and the profiles."""
    return {
        "answer": made.answer,
        "from_length": made.seq_len,
        "sentence": sentence(found, made),
        "status": int(made.status),
        "setting": {
            "device": found.asked.device,
            "shape": found.asked.shape,
            "page_size": found.asked.page_size,
            "token_budget": found.asked.budget,
            "lengths": found.asked.lengths,
            "weights": found.asked.weights,
            "kernels": found.asked.backend,
            "traffic": found.asked.traffic.name if found.asked.traffic else None,
        },
        "batches": [_case(case) for case in made.cases],
        "bytes": dataclasses.asdict(made.bytes),
        "missing": made.missing,
        "dropped": made.dropped,
        "wrong": made.wrong,
        "unstable": made.unstable,
        "remarks": remarks(made),
        "environment": found.environment,
        **paths,
    }


def _case(case: Case) -> dict[str, Any]:
    said = dataclasses.asdict(dataclasses.replace(case, agreeing=None))
    del said["agreeing"]
    if case.gain:
        said["gain"] |= {"saved_ms": case.gain.saved_ms, "saved_share": case.gain.saved_share}
    if case.agreeing:
        said["same_pages"] = {"kind": case.agreeing.kind, "seq_len": case.agreeing.seq_len}
    return said


def cells(made: Decision) -> list[tuple[str, ...]]:
    """A row of the table for each batch; `-` where nothing is known."""
    return [_cells(case) for case in made.cases]


def _cells(case: Case) -> tuple[str, ...]:
    gain, share, limit = case.gain, case.share, case.limit
    return (
        str(case.batch_size),
        case.answer,
        _start(case),
        f"{format_speed_up(case.attention[1])} at {format_count(case.attention[0])}"
        if case.attention
        else "-",
        percent(share.faster) if share and share.covered else "-",
        _step_ms(gain) if gain else "-",
        f"{gain.saved_share:.1%}" if gain else "-",
        f"{limit.part}, {percent(limit.share)}" if limit else "-",
    )


def _step_ms(gain: Gain) -> str:
    """`1.02 -> 0.625 (modelled, warm)`: ms a token, dense and with Quest."""
    marks = ", ".join(["modelled"] * (not gain.measured) + ["warm"] * gain.warm)
    return f"{ms(gain.dense_ms)} -> {ms(gain.quest_ms)}" + (f" ({marks})" if marks else "")


def _start(case: Case) -> str:
    """Tokens from which Quest is faster."""
    if case.seq_len:
        return format_length(case.seq_len)
    return format_count(case.lengths[0]) if case.answer == "yes" else "-"


def markdown(found: Findings, made: Decision, title: str = "questprof decide") -> str:
    """One screen for a CI summary; text of a profile stays text."""
    lines = [f"### {escape(title)}: {made.answer}", "", escape(sentence(found, made)), ""]
    lines += [f"| {' | '.join(HEADS)} |", "|---:|---|---:|---:|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in cells(made)]
    said = (*by_batch(made), *remarks(made))
    return "\n".join([*lines, *([""] if said else []), *(f"- {escape(text)}" for text in said), ""])


def escape(text: str) -> str:
    """Text without markup of its own: names come from files that nobody vouches for."""
    clean = plain(text)
    for mark in "\\|`*_[]<>#":
        clean = clean.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return clean


def terminal_lines(found: Findings, made: Decision) -> Sequence[str]:
    """What is printed below the table."""
    return ("", *remarks(made), *by_batch(made), "", sentence(found, made))

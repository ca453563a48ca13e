"""Files that options of `amdahl` name: the lengths of a batch, the token budgets of a model's layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from questprof.errors import QuestprofError
from questprof.recall.answers.layer_table import LayerTable, parse_layer_table
from questprof.units import count, parse_count

MOST_NAMED: Final = 60
"""Characters of a word that is no budget that are shown."""


def read_lengths(path: Path) -> tuple[int, ...]:
    """The requests of one batch: a length a line (or between commas), `#` begins a comment."""
    lengths = tuple(parse_count(word, "length") for word in _words(path))
    if not lengths or min(lengths) < 1:
        why = "a request has a token at least" if lengths else "it names no request"
        raise QuestprofError(f"lengths of {path}", why, "Write a length a line, each 1 or more.")
    return lengths


def read_layer_budgets(path: Path, num_layers: int) -> tuple[int, ...]:
    """A token budget a layer, in the order of the layers; `0` or `dense` keeps a layer dense.

    Or the table that `questprof recall --suggest` writes. QuestprofError for a number of budgets that is not
    the model's number of layers.
    """
    text = _text(path)
    if text.lstrip().startswith("{"):
        return _some_quest(path, _per_layer(path, parse_layer_table(text, path), num_layers))
    try:
        budgets = tuple(0 if word == "dense" else parse_count(word, "budget") for word in _words(path))
    except QuestprofError as error:
        raise QuestprofError(
            f"{path} is not a table of layer budgets",
            f"{_start(error.what)}: {error.why}",
            "Write a token budget for each layer, or name what questprof recall TRACE --suggest FILE wrote.",
        ) from error
    if len(budgets) != num_layers:
        raise QuestprofError(
            f"{path} holds {count(len(budgets), 'budget')}",
            f"the model has {count(num_layers, 'layer')}",
            "Write a budget for each layer, `dense` (or 0) for those that stay dense.",
        )
    return _some_quest(path, budgets)


def _start(text: str) -> str:
    """The beginning of words that a file of another kind holds."""
    return text if len(text) <= MOST_NAMED else f"{text[:MOST_NAMED]} ..."


def _per_layer(path: Path, table: LayerTable, num_layers: int) -> tuple[int, ...]:
    """Its budgets by layer; a table that was suggested for some of the layers is named as one."""
    named = sorted({*table.dense_layers, *map(int, table.budgets)})
    if table.source and len(named) < num_layers and set(named) < set(range(num_layers)):
        raise QuestprofError(
            f"{path} suggests budgets for {len(named)} of the model's {count(num_layers, 'layer')}",
            f"the trace that it was made from, of {table.source.model}, was evaluated at "
            f"{'layers' if len(named) != 1 else 'layer'} {', '.join(map(str, named))} alone",
            "Add the others to its dense_layers or budgets, or evaluate a trace of every layer.",
        )
    return table.per_layer(num_layers)


def _some_quest(path: Path, budgets: tuple[int, ...]) -> tuple[int, ...]:
    if not any(budgets):
        raise QuestprofError(
            f"{path} keeps every layer dense",
            "Quest would not run",
            "Give a layer a budget, or leave it out.",
        )
    return budgets


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise QuestprofError(
            f"cannot read {path}", reason, "Name a text file with a number a line."
        ) from error


def _words(path: Path) -> list[str]:
    return [word for word in re.split(r"[\s,\[\]]+", re.sub(r"#.*", "", _text(path)).lower()) if word]

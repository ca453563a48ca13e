"""The file of a budget for every layer: `recall --suggest` writes it, `amdahl --layer-budgets` reads it.

    {"dense_layers": [0], "budgets": {"1": 512, "2": 1024}, "source": {...}}

Tokens by layer; a layer in `dense_layers` attends to every page. `source` says what the table was made
from; a table written by hand goes without.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from questprof.errors import QuestprofError
from questprof.structs import Struct


class TableSource(Struct, frozen=True):
    """What a table was made from, and what it promises there."""

    model: str
    text: str
    trace_id: str
    shortest_context: int
    """Tokens that the queries saw, from shortest to longest."""
    longest_context: int
    page_size: int
    policy: str
    mass: float
    """Share of the dense mass that the budget keeps ..."""
    pairs: float
    """... for at least this share of each layer's (head, query) pairs."""
    dense_ratio: float
    """Read ratio, eq. (12), from which on a layer is left dense."""
    left_out: tuple[int, ...] = ()
    """Layers of the model that were not evaluated, and so have no budget."""
    synthetic: bool = False
    """From made-up queries and keys: no statement about any model."""
    note: str = ""
    """`synthetic` and `left_out` in words, empty where there is nothing to say."""


class LayerTable(Struct, frozen=True):
    """Dense layers, and the token budget of every other layer, by its number as text."""

    dense_layers: tuple[int, ...]
    budgets: dict[str, int]
    source: TableSource | None = None

    def per_layer(self, num_layers: int) -> tuple[int, ...]:
        """The token budget of each of `num_layers` layers, 0 where it is dense.

        QuestprofError for a layer that the table leaves out, names twice, or that the model has not.
        """
        budgets = {int(layer): tokens for layer, tokens in self.budgets.items()}
        twice = sorted(set(self.dense_layers) & set(budgets))
        if twice:
            raise _unfit(f"layers {_listed(twice)} are dense and have a budget")
        named = {**budgets, **dict.fromkeys(self.dense_layers, 0)}
        beyond = sorted(layer for layer in named if not 0 <= layer < num_layers)
        if beyond:
            raise _unfit(f"it names layers {_listed(beyond)}, the model has layers 0-{num_layers - 1}")
        missing = sorted(set(range(num_layers)) - set(named))
        if missing:
            raise _unfit(f"it lacks layers {_listed(missing)}")
        return tuple(named[layer] for layer in range(num_layers))


def write_layer_table(table: LayerTable, path: Path, force: bool = False) -> None:
    """Write `table`; QuestprofError where the file exists (unless `force`) or cannot be written."""
    from questprof.files import cannot_write, output_exists

    if path.exists() and not force:
        raise output_exists(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def parse_layer_table(text: str, path: Path) -> LayerTable:
    """The table in `text`, which `path` held; QuestprofError saying what is wrong with it."""
    try:
        table = msgspec.json.decode(text.encode(), type=LayerTable)
        wrong = [f"layer {name!r}" for name in table.budgets if not name.isdecimal()]
    except msgspec.MsgspecError as error:
        raise QuestprofError(f"{path} is no table of layer budgets", str(error), FORM) from error
    wrong += [f"a budget of {tokens}" for tokens in table.budgets.values() if tokens < 1]
    if wrong:
        raise QuestprofError(f"{path} is no table of layer budgets", f"it has {', '.join(wrong)}", FORM)
    return table


FORM = (
    'Write {"dense_layers": [0], "budgets": {"1": 512}}, tokens by layer, or have it written: '
    "questprof recall TRACE --suggest FILE."
)


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers))


def _unfit(why: str) -> QuestprofError:
    return QuestprofError(
        "the table of layer budgets", why, "Give every layer of the model a budget or name it dense, once."
    )

"""What a step would gain if one thing were otherwise, each figure with its source. Pure.

Modelled rows move measured parts about: layers are taken as alike, what lies between parts stays as it
is, and weights are read as fast as they were. A row that was measured as well is taken from its record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from questprof.amdahl.breakdown import QUEST_PARTS, quest_layers
from questprof.amdahl.check import served_us
from questprof.amdahl.pairs import Pair, budget_text
from questprof.decode.config import linear_bytes
from questprof.units import DTYPE_BYTES

MEASURED: Final = "measured: clock"
MODELLED: Final = "modelled: measured parts"
BY_BYTES: Final = "modelled: bytes of the weights"
LAYER_PARTS: Final = ("qkv", "out_proj", "ffn")
"""Parts whose weights a 4-bit format packs; embedding and head stay as they are."""
FASTER_SELECT: Final = (2,)
"""Times as fast as `select` is asked about, beside costing nothing."""


@dataclass(frozen=True)
class WhatIf:
    """One question and its answer; None where a step of that kind does not exist."""

    what: str
    dense_us: float
    quest_us: float | None
    speedup: float | None
    source: str
    doubtful: bool = False
    """Whether the steps that it is of give no verdict."""


def what_ifs(pair: Pair, pairs: Sequence[Pair]) -> tuple[WhatIf, ...]:
    """The questions for one pair; `pairs` are all of its profile, for answers that were measured.

    Empty where the parts do not allow the check of equation (13).
    """
    if pair.check is None:
        return ()
    return (
        *(_of(pair, one) for one in (*_free(pair), *_select(pair))),
        *_dense_layers(pair, pairs),
        *_four_bits(pair, pairs),
        *_tables(pair, pairs),
    )


def _answer(what: str, dense_us: float, quest_us: float, source: str) -> WhatIf:
    return WhatIf(what, dense_us, quest_us, dense_us / quest_us if quest_us > 0 else None, source)


def _measured(what: str, twin: Pair) -> WhatIf:
    return _of(twin, _answer(what, twin.dense.us, twin.quest.us, MEASURED))


def _of(pair: Pair, answer: WhatIf) -> WhatIf:
    """An answer that is of the steps of `pair`."""
    return dataclasses.replace(answer, doubtful=bool(pair.doubts))


def _free(pair: Pair) -> Iterator[WhatIf]:
    """The bounds of equation (13): attention that costs nothing, in all layers or those that Quest serves."""
    dense = pair.dense
    yield _answer("attention free", dense.us, dense.us - dense.of("dense"), MODELLED)
    served = served_us(dense, pair.quest)
    if served < dense.of("dense"):
        what = "served attention free"
        yield _answer(what, dense.us, dense.us - served, MODELLED)


def _select(pair: Pair) -> Iterator[WhatIf]:
    """`select` faster, and without cost."""
    us, select = pair.quest.us, pair.quest.of("select")
    if not select:
        return
    for times in FASTER_SELECT:
        yield _answer(f"select {times}x as fast", pair.dense.us, us - select * (1 - 1 / times), MODELLED)
    yield _answer("select free", pair.dense.us, us - select, MODELLED)


def _dense_layers(pair: Pair, pairs: Sequence[Pair]) -> Iterator[WhatIf]:
    """None, two or all of the first layers dense: measured where such a step is among `pairs`."""
    setup, layers = pair.point.decode, pair.point.shape.num_layers
    if setup is None or setup.layer_budgets:
        return
    own = _id_without(pair, {"dense_layers": 0})
    twins = {
        one.point.decode.dense_layers: one
        for one in pairs
        if one.point.decode and _id_without(one, {"dense_layers": 0}) == own
    }
    for count in dict.fromkeys((0, 2, layers)):
        what = f"{count} dense layers" if count < layers else "all layers dense"
        if count in twins:
            yield _measured(what, twins[count])
        else:
            yield _of(pair, _answer(what, pair.dense.us, with_dense_layers(pair, count), MODELLED))


def _id_without(pair: Pair, setup: dict[str, Any], **point: Any) -> str:
    """The Quest point's id with those fields of its setup and its own replaced; any dense backend."""
    found = pair.point.decode and replace(pair.point.decode, dense_backend="", **setup)
    return replace(pair.point, decode=found, **point).point_id


def with_dense_layers(pair: Pair, count: int) -> float:
    """The Quest step, us, if its first `count` layers were dense: layers are alike, gaps stay."""
    layers, served = pair.point.shape.num_layers, quest_layers(pair.point)
    per_dense = pair.dense.of("dense") / layers
    per_quest = _quest_work_us(pair) / served if served else per_dense
    return pair.quest.us + (min(count, layers) - (layers - served)) * (per_dense - per_quest)


def _quest_work_us(pair: Pair) -> float:
    """What Quest does in the layers that it serves: its stages, and the summary's update."""
    more_append = pair.quest.of("append") - pair.dense.of("append")
    return pair.quest.sum_of(QUEST_PARTS) + max(0.0, more_append)


def _four_bits(pair: Pair, pairs: Sequence[Pair]) -> Iterator[WhatIf]:
    """4-bit weights: the measured pair of the same requests, or by the bytes of the projections."""
    setup = pair.point.decode
    if setup is None or setup.weight_format not in DTYPE_BYTES:  # int4, or a format that is not known
        return
    wanted = _without_weights(pair)
    twin = next((one for one in pairs if _is_int4(one) and _without_weights(one) == wanted), None)
    if twin:
        yield _measured("4-bit weights", twin)
        return
    saved = [
        one.sum_of(LAYER_PARTS) * (1 - four_bit_ratio(setup.weight_format))
        for one in (pair.dense, pair.quest)
    ]
    dense_us, quest_us = pair.dense.us - saved[0], pair.quest.us - saved[1]
    yield _of(pair, _answer("4-bit weights", dense_us, quest_us, BY_BYTES))


def _is_int4(pair: Pair) -> bool:
    return pair.point.decode is not None and pair.point.decode.weight_format == "int4"


def _without_weights(pair: Pair) -> str:
    """The pair's id without what a weight format changes: its own name, and a CPU's dtype of the cache."""
    return _id_without(
        pair, {"weight_format": ""}, shape=replace(pair.point.shape, kv_dtype="", summary_dtype="")
    )


def four_bit_ratio(weight_format: str) -> float:
    """Bytes of group-quantised 4-bit weights, scales included, over those of `weight_format`."""
    return linear_bytes(1, 1024, "int4") / (1024 * DTYPE_BYTES[weight_format])


def _tables(pair: Pair, pairs: Sequence[Pair]) -> Iterator[WhatIf]:
    """Per-layer budget tables that were measured on the same model, weights and requests."""
    free: dict[str, Any] = {"token_budget": 0, "token_budgets": ()}
    plain = {"dense_layers": 0, "layer_budgets": ()}
    own = _id_without(pair, plain, **free)
    for one in pairs:
        tabled = one.point.decode is not None and bool(one.point.decode.layer_budgets)
        if tabled and one is not pair and _id_without(one, plain, **free) == own:
            yield _measured(budget_text(one.point), one)

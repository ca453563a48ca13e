"""The whole step as stacked bars, dense beside Quest at every length, and the unprofiled times as marks.

A trace carries `meta`: its role, which is its colour, and a text a point, of our words and numbers alone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from questprof.amdahl.breakdown import UNEXPLAINED, Breakdown
from questprof.amdahl.pairs import budget_text, lengths_text


class Piece(NamedTuple):
    """One piece of a bar: its parts, its colour, and the pattern that sets it apart in that colour."""

    name: str
    parts: tuple[str, ...]
    role: str
    pattern: str = ""


STACK: Final = (
    Piece("dense", ("dense",), "dense"),
    Piece("score", ("score",), "score"),
    Piece("select", ("select",), "select"),
    Piece("attend", ("attend",), "attend"),
    Piece("append", ("append",), "append"),
    Piece("qkv", ("qkv",), "muted", "."),
    Piece("out_proj", ("out_proj",), "muted", "/"),
    Piece("ffn", ("ffn",), "muted", "x"),
    Piece("head", ("head",), "muted", "-"),
    Piece("embed, norm, rope, sampling", ("embed", "norm", "rope", "sampling"), "link"),
    Piece("gaps", ("gaps",), "rule"),
    Piece(UNEXPLAINED, (UNEXPLAINED,), "alarm"),
)
"""The pieces of a bar from below."""


def step_figure(steps: Sequence[Breakdown]) -> dict[str, Any] | None:
    """Figure of steps of one model, weight format and batch, shortest first; None where none has parts.

    Where parts add up to more than the step, the difference hangs below zero: what stands above less what
    hangs below is the unprofiled step, which a mark shows.
    """
    shown = [step for step in steps if step.parts]
    if not shown:
        return None
    lines = [{name: us for name, us, _ in step.lines()} for step in shown]
    x = [f"{lengths_text(step.point)} {bar_name(step)}" for step in shown]
    data = []
    for piece in STACK:
        heights = [sum(one.get(part, 0.0) for part in piece.parts) for one in lines]
        if any(abs(us) > 0.005 for us in heights):
            hover = [_hover(step, piece.name, us) for step, us in zip(shown, heights, strict=True)]
            data.append(_bar(piece, x, heights, hover))
    data.append(_marks(shown, x))
    layout = {
        "xaxis": {
            "type": "category",
            "tickvals": x,
            "ticktext": [_label(step) for step in shown],
            "tickfont": {"size": 11},
        },
        "barmode": "relative",
        "yaxis": {"title": {"text": "time of a step, us"}},
    }
    return {"data": data, "layout": layout}


def _label(step: Breakdown) -> str:
    """Below a bar: the length with the dense step, which is its first one, the budget alone after it."""
    name = bar_name(step)
    return f"{lengths_text(step.point)} {name}" if step.point.policy == "dense" else name


def bar_name(step: Breakdown) -> str:
    """`dense`, `2048`, `by layer`: what a bar is within its length."""
    point, setup = step.point, step.point.decode
    if point.policy == "dense":
        usual = setup is None or setup.dense_backend == "questprof"
        return "dense" if usual or setup is None else html.escape(f"dense, {setup.dense_backend}")
    if setup and setup.layer_budgets:
        return "by layer"
    few = f", {setup.dense_layers} dense" if setup and setup.dense_layers != 2 else ""
    return f"{point.token_budget}{few}"


def _hover(step: Breakdown, name: str, us: float) -> str:
    return f"{_bar_title(step)}, {name}: {us:.4g} us, {us / step.us:.1%} of the step, measured"


def _bar_title(step: Breakdown) -> str:
    point = step.point
    what = bar_name(step) if point.policy == "dense" else html.escape(budget_text(point))
    return f"{lengths_text(point)}, {what}"


def _bar(piece: Piece, x: Sequence[str], heights: Sequence[float], hover: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": piece.name,
        "x": list(x),
        "y": [_digits(us) for us in heights],
        "marker": {"pattern": {"shape": piece.pattern, "fillmode": "overlay"}},
        "meta": {"role": piece.role, "hover": list(hover)},
    }


def _marks(steps: Sequence[Breakdown], x: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "step, unprofiled",
        "x": list(x),
        "y": [_digits(step.us) for step in steps],
        "marker": {"symbol": "diamond"},
        "meta": {
            "role": "ink",
            "hover": [f"{_bar_title(step)}: {step.us:.4g} us, measured: clock" for step in steps],
        },
    }


def _digits(value: float) -> float:
    return float(f"{value:.6g}")

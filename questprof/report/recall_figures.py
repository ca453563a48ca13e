"""Figures of the recall section: heat maps, budgets, slack, tail pages, and needs query by query."""

from __future__ import annotations

import html
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final

from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.finding import Curve as LayerCurve
from questprof.recall.answers.needs import PAIRS
from questprof.recall.answers.slack import Slack
from questprof.recall.answers.steps import Steps
from questprof.recall.answers.suggestion import Suggestion
from questprof.recall.answers.tables import COUNTED, LOGITS
from questprof.recall.answers.tail import Tail
from questprof.report.curves import Curve, curves
from questprof.report.panels import Figure, template
from questprof.units import count, format_count, six_digits

SHORT: Final = "counted"
PALEST: Final = 50
"""Percent of the mass up to which cells are palest: between half of the mass and all of it colours should
differ."""


def heat_map(evaluation: Evaluation, page_size: int, token_budget: int, policy: str) -> Figure:
    """Layer by head, cells in percent of the dense mass."""
    heads = evaluation.heads(page_size, token_budget, policy)
    columns, rows = (sorted({name[i] for name in heads}) for i in (1, 0))
    cells = [
        [
            round(100 * heads[cell].mass_recall, 2) if (cell := (layer, head)) in heads else None
            for head in columns
        ]
        for layer in rows
    ]
    trace = {
        "type": "heatmap",
        "name": "mass recall",
        "x": [str(head) for head in columns],
        "y": [str(layer) for layer in rows],
        "z": cells,
        "zmin": PALEST,
        "zmax": 100,
        "texttemplate": "%{z:.0f}",
        "textfont": {"size": 10},
        "hovertemplate": template(f"layer %{{y}}, head %{{x}}: %{{z:.1f}}% of the mass, {SHORT}"),
        "meta": {"role": "quest"},
    }
    axes = {
        "xaxis": {"type": "category", "title": {"text": "query head"}},
        "yaxis": {"type": "category", "autorange": "reversed", "title": {"text": "layer"}},
    }
    label = "Heat map of mass recall by layer and query head, in percent."
    return Figure(
        {"data": [trace], "layout": axes},
        label,
        f"Percent of the dense mass inside the picked pages: {COUNTED}.",
    )


def budget_curves(found: Sequence[LayerCurve], dense: Sequence[int]) -> Figure:
    """A curve a layer, those that are better left dense apart, and the mean over layers."""
    ordered = sorted(found, key=lambda one: one.layer in dense)
    drawn = [_layer(one, one.layer in dense) for one in ordered]
    shown: set[str] = set()
    for trace in drawn:
        trace["showlegend"] = trace["name"] not in shown
        shown.add(trace["name"])
    budgets = found[0].budgets
    mean = [fmean(one.mass[i] for one in found) for i in range(len(budgets))]
    drawn.append(_line("mean over layers", "mean", budgets, mean, "quest", "lines+markers"))
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": "budget B, tokens"},
            "tickvals": list(budgets),
            "ticktext": [format_count(b) for b in budgets],
        },
        "yaxis": {"title": {"text": "mass recall"}},
    }
    label = "Curves of mass recall over the budget, one a layer, with their mean."
    return Figure(
        {"data": drawn, "layout": layout}, label, f"Mass recall, mean over heads and queries: {COUNTED}."
    )


def _layer(one: LayerCurve, dense: bool) -> dict[str, Any]:
    name = "layers better left dense" if dense else "other layers"
    return _line(name, f"layer {one.layer}", one.budgets, one.mass, "alarm" if dense else "muted", "lines")


def _line(
    name: str, whose: str, x: Sequence[float], y: Sequence[float], role: str, mode: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": html.escape(name),
        "x": list(x),
        "y": [six_digits(value) for value in y],
        "mode": mode,
        "line": {"dash": "dash" if role == "alarm" else "solid"},
        "hovertemplate": template(f"{whose}, budget %{{x:d}}: %{{y:.1%}} of the mass, {SHORT}"),
        "meta": {"role": role},
    }


def layer_budgets(found: Suggestion) -> Figure:
    """A bar a layer: what it needs; marks: what the order of the true page maxima would need."""
    layers = [str(one.need.layer) for one in found.layers]
    data: list[dict[str, Any]] = []
    for dense, name, role, pattern in (
        (False, "suggested budget", "quest", ""),
        (True, "needs more than pays: left dense", "muted", "/"),
    ):
        bars = [one.need.most_tokens if one.dense == dense else None for one in found.layers]
        if any(bars):
            data.append(
                {
                    "type": "bar",
                    "name": name,
                    "x": layers,
                    "y": bars,
                    "marker": {"pattern": {"shape": pattern}},
                    "hovertemplate": template(f"layer %{{x}}: %{{y:d}} tokens, {SHORT}"),
                    "meta": {"role": role},
                }
            )
    oracle = [one.need.oracle_tokens for one in found.layers]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "by true page maxima (oracle)",
            "x": layers,
            "y": oracle,
            "marker": {"symbol": "diamond"},
            "hovertemplate": template(f"layer %{{x}}, oracle: %{{y:d}} tokens, {SHORT}"),
            "meta": {"role": "ink"},
        }
    )
    layout = {
        "xaxis": {"type": "category", "title": {"text": "layer"}},
        "yaxis": {"title": {"text": "budget, tokens"}},
        "barmode": "stack",
    }
    what = f"Tokens with which {found.pairs:.0%} of a layer's (head, query) keep {found.mass:.0%} of the mass"
    return Figure(
        {"data": data, "layout": layout},
        "Bars of the budget that each layer needs, marks for the oracle's.",
        f"{what}: {COUNTED}.",
    )


def slack_curves(found: Sequence[Slack]) -> Figure:
    """Slack over the page size: mean, quantiles, tail pages, before RoPE."""
    lines: list[tuple[str, list[float | None]]] = [("mean", [one.mean for one in found])]
    lines += [
        (name, [one.quantiles[i] for one in found]) for i, name in enumerate(("p10", "p50", "p90", "p99"))
    ]
    lines.append(("tail pages", [one.tail for one in found]))
    lines.append(("mean, before RoPE", [one.pre_rope for one in found]))
    sizes = [float(one.page_size) for one in found]
    drawn = [
        Curve(
            name,
            sizes,
            values,
            [f"page {s:.0f}, {name}: {v or 0:.2f}, {SHORT}" for s, v in zip(sizes, values, strict=True)],
        )
        for name, values in lines
        if any(value is not None for value in values)
    ]
    spec = curves(drawn, "page size S, tokens", "slack, scaled logits", log_y=False)
    return Figure(spec, "Curves of the slack over the page size.", f"Slack g = U - max q.k: {LOGITS}.")


def tail_curves(found: Sequence[Tail]) -> Figure:
    """Share of (layer, head) that picks the tail page, over how full it is."""
    drawn = [
        Curve(
            f"page {one.page_size}",
            [tokens / one.page_size for tokens, _ in one.taken],
            [share for _, share in one.taken],
            [
                f"page {one.page_size}, {count(tokens, 'valid token')}: picked by {share:.1%}, {SHORT}"
                for tokens, share in one.taken
            ],
        )
        for one in found
    ]
    spec = curves(drawn, "valid tokens of the tail page / S", "share that picks it, quest-open", log_y=False)
    spec["layout"]["xaxis"] = {"type": "linear", "title": {"text": "valid tokens of the tail page / S"}}
    return Figure(
        spec,
        "Curves of how often quest-open picks the tail page, over how full it is.",
        f"Share of (layer, head), mean over budgets: {COUNTED}.",
    )


def step_curves(found: Steps) -> Figure:
    """Tokens that 0.95 of the mass needs, query by query."""
    positions = [float(step.position) for step in found.steps]
    lines = (
        (f"{PAIRS:.0%} of the heads", "quest", [float(step.most_tokens) for step in found.steps]),
        ("half of the heads", "attend", [step.median_tokens for step in found.steps]),
        (f"{PAIRS:.0%}, oracle", "muted", [float(step.oracle_tokens) for step in found.steps]),
    )
    drawn = [
        Curve(
            name,
            positions,
            values,
            [
                f"position {step.position} ({step.type}), {name}: {value:.0f} tokens, {SHORT}"
                for step, value in zip(found.steps, values, strict=True)
            ],
            role=role,
        )
        for name, role, values in lines
    ]
    spec = curves(drawn, "position of the query", "tokens that 95% of the mass needs", log_y=False)
    spec["layout"]["xaxis"] = {"type": "linear", "title": {"text": "position of the query"}}
    return Figure(
        spec,
        "Curves of the needed budget from query to query.",
        f"Whole pages, in Quest's order unless it says oracle: {COUNTED}.",
    )

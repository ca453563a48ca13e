"""`questprof sweep --dry-run`: the grid with memory and time, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from questprof.environment import available_bytes, capture
from questprof.grid import Block
from questprof.model import Environment
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.pacing import duration, planned, priority
from questprof.sweep.settings import Settings
from questprof.terminal import plain_table, print_table
from questprof.units import count, format_bytes, format_seconds
from questprof.workload import USABLE_SHARE


def describe(
    blocks: Sequence[Block], settings: Settings, environment: Environment, usable: int
) -> dict[str, Any]:
    """The grid as one document: blocks, memory in bytes, seconds, and what was assumed.

    Numbers, memory and seconds are of the blocks that fit the time; `asked` are those of the whole grid.
    """
    costs = [cost(block, environment, settings) for block in blocks]
    rates = ASSUMED[environment.device]
    seconds = [each.seconds for each in costs]
    budget = None if settings.time_s is None else settings.time_s - rates.start_s
    fit = range(len(blocks)) if budget is None else sorted(planned(seconds, priority(blocks), budget))
    return {
        "device": environment.device_name,
        "num_blocks": len(fit),
        "num_points": sum(len(blocks[index].points) for index in fit),
        "asked": {
            "num_blocks": len(blocks),
            "num_points": sum(len(block.points) for block in blocks),
            "seconds": rates.start_s + sum(seconds),
            "least_seconds": rates.start_s + min(seconds, default=0.0),
        },
        "time_s": settings.time_s,
        "memory_bytes": max((costs[index].memory_bytes for index in fit), default=0),
        "usable_bytes": usable,
        "seconds": rates.start_s + sum(seconds[index] for index in fit),
        "samples": settings.rule.describe(),
        "assumed": asdict(rates),
        "blocks": [
            {
                "title": block.title,
                "num_points": len(block.points),
                "point_ids": [point.point_id for point in block.points],
                "memory_bytes": each.memory_bytes,
                "fits_memory": each.memory_bytes <= usable,
                "seconds": each.seconds,
                "fits_time": index in fit,
            }
            for index, (block, each) in enumerate(zip(blocks, costs, strict=True))
        ],
    }


def plan(blocks: Sequence[Block], settings: Settings) -> dict[str, Any]:
    """`describe` for the machine at hand."""
    environment = capture(settings.device)
    usable = int(available_bytes(settings.device) * USABLE_SHARE)
    return describe(blocks, settings, environment, usable)


def show(document: dict[str, Any], console: Console) -> None:
    """The document as a table and a few lines."""
    table = plain_table("block", "points", "memory", "about s", "", left=("block", ""))
    for block in document["blocks"]:
        notes = [
            *(["more than is usable now: a shorter rotation, or oom"] if not block["fits_memory"] else []),
            *(["left out: no time"] if not block["fits_time"] else []),
        ]
        table.add_row(
            block["title"],
            str(block["num_points"]),
            format_bytes(block["memory_bytes"]),
            f"{block['seconds']:.1f}",
            "; ".join(notes),
        )
    print_table(console, table)
    console.print(
        f"{_extent(document)} on {document['device']}; "
        f"{_memory(document)}"
        f"about {format_seconds(document['seconds'])}. {document['samples']}.",
        highlight=False,
        soft_wrap=True,
    )
    if document["num_blocks"] < document["asked"]["num_blocks"]:
        console.print(_short(document), highlight=False, soft_wrap=True)
    assumed = document["assumed"]
    console.print(
        f"Nothing was measured: seconds are modelled, at an assumed {assumed['read_gb_s']:g} GB/s; "
        "a run corrects them by its first blocks.",
        highlight=False,
        soft_wrap=True,
    )


def _extent(document: dict[str, Any]) -> str:
    """`20 points in 5 blocks`, or with a bound in time how many of those asked for."""
    asked = document["asked"]
    points, blocks = count(asked["num_points"], "point"), count(asked["num_blocks"], "block")
    if document["num_blocks"] == asked["num_blocks"]:
        return f"{points} in {blocks}"
    return f"{document['num_points']} of {points} in {document['num_blocks']} of {blocks}"


def _memory(document: dict[str, Any]) -> str:
    """The memory that a run takes; '' where nothing of the grid fits its time."""
    if not document["num_blocks"]:
        return ""
    most, usable = (format_bytes(document[name]) for name in ("memory_bytes", "usable_bytes"))
    return f"at most {most} at a time, {usable} are usable; "


def _short(document: dict[str, Any]) -> str:
    """Which time would do for a grid that does not fit into its own."""
    asked = document["asked"]
    whole = f"--time {duration(asked['seconds'])} would do for all of it"
    if document["num_blocks"]:
        return f"{whole}."
    return (
        f"Nothing fits into {format_seconds(document['time_s'])}: a run starts for about "
        f"{format_seconds(document['assumed']['start_s'])}, the cheapest block comes on top; "
        f"{whole}, --time {duration(asked['least_seconds'])} for one block."
    )

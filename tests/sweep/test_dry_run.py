"""The plan of a sweep: blocks, memory, time, what does not fit either; and where the figures come from."""

import io
import re
from dataclasses import asdict
from typing import Any

from rich.console import Console

from profiles import GPU, SHAPE
from questprof.grid import Grid, plan_blocks
from questprof.sweep.dry_run import describe, show
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.pacing import parse_duration
from questprof.sweep.settings import RULES, Settings

START = ASSUMED["cuda"].start_s
BLOCKS = plan_blocks(Grid((SHAPE,), (2048, 4096, 8192), (16,), (1024,), (1,), "cuda"))
COSTS = [cost(block, GPU, Settings("cuda", RULES["cuda"])) for block in BLOCKS]


def test_totals_are_those_of_the_blocks() -> None:
    document = describe(BLOCKS, Settings("cuda", RULES["cuda"]), GPU, usable=1 << 40)
    assert (document["num_blocks"], document["num_points"]) == (3, 9)
    assert document["memory_bytes"] == max(each.memory_bytes for each in COSTS)
    assert document["seconds"] == ASSUMED["cuda"].start_s + sum(each.seconds for each in COSTS)
    assert document["assumed"] == asdict(ASSUMED["cuda"])
    assert all(block["fits_memory"] and block["fits_time"] for block in document["blocks"])


def test_what_fits_neither_memory_nor_time_is_said() -> None:
    """Time for both ends and a tenth more, the first to be measured; memory for the shortest alone."""
    time_s = ASSUMED["cuda"].start_s + 1.1 * (COSTS[0].seconds + COSTS[2].seconds) + 0.01
    settings = Settings("cuda", RULES["cuda"], time_s=time_s)
    document = describe(BLOCKS, settings, GPU, usable=COSTS[0].memory_bytes)
    assert [block["fits_time"] for block in document["blocks"]] == [True, False, True]
    assert [block["fits_memory"] for block in document["blocks"]] == [
        each.memory_bytes <= COSTS[0].memory_bytes for each in COSTS
    ]
    assert document["seconds"] < time_s
    console = Console(file=io.StringIO(), width=160)
    show(document, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert said.count("left out: no time") == 1
    assert "6 of 9 points in 2 of 3 blocks" in said
    assert (document["num_points"], document["num_blocks"]) == (6, 2)
    assert (document["asked"]["num_points"], document["asked"]["num_blocks"]) == (9, 3)
    assert document["memory_bytes"] == max(COSTS[0].memory_bytes, COSTS[2].memory_bytes)
    assert "would do for all of it" in said
    assert f"assumed {ASSUMED['cuda'].read_gb_s:g} GB/s" in said


def _shown(time_s: float) -> tuple[dict[str, Any], str]:
    document = describe(BLOCKS, Settings("cuda", RULES["cuda"], time_s=time_s), GPU, usable=1 << 40)
    console = Console(file=io.StringIO(), width=160)
    show(document, console)
    assert isinstance(console.file, io.StringIO)
    return document, console.file.getvalue()


def test_a_time_that_holds_nothing_plans_nothing() -> None:
    """No count and no memory of blocks that will not run; the times that would do are told, and do."""
    document, said = _shown(START + 0.01)
    assert (document["num_points"], document["num_blocks"], document["memory_bytes"]) == (0, 0, 0)
    assert document["seconds"] == START
    assert "0 of 9 points in 0 of 3 blocks" in said
    assert "Nothing fits into" in said
    assert " at a time" not in said
    whole, one = (parse_duration(text) for text in re.findall(r"--time (\S+)", said))
    assert _shown(whole)[0]["num_blocks"] == 3
    assert _shown(one)[0]["num_blocks"] >= 1
    assert "--time" not in _shown(whole)[1]

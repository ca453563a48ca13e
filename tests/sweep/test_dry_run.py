"""The plan of a sweep: blocks, memory, time, what does not fit either; and where the figures come from."""

import io
from dataclasses import asdict

from rich.console import Console

from profiles import GPU, SHAPE
from questprof.grid import Grid, plan_blocks
from questprof.sweep.dry_run import describe, show
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.settings import RULES, Settings

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
    """Time for both ends, the first to be measured; memory for the shortest alone."""
    time_s = ASSUMED["cuda"].start_s + COSTS[0].seconds + COSTS[2].seconds + 0.01
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
    assert "9 points in 3 blocks" in said
    assert f"assumed {ASSUMED['cuda'].read_gb_s:g} GB/s" in said

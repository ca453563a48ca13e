"""Every kernel compiles for every target, loads 16 bytes at a time and spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

CHILDREN = 2
TARGETS = {80, 89, 90, 100}

Result = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """What the children compiled, in a cache directory of their own."""
    cache = tmp_path_factory.mktemp("triton")
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    child = Path(__file__).with_name("compile_child.py")
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(child), f"{part}/{CHILDREN}"], env=env, stdout=subprocess.PIPE
                )
            )
            for part in range(CHILDREN)
        ]
        printed = [process.communicate(timeout=280)[0] for process in running]
    assert [process.returncode for process in running] == [0] * CHILDREN
    return [result for text in printed for result in json.loads(text)]


def failing(results: list[Result], *fields: str) -> Iterator[str]:
    for result in results:
        name = " ".join(str(result[key]) for key in ("kernel", "shape", "dtype", "page_size", "target"))
        yield f"{name}: " + ", ".join(f"{field} {result[field]}" for field in fields)


def test_every_stage_was_compiled_for_every_target(results: list[Result]) -> None:
    stages = {"append", "score", "score transposed", "select", "attend", "dense", "streaming", "gather"}
    assert {(r["kernel"], r["target"]) for r in results} >= {(s, t) for s in stages for t in TARGETS}
    attention = [r for r in results if r["kernel"] in {"score", "attend", "dense"}]
    assert {r["dtype"] for r in attention} == {"fp16", "bf16", "fp32"}
    assert {r["page_size"] for r in attention} == {1, 12, 16, 32, 128}


def test_tiles_are_loaded_16_bytes_at_a_time(results: list[Result]) -> None:
    narrow = [r for r in results if r["wide_loads"] < r["wide_loads_needed"]]
    assert not list(failing(narrow, "wide_loads", "wide_loads_needed"))
    assert all(
        r["wide_loads_needed"] > 0
        for r in results
        if r["kernel"] in {"score", "attend", "dense", "streaming"}
    )


def test_nothing_spills(results: list[Result]) -> None:
    spilled = [r for r in results if r["stack_bytes"] or r["local_bytes"]]
    assert not list(failing(spilled, "stack_bytes", "local_bytes", "registers"))


def test_two_programs_of_attention_fit_one_multiprocessor(results: list[Result]) -> None:
    # What the splits are planned for: 2 programs on 65536 registers and 164 KB (sm_80, the least of them).
    attention = [r for r in results if r["kernel"] in {"attend", "dense"} and r["target"] != 89]
    crowded = [
        r
        for r in attention
        if 2 * 32 * r["num_warps"] * r["registers"] > 65536 or 2 * (r["shared_bytes"] + 1024) > 164 * 1024
    ]
    assert not list(failing(crowded, "registers", "num_warps", "shared_bytes"))

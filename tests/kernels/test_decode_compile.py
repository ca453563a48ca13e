"""The kernels of a decode step compile for every target, spill nothing, and wait before they write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from questprof_kernels import decode_gemv_cuda, decode_rows
from questprof_kernels.cuda_module import compile_cubin

triton = pytest.importorskip("triton", reason="cuobjdump comes with triton, which is not here")
CUOBJDUMP = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_DEFAULT_FP_FUSION": "1"}
    child = Path(__file__).with_name("decode_compile_child.py")
    command = [sys.executable, str(child)]
    printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, timeout=250).stdout
    return json.loads(printed)


def test_nothing_spills(results: list[dict[str, Any]]) -> None:
    assert {result["target"] for result in results} == {80, 90, 100}
    assert not [result for result in results if result["stack_bytes"] or result["local_bytes"]]


def test_kernels_wait_before_they_read_what_another_writes(results: list[dict[str, Any]]) -> None:
    assert all(result["waits"] for result in results)
    assert not [result for result in results if result["early_stores"]]
    assert not [result for result in results if result["early_loads"] > result["early_loads_meant"]]
    ahead = [result for result in results if result["target"] == 90 and result["early_loads_meant"]]
    assert len(ahead) == 1 + 2 * 2
    assert all(result["early_loads"] for result in ahead)


def test_gemv_loads_16_bytes_at_a_time(results: list[dict[str, Any]]) -> None:
    gemvs = [result for result in results if "gemv" in result["kernel"]]
    assert len(gemvs) == 2 * 4 + 2
    assert all(result["wide_loads"] >= 2 for result in gemvs)


@pytest.mark.parametrize("bits", [16, 4])
def test_the_cuda_gemv_compiles_loads_wide_and_spills_nothing(bits: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install -e '.[test]'")
    plans = decode_gemv_cuda.PLANS if bits == 16 else decode_gemv_cuda.INT4_PLANS
    jobs = [(90, plan, 11008, 1, False) for plan in plans] + [(90, plan, 4096, 8, True) for plan in plans[:2]]
    jobs += [(architecture, plans[0], 14336, 3, True) for architecture in (80, 100)]
    with ThreadPoolExecutor(2) as pool:
        for job, (definitions, usage, code) in zip(jobs, pool.map(partial(built, bits), jobs), strict=True):
            (architecture, plan, columns, *_), name = job, f"sm_{job[0]} {definitions}"
            assert usage == {"LOCAL": 0, "STACK": 0}, name
            early, waited, _ = code.partition("ACQBULK")
            assert bool(waited) == (architecture >= 90), name
            wide = re.findall(r"\bLDG\.E\S*\.128\b", early if waited else code)
            assert len(wide) >= min(plan.depth, columns * bits // 512 // plan.num_warps), name
            # What another kernel writes, x, is read past L1 and after the wait; weights are read before.
            assert re.search(r"\bLDG\.E\.128\.STRONG", code), name
            assert not waited or not re.search(r"\bSTG\b|\bLDG\S*\.STRONG", early), name


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_gemv_of_rows_compiles_loads_wide_and_spills_nothing(architecture: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install -e '.[test]'")
    plans = decode_rows.PLANS if architecture == 90 else decode_rows.PLANS[:1]
    for plan in plans:
        for columns, num_x_rows, gated in ((11008, 1, False), (4096, 4, True)):
            defined = decode_rows.definitions(
                plan, columns=columns, num_x_rows=num_x_rows, gated=gated, bf16=gated
            )
            usage, code = described(compile_cubin("decode_rows.cu", tuple(defined.items()), architecture))
            assert usage == {"LOCAL": 0, "STACK": 0}, defined
            early, waited, _ = code.partition("ACQBULK")
            assert bool(waited) == (architecture >= 90), defined
            wide = re.findall(r"\bLDG\.E\S*\.128\b", early if waited else code)
            assert len(wide) >= plan.depth, defined
            assert not waited or not re.search(r"\bSTG\b", early), defined


def built(bits: int, job: Any) -> tuple[dict[str, int], dict[str, int], str]:
    """(definitions, resources, machine code as text) of one job."""
    architecture, plan, columns, num_x_rows, gated = job
    definitions = decode_gemv_cuda.definitions(
        plan, columns=columns, num_x_rows=num_x_rows, bits=bits, gated=gated, bf16=False
    )
    return definitions, *described(compile_cubin("decode_gemv.cu", tuple(definitions.items()), architecture))


def described(cubin: bytes) -> tuple[dict[str, int], str]:
    """(resources, machine code as text)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", "-sass", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(size) for name, size in re.findall(r"(STACK|LOCAL):(\d+)", report)}, report

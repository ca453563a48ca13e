"""Compiles the Triton kernels of a decode step ahead of time and prints what came out, as JSON.

Run as a child without TRITON_INTERPRET. Loads and stores are told apart by whether they stand before the wait
for the kernel before.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import triton
from compile_child import CUOBJDUMP
from questprof_kernels import decode_gemv, decode_norm, decode_rope, decode_swiglu, decode_tokens
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = (80, 90, 100)
INTEGERS = {"positions": "i32", "tokens": "i64", "w": "i32", "x": "i32"}
FLOATS = {"table": "fp32", "scales": "fp16"}
NUMBERS = {"residual", "delta", "weight", "out", "qkv", "gate_up", "logits", "embedding", "bias"}
MULTIPLES_OF_16 = {"size", "num_rows", "num_words", "row_stride"}
Job = tuple[Any, dict[str, Any], int]
"""(kernel, constants, loads of weights before the wait)."""


def jobs() -> Iterator[Job]:
    """Each kernel as llama-2-7b launches it."""
    warps = decode_norm.num_warps(4096)
    yield decode_norm.add_rms_norm_kernel, {"HAS_DELTA": True, "BLOCK": 4096, "num_warps": warps}, 1
    yield decode_rope.rope_kernel, {"HALF": 64, "HEADS": 4, "num_warps": 2}, 0
    yield decode_swiglu.swiglu_kernel, {"BLOCK": 512, "num_warps": 4}, 0
    yield decode_tokens.embed_kernel, {"BLOCK": 1024, "num_warps": 4}, 0
    yield decode_tokens.greedy_kernel, {"BLOCK": decode_tokens.GREEDY_BLOCK, "num_warps": 16}, 0
    for plan in decode_gemv.PLANS:
        for gated in (False, True):
            common = {
                "M": 1,
                "BLOCK_N": plan.block_n,
                "GATED": gated,
                "HAS_BIAS": False,
                "num_warps": plan.num_warps,
            }
            ahead = plan.block_n * (2 if gated else 1)
            yield decode_gemv.gemv_kernel, {**common, "BLOCK_W": plan.block_words}, ahead
            yield decode_gemv.gemv_int4_kernel, {**common, "G": plan.block_groups}, 0


def compiled(job: Job, target: int) -> dict[str, Any]:
    """Compile one job for one target."""
    function, constants, ahead = job
    dependent = target >= 90
    fixed = {**{name: value for name, value in constants.items() if name.isupper()}, "DEPENDENT": dependent}
    types: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(function.arg_names):
        pointer = INTEGERS.get(name) or FLOATS.get(name) or ("fp16" if name in NUMBERS else "")
        types[name] = "constexpr" if name in fixed else f"*{pointer}" if pointer else "i32"
        types[name] = "fp32" if name == "eps" else types[name]
        if pointer or name in MULTIPLES_OF_16:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, types, fixed, attributes)
    options = {"num_warps": constants["num_warps"]} | ({"launch_pdl": True} if dependent else {})
    kernel = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    ptx = kernel.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", "-sass", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(size) for name, size in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    before, waited, _ = report.partition("ACQBULK")
    return {
        "kernel": function.fn.__name__,
        "constants": str(fixed),
        "target": target,
        "stack_bytes": usage["STACK"],
        "local_bytes": usage["LOCAL"],
        "waits": bool(waited) == dependent,
        "early_loads": len(re.findall(r"\bLDG\b", before)) if waited else 0,
        "early_stores": len(re.findall(r"\bSTG\b", before)) if waited else 0,
        "early_loads_meant": ahead,
        "wide_loads": len(re.findall(r"ld\.global\S*\.v4\.[bfu]32", ptx)),
    }


if __name__ == "__main__":
    every = list(jobs())
    few = [job for job in every if "HAS_DELTA" in job[1]]
    few += [job for job in every if "BLOCK_W" in job[1]][:1]
    todo = [(job, target) for target in TARGETS for job in (every if target == 90 else few)]
    json.dump([compiled(job, target) for job, target in todo], sys.stdout)

"""Compiles every Triton kernel for every target ahead of time and prints what came out, as JSON.

Run as a child without TRITON_INTERPRET (an interpreting process cannot compile): `compile_child.py 0/2` does
the first half of the jobs, `1/2` the second. Parameters come from the plans the launchers use.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from questprof_kernels import append, attend, dense, gather, score, select, streaming
from questprof_kernels import plan as plans
from questprof_kernels.paged_cache import DTYPES
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
TARGETS = (80, 89, 90, 100)
SHAPES = {"llama-2-7b": (32, 32, 128), "llama-3.1-8b": (32, 8, 128), "smollm2-135m": (9, 3, 64)}
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
WORKERS = 132
LONG, SELECTED = 32768, 2048  # tokens

INTEGER_POINTERS = {
    "block_table", "kv_indptr", "last_page_len", "last_page", "last_block", "page_ids", "select_indptr",
    "new_indptr", "counters", "words", "checksums", "summary_table", "summary_indptr", "new_k", "new_v",
    "new_block_table", "new_kv_indptr", "new_last_page_len",
}  # fmt: skip
FLOAT_POINTERS = {"scores", "lse", "scratch"}
NUMBER_POINTERS = {"q", "out", "keys", "values"}
STORAGE_POINTERS = {"k", "v", "summary"}  # read as words, but by tl.dot, and written as numbers


@dataclass(frozen=True)
class Job:
    """One kernel with the constants of one plan; `wide_loads` is how many 16-byte loads its tiles need."""

    kernel: str
    function: Any
    constants: dict[str, Any]
    wide_loads: int = 0
    shape: str = ""
    dtype: str = "fp16"
    page_size: int = 16


def attention_jobs(shape: str, dtype: str, page_size: int) -> Iterator[Job]:
    heads, kv_heads, head_dim = SHAPES[shape]
    common = {"num_kv_heads": kv_heads, "page_size": page_size}
    for stage, tokens in (("attend", SELECTED), ("dense", LONG)):
        plan = plans.plan_attention(
            num_qo_heads=heads,
            num_kv_heads=kv_heads,
            per_query_head=stage == "attend",
            head_dim=head_dim,
            page_size=page_size,
            batch_size=1,
            pages_per_request=tokens // page_size,
            num_workers=WORKERS,
            element_bytes=ELEMENT_BYTES[dtype],
        )
        tile_bytes = 2 * plan.tile_tokens * head_dim * ELEMENT_BYTES[dtype]  # K and V
        wide_loads = 2 * tile_bytes // (plan.num_warps * 32 * 16)  # before the loop and in it
        if stage == "attend":
            constants = attend.constants(plan, group_size=heads // kv_heads, **common)
            yield Job("attend", attend.attend_kernel, constants, wide_loads, shape, dtype, page_size)
        else:
            constants = dense.constants(plan, **common)
            yield Job("dense", dense.kernel_of(plan), constants, wide_loads, shape, dtype, page_size)


def score_job(shape: str, dtype: str) -> Job:
    heads, kv_heads, head_dim = SHAPES[shape]
    plan = plans.plan_score(
        num_kv_heads=kv_heads, head_dim=head_dim, batch_size=1, max_pages=LONG // 16, num_workers=WORKERS
    )
    box_bytes = plan.tile_pages * head_dim * ELEMENT_BYTES[dtype]  # of min or of max
    wide_loads = 2 * 2 * max(1, box_bytes // (plan.num_warps * 32 * 16))
    constants = score.constants(
        plan, group_size=heads // kv_heads, head_dim=head_dim, summary_dtype=DTYPES[dtype]
    )
    return Job("score", score.score_kernel, constants, wide_loads, shape, dtype)


def transposed_score_job(shape: str, dtype: str, max_pages: int = LONG // 16) -> Job:
    heads, kv_heads, head_dim = SHAPES[shape]
    group_size = heads // kv_heads
    plan = plans.plan_score_transposed(
        num_kv_heads=kv_heads,
        batch_size=1,
        max_pages=max_pages,
        num_workers=WORKERS,
        element_bytes=ELEMENT_BYTES[dtype],
    )
    rows_bytes = plan.tile_pages * head_dim * ELEMENT_BYTES[dtype] * min(2, group_size)
    wide_loads = 2 * rows_bytes // (plan.num_warps * 32 * 16)  # before the loop and in it
    constants = score.transposed_constants(
        plan,
        num_kv_heads=kv_heads,
        group_size=group_size,
        head_dim=head_dim,
        summary_dtype=DTYPES[dtype],
    )
    return Job("score transposed", score.score_transposed_kernel, constants, wide_loads, shape, dtype)


def select_job(max_pages: int, take_tail: bool) -> Job:
    plan = plans.plan_select(num_qo_heads=32, batch_size=1, max_pages=max_pages)
    return Job("select", select.select_kernel, select.constants(plan, take_tail=take_tail))


def append_job(shape: str, dtype: str, page_size: int, layout: str, new_tokens: int = 1) -> Job:
    _, kv_heads, head_dim = SHAPES[shape]
    plan = plans.plan_append(
        num_kv_heads=kv_heads,
        page_size=page_size,
        batch_size=1,
        max_new_tokens=new_tokens,
        transposed=layout == "transposed",
    )
    constants = append.constants(
        plan, num_kv_heads=kv_heads, page_size=page_size, head_dim=head_dim, layout=layout
    )
    tile_bytes = plan.tile_slots * head_dim * ELEMENT_BYTES[dtype]  # of K or V
    wide_loads = 2 * (tile_bytes // (plan.num_warps * 32 * 16))  # a token alone is less
    name = "append_kv" if layout == "none" else "append"
    return Job(name, append.append_kernel, constants, wide_loads, shape, dtype, page_size)


def gather_job(shape: str, dtype: str, page_size: int = 16) -> Job:
    heads, kv_heads, head_dim = SHAPES[shape]
    constants = gather.constants(
        group_size=heads // kv_heads,
        num_kv_heads=kv_heads,
        page_size=page_size,
        head_dim=head_dim,
        element_bytes=ELEMENT_BYTES[dtype],
    )
    tile_bytes = constants["TILE_SLOTS"] * constants["WORDS"] * 4
    wide_loads = 2 * (tile_bytes // (constants["num_warps"] * 32 * 16))  # K and V
    return Job("gather", gather.gather_kernel, constants, wide_loads, shape, dtype, page_size)


def streaming_job() -> Job:
    reader = streaming.READERS[0]
    constants = {"TILE": reader.tile_words, "num_warps": reader.num_warps}
    loads = 4 * reader.tile_words // (reader.num_warps * 32 * 16)
    return Job("streaming", streaming.read_kernel, constants, loads)


def jobs() -> Iterator[tuple[Job, int]]:
    """Every stage, shape and dtype at page size 16 for every target; other page sizes for one target."""
    for target in TARGETS:
        for shape in SHAPES:
            for dtype in ELEMENT_BYTES:
                yield score_job(shape, dtype), target
                if dtype == "fp16" or target == 90:
                    yield transposed_score_job(shape, dtype), target
                yield from ((job, target) for job in attention_jobs(shape, dtype, 16))
        for max_pages in (2048, 8192):
            yield select_job(max_pages, take_tail=True), target
        for layout in plans.SUMMARY_LAYOUTS:
            yield append_job("llama-2-7b", "fp16", 16, layout), target
            yield append_job("llama-2-7b", "fp16", 16, layout, LONG), target
        yield streaming_job(), target
        yield gather_job("llama-2-7b", "fp16"), target
    for page_size in (1, 12, 32, 128):
        for shape in ("llama-2-7b", "llama-3.1-8b"):
            yield from ((job, 90) for job in attention_jobs(shape, "fp16", page_size))
        for layout in plans.SUMMARY_LAYOUTS:
            yield append_job("smollm2-135m", "fp32", page_size, layout, LONG), 90
        yield append_job("llama-2-7b", "bf16", page_size, "none"), 90
    yield transposed_score_job("llama-2-7b", "fp16", max_pages=64), 90
    yield select_job(512, take_tail=False), 90


def pointer_type(job: Job, name: str) -> str:
    """What the argument points to; empty for a number."""
    as_numbers = job.function in (dense.dense_group_kernel, append.append_kernel)
    if name in INTEGER_POINTERS or (name in STORAGE_POINTERS and not as_numbers):
        return "i32"
    if name in FLOAT_POINTERS:
        return "fp32"
    return job.dtype if name in NUMBER_POINTERS | STORAGE_POINTERS else ""


def signature(job: Job) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """(types, constants, attributes) of the arguments: aligned pointers, integers nothing is known of.

    The strides of the new keys and values are those of contiguous tensors.
    """
    types: dict[str, str] = {}
    constants = {name: value for name, value in job.constants.items() if name.isupper()}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(job.function.arg_names):
        pointer = pointer_type(job, name)
        if name in constants or name.endswith("_dim_stride"):
            constants.setdefault(name, 1)
            types[name] = "constexpr"
        elif pointer:
            types[name] = f"*{pointer}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            types[name] = "fp32" if name == "scale_log2" else "i32"
            if name.startswith(("keys_", "values_")):
                attributes[(index,)] = [["tt.divisibility", 16]]
    return types, constants, attributes


def compiled(job: Job, target: int) -> dict[str, Any]:
    """Compile one job; 16-byte global loads are counted in the PTX, resources read off the cubin."""
    options = {name: value for name, value in job.constants.items() if name.islower()}
    source = ASTSource(job.function, *signature(job))
    kernel = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    ptx = kernel.asm["ptx"]
    wide = re.findall(r"ld\.global\S*\.v4\.[bfu]32|cp\.async\.cg\.shared\.global [^;]*0x10", ptx)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(size) for name, size in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", report)}
    return {
        "kernel": job.kernel,
        "shape": job.shape,
        "dtype": job.dtype,
        "page_size": job.page_size,
        "target": target,
        "num_warps": kernel.metadata.num_warps,
        "wide_loads": len(wide),
        "wide_loads_needed": job.wide_loads,
        "registers": usage["REG"],
        "stack_bytes": usage["STACK"],
        "local_bytes": usage["LOCAL"],
        "shared_bytes": kernel.metadata.shared,
    }


def main() -> None:
    part, parts = map(int, sys.argv[1].split("/"))
    results = [compiled(job, target) for job, target in list(jobs())[part::parts]]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

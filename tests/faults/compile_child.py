"""Compiles the kernels of walk.py for the H200 ahead of time, as a GPU would run them; prints their names.

Run as a child without TRITON_INTERPRET, as an interpreting process cannot compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faults import walk
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

H200 = GPUTarget("cuda", 90, 32)
SIZES = {"GROUP": 4, "NUM_KV_HEADS": 2, "PAGE_SIZE": 12, "TILE": 16, "HEAD_DIM": 128}
NUMBERS = {"q", "k", "v", "out", "summary", "k_copy", "v_copy"}
FLOATS = {"lse", "scores"}
INTEGERS = {"block_table", "kv_indptr", "last_page_len", "page_ids", "select_indptr", "table", "indptr"}


def jobs() -> Iterator[tuple[Any, dict[str, Any]]]:
    for fault in ("", "keys_only", "gather", "touches_one", "wide_tile"):
        yield walk.attend_kernel, {**SIZES, "FAULT": fault, "MOST": 64}
    yield walk.gather_kernel, SIZES
    for fault in ("", "no_summary"):
        for both in (True, False):
            pages = {"BOTH": both, "PIECE_PAGES": 1 if both else 64, "GROUP": 4, "TILE": 32, "HEAD_DIM": 128}
            yield walk.score_kernel, {**pages, "FAULT": fault}
    yield walk.repeat_kernel, {}


def type_of(name: str, dtype: str) -> str:
    """Triton's type of an argument by its name."""
    if name in NUMBERS:
        return f"*{dtype}"
    if name in FLOATS:
        return "*fp32"
    if name in INTEGERS:
        return "*i32"
    return "fp32" if name == "scale" else "i32"


for function, constants in jobs():
    for dtype in ("fp16", "bf16", "fp32"):
        signature = {
            name: "constexpr" if name in constants else type_of(name, dtype) for name in function.arg_names
        }
        compile(ASTSource(function, signature, constants), target=H200)
    print(function.__name__, constants.get("FAULT", ""))

"""What the compiler makes of the working-set kernels: 16-byte loads past the L1, for every architecture."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from questprof_kernels import working_set

CHILD = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from questprof_kernels import working_set as kernels

def accesses(kernel, pointers, walk, arch):
    types = dict.fromkeys(pointers, "*i32") | {"num_vectors": "i32", "num_passes": "i32"}
    fixed = {"TILE": walk.tile_words, "STRIDE": kernels.STRIDE}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(kernel, types | dict.fromkeys(fixed, "constexpr"), fixed, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": walk.num_warps})
    return sorted(set(re.findall(r"(?:ld|st)\\.global[.\\w]*", built.asm["ptx"])))

print(json.dumps({
    f"{name} sm_{arch} {walk.name}": accesses(kernel, pointers, walk, arch)
    for arch in (80, 89, 90, 100)
    for walk in kernels.WALKS
    for name, kernel, pointers in (
        ("read", kernels.read_passes_kernel, ("words", "checksums")),
        ("copy", kernels.copy_passes_kernel, ("source", "target")),
    )
}))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[str]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_loads_are_wide_and_go_past_the_l1(compiled: dict[str, list[str]]) -> None:
    assert len(compiled) == 4 * len(working_set.WALKS) * 2
    for case, accesses in compiled.items():
        stores = ["st.global.v4.b32"] if case.startswith("copy") else ["st.global.b32"]
        assert accesses == ["ld.global.cg.v4.b32", *stores], case

"""The CUDA kernels on a CPU: their sources through g++, with host/ in place of the GPU's instructions.

A thousand times slower than a GPU and exact enough for a float64 oracle: for machines without one.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from questprof_kernels import cuda_module, cuda_stages, decode_gemv_cuda, decode_rows

HERE = Path(__file__).parent / "host"
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing", "-w")
LAUNCH = """
extern "C" void host_launch(unsigned x, unsigned y, unsigned z, int threads, const {struct}* arguments) {{
    host::launch(Dim3{{x, y, z}}, threads, [=] {{ {kernel}(*arguments); }});
}}
"""
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="runs the CUDA sources through g++, which is not installed"
)


Edit = tuple[str, str, str]
"""A fault to plant: the file, what stands there once, what is to stand there."""


def build(
    source: str,
    kernel: str,
    struct: str,
    definitions: tuple[tuple[str, int], ...],
    folder: Path,
    edit: Edit | None = None,
) -> Path:
    """A shared library of `kernel` of file `source`, whose one parameter is a `struct`.

    RuntimeError where it does not compile, ValueError where `edit` does not fit its file.
    """
    name = hashlib.sha256(repr((source, kernel, definitions)).encode()).hexdigest()[:16]
    sources, library = folder / "sources", folder / f"{name}.so"
    if library.is_file():
        return library
    if not sources.is_dir():
        sources.mkdir()
        for part in (*cuda_module.FOLDER.glob("*.cu*"), *HERE.glob("*")):  # the host's ptx.cuh comes last
            shutil.copy(part, sources / part.name)
        if edit:
            file, right, wrong = edit
            text = (sources / file).read_text()
            # Not an AssertionError, which a test takes for a fault that was caught.
            if text.count(right) != 1:
                raise ValueError(f"{text.count(right)} times in {file}: {right}")
            (sources / file).write_text(text.replace(right, wrong))
    text = f'#include "{source}"\n{LAUNCH.format(struct=struct, kernel=kernel)}'
    (sources / f"{name}.cpp").write_text(text)
    defined = [f"-D{key}={value}" for key, value in definitions]
    command = ["g++", *OPTIONS, *defined, str(sources / f"{name}.cpp"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source} {dict(definitions)}: {done.stderr[:4000]}")
    return library


@dataclass(frozen=True)
class HostKernel:
    """As `cuda_module.Kernel`, on the CPU."""

    library: Path
    num_threads: int
    blocks_per_sm: int = 1

    def launch(
        self, grid: tuple[int, int, int], arguments: ctypes.Structure, *, dependent: bool = False
    ) -> None:
        """Run all blocks to their end; `dependent` changes nothing."""
        ctypes.CDLL(str(self.library)).host_launch(*grid, self.num_threads, ctypes.byref(arguments))


STRUCTS = {
    "append.cu": "AppendArguments",
    "append_pages.cu": "AppendArguments",
    "score.cu": "ScoreArguments",
    "select.cu": "SelectArguments",
    "attend.cu": "AttentionArguments",
    "dense.cu": "AttentionArguments",
    "decode_gemv.cu": "GemvArguments",
    "decode_rows.cu": "RowsArguments",
}


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, blocks_per_sm: int = 1, edit: Edit | None = None
) -> None:
    """Let every launcher of a CUDA kernel run it on the CPU from now on; libraries are kept in `folder`.

    `edit` plants a fault, in a folder of its own.
    """

    @cache
    def load(source: str, name: str, definitions: tuple[tuple[str, int], ...], threads: int, _: int) -> Any:
        library = build(source, name, STRUCTS[source], definitions, folder, edit)
        return HostKernel(library, threads, blocks_per_sm)

    for launchers in (cuda_stages, decode_gemv_cuda, decode_rows):
        monkeypatch.setattr(launchers, "load_kernel", load)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

"""CUDA C++ kernels of this folder: compiled by NVRTC, loaded through the driver, launched on torch's stream.

A kernel is specialised by preprocessor definitions and compiled on first use, for the device it runs on;
cubins are kept in a cache folder, so that a process pays once a machine. Needs `cuda-bindings` and, to
compile, the NVRTC library that CUDA builds of torch bring.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent


def is_available() -> bool:
    """Whether a GPU of compute capability 8.0 or newer, the CUDA bindings and NVRTC are there."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (8, 0) and _finds_nvrtc()


def _finds_nvrtc() -> bool:
    from cuda.bindings import nvrtc

    try:
        checked(nvrtc.nvrtcVersion())
    except (RuntimeError, OSError):
        return False
    return True


def compile_cubin(source: str, definitions: tuple[tuple[str, int], ...], architecture: int) -> bytes:
    """Machine code of file `source` of this folder for sm_`architecture`.

    Raises RuntimeError with the compiler's log.
    """
    from cuda.bindings import nvrtc

    headers = sorted(FOLDER.glob("*.cuh"))
    program = checked(
        nvrtc.nvrtcCreateProgram(
            (FOLDER / source).read_bytes(),
            source.encode(),
            len(headers),
            [header.read_bytes() for header in headers],
            [header.name.encode() for header in headers],
        )
    )
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in definitions]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{source} {dict(definitions)}: {log.decode().strip()}")
    cubin = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin


@dataclass(frozen=True)
class Kernel:
    """One loaded kernel, launched with `num_threads` threads a block."""

    function: Any
    num_threads: int

    @cached_property
    def blocks_per_sm(self) -> int:
        """Blocks that one multiprocessor holds at once."""
        from cuda.bindings import driver

        occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, self.num_threads, 0)
        return int(checked(occupancy))

    def launch(
        self, grid: tuple[int, int, int], arguments: ctypes.Structure, *, dependent: bool = False
    ) -> None:
        """Launch on torch's current stream; `arguments` is the kernel's one parameter, copied at once.

        `dependent`: the kernel may start while the one before it on the stream still runs (programmatic
        dependent launch); it must itself wait before it touches what that one writes.
        """
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.num_threads, 1, 1
        config.hStream = torch.cuda.current_stream().cuda_stream
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        checked(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(parameters), 0))


@lru_cache(maxsize=256)
def load_kernel(
    source: str, name: str, definitions: tuple[tuple[str, int], ...], num_threads: int, device: int
) -> Kernel:
    """Kernel `name` of file `source`, compiled with `definitions` for CUDA device number `device`."""
    from cuda.bindings import driver

    torch.cuda.init()
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # the device's context exists and is current
        module = checked(driver.cuModuleLoadData(_cached_cubin(source, definitions, _architecture(device))))
        return Kernel(checked(driver.cuModuleGetFunction(module, name.encode())), num_threads)


def _architecture(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def _cached_cubin(source: str, definitions: tuple[tuple[str, int], ...], architecture: int) -> bytes:
    """`compile_cubin`, kept in the user's cache folder under a hash of all that goes into it."""
    from cuda.bindings import nvrtc

    digest = hashlib.sha256(repr((source, definitions, architecture, nvrtc.nvrtcVersion())).encode())
    for part in (FOLDER / source, *sorted(FOLDER.glob("*.cuh"))):
        digest.update(part.read_bytes())
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "questprof"
        kept = folder / f"{digest.hexdigest()[:32]}.cubin"
        if kept.is_file():
            return kept.read_bytes()
    except (OSError, RuntimeError):  # a home of somebody else, or none at all
        return compile_cubin(source, definitions, architecture)
    cubin = compile_cubin(source, definitions, architecture)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
            partial.write(cubin)
        Path(partial.name).replace(kept)
    except OSError:
        pass  # a cache that cannot be written costs time, nothing else
    return cubin


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of a driver or NVRTC call, or the tuple of its values; RuntimeError names its error."""
    result, *values = answer
    if int(result):
        raise RuntimeError(f"{type(result).__name__}: {result.name}")
    return values[0] if len(values) == 1 else tuple(values)

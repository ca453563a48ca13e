"""Compiling and keeping CUDA kernels, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from questprof_kernels import cuda_module

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install -e '.[test]'")

DEFINITIONS = (("BF16", 0), ("HEAD_DIM", 128), ("WARPS", 16), ("SLOTS", 1))


class Compiler:
    """Stands in for NVRTC and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: str, definitions: tuple[tuple[str, int], ...], architecture: int) -> bytes:
        self.calls += 1
        return f"{source} {definitions} {architecture}".encode()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    stand_in = Compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_module, "compile_cubin", stand_in)
    return stand_in


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "questprof").iterdir())


def test_a_kernel_is_compiled_once_a_machine(compiler: Compiler, tmp_path: Path) -> None:
    first = cuda_module._cached_cubin("select.cu", DEFINITIONS, 90)
    assert cuda_module._cached_cubin("select.cu", DEFINITIONS, 90) == first
    assert compiler.calls == 1
    (path,) = kept(tmp_path)
    assert path.suffix == ".cubin"
    assert path.read_bytes() == first


def test_all_that_goes_into_a_kernel_makes_another(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    for file in (*cuda_module.FOLDER.glob("*.cu"), *cuda_module.FOLDER.glob("*.cuh")):
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(cuda_module, "FOLDER", folder)
    cuda_module._cached_cubin("select.cu", DEFINITIONS, 90)
    cuda_module._cached_cubin("select.cu", DEFINITIONS, 100)
    cuda_module._cached_cubin("select.cu", (*DEFINITIONS[:-1], ("SLOTS", 2)), 90)
    cuda_module._cached_cubin("score.cu", DEFINITIONS, 90)
    assert compiler.calls == 4
    header = folder / "device.cuh"
    header.write_text(header.read_text() + "// changed\n")
    cuda_module._cached_cubin("select.cu", DEFINITIONS, 90)
    assert compiler.calls == 5


def test_a_cache_that_cannot_be_written_costs_time_alone(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first = cuda_module._cached_cubin("select.cu", DEFINITIONS, 90)
    assert cuda_module._cached_cubin("select.cu", DEFINITIONS, 90) == first
    assert compiler.calls == 2


@pytest.mark.parametrize(
    ("method", "error"),
    [("home", RuntimeError("no home directory")), ("is_file", PermissionError(13, "Permission denied"))],
)
def test_without_a_home_of_ones_own_it_compiles_all_the_same(
    method: str, error: Exception, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user has none, or has root's."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, method, refuse)
    assert cuda_module._cached_cubin("select.cu", DEFINITIONS, 90).startswith(b"select.cu")
    assert compiler.calls == 1


def test_nothing_is_kept_of_what_does_not_compile(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise RuntimeError("error: expected a ';'")

    monkeypatch.setattr(cuda_module, "compile_cubin", refuse)
    with pytest.raises(RuntimeError, match="expected"):
        cuda_module._cached_cubin("select.cu", DEFINITIONS, 90)
    assert not (tmp_path / "questprof").exists()


def test_the_compilers_own_words_are_told() -> None:
    with pytest.raises(RuntimeError, match=r"select\.cu.*WARPS"):
        cuda_module.compile_cubin("select.cu", DEFINITIONS[:2], 90)


def test_without_a_gpu_nothing_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module.torch.cuda, "is_available", lambda: False)
    assert not cuda_module.is_available()


@pytest.mark.parametrize(("capability", "there"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_older_gpus_are_left_to_triton(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], there: bool
) -> None:
    monkeypatch.setattr(cuda_module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_module.torch.cuda, "get_device_capability", lambda *_: capability)
    assert cuda_module.is_available() == there

"""torch's attention as a baseline: one kernel a name, never the math path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from dense_case import assert_holds, bound_to, point_of, shaped
from torch.nn.attention import SDPBackend

from questprof.backends import load


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `sdpa_kernel` was told to allow; it restricts nothing here."""
    told: list[Any] = []

    @contextmanager
    def tell(kernels: Any) -> Iterator[None]:
        told.append(kernels)
        yield

    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", tell)
    return told


@pytest.mark.parametrize(
    ("name", "kernel"), [("sdpa", SDPBackend.FLASH_ATTENTION), ("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION)]
)
def test_on_a_gpu_each_name_allows_one_kernel(name: str, kernel: SDPBackend, allowed: list[Any]) -> None:
    bound = bound_to(load(name, "cuda"), (200, 200))
    bound.steps[-1].launch()
    assert allowed == [kernel]
    assert_holds(bound)


def test_on_the_cpu_torch_chooses(allowed: list[Any]) -> None:
    bound = bound_to(load("sdpa", "cpu"), (33, 33))
    bound.steps[-1].launch()
    assert allowed == []
    assert_holds(bound)


def test_the_variant_names_library_and_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    torch_version = f"torch-{torch.__version__}"
    assert load("sdpa", "cpu").variant(shaped()) == torch_version
    assert load("sdpa", "cuda").variant(shaped()) == f"{torch_version}-flash"
    assert load("sdpa-cudnn", "cuda").variant(shaped()) == f"{torch_version}-cudnn-9.10.2"


@pytest.mark.parametrize("name", ["sdpa", "sdpa-cudnn"])
def test_both_need_memory_for_a_copy(name: str) -> None:
    assert load(name, "cuda").caches_held == 2


def test_cudnn_needs_a_gpu() -> None:
    assert load("sdpa-cudnn", "cpu").why_not(shaped()) == "cuDNN needs a GPU: use --device cuda"
    assert load("sdpa-cudnn", "cuda").why_not(shaped()) is None


def test_fp32_runs_on_the_cpu_only() -> None:
    assert load("sdpa", "cpu").why_not(shaped(kv_dtype="fp32")) is None
    assert "no kv_dtype fp32 on cuda" in (load("sdpa", "cuda").why_not(shaped(kv_dtype="fp32")) or "")


@pytest.mark.parametrize("lengths", [(16, 17), (0, 0)])
def test_requests_of_one_length_only(lengths: tuple[int, ...]) -> None:
    assert "one length only" in (load("sdpa", "cuda").why_not(point_of(lengths)) or "")

"""Which of the project's own stages runs: one rule for launches, scratch and records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from questprof_kernels import append_cuda, cuda_module, cuda_stages
from questprof_kernels.paged_cache import DTYPES, PagedCache, PagePool

from questprof.backends import Backend, load, paged_cuda
from questprof.model import Point, Shape
from questprof.policies import FUSED, bind

SHAPE = Shape("toy", num_qo_heads=8, num_kv_heads=2, head_dim=64, kv_dtype="fp16")
POINT = Point(SHAPE, seq_len=200, token_budget=64)
CUDA = [
    POINT,
    msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, kv_dtype="bf16", head_dim=128)),
    msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, num_qo_heads=16)),
    msgspec.structs.replace(POINT, page_size=8),
    msgspec.structs.replace(POINT, page_size=48),
    msgspec.structs.replace(POINT, summary_layout="transposed"),
]
TRITON = [
    msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, kv_dtype="fp32")),
    msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, summary_dtype="fp32")),
    msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, num_qo_heads=18)),
    msgspec.structs.replace(POINT, page_size=12),
    msgspec.structs.replace(POINT, page_size=1),
]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the CUDA stages that were launched, on a machine that seems to have a GPU for them."""
    names: list[str] = []

    def launcher(name: str) -> Callable[..., None]:
        return lambda *_, **__: names.append(name)

    monkeypatch.setattr(cuda_module, "is_available", lambda: True)
    for name in ("score", "select", "attend", "dense", FUSED):
        monkeypatch.setattr(cuda_stages, name, launcher(name))
    for name in ("append", "append_kv"):
        monkeypatch.setattr(append_cuda, name, launcher(name))
    return names


def other(names: list[str]) -> Backend:
    """A backend to stand in for Triton's, whose stages note `other`."""
    backend = load("questprof", "cpu")
    return replace(
        backend,
        variant=lambda _: "triton",
        stages=dict.fromkeys(backend.stages, lambda *_: names.append("other")),
        scratch_floats={"attend": lambda *_: 1, "dense": lambda *_: 2},
    )


def cache_of(point: Point) -> PagedCache:
    shape, pages = point.shape, sum(point.num_pages)
    pool = PagePool(
        pages,
        shape.num_kv_heads,
        point.page_size,
        shape.head_dim,
        DTYPES[shape.kv_dtype],
        summary_dtype=DTYPES[shape.effective_summary_dtype],
        summary_layout=point.summary_layout,
        num_workers=132,
    )
    cache = PagedCache(pool, len(point.lengths), pages)
    cache.extend(list(point.lengths))
    return cache


@pytest.mark.parametrize("point", CUDA + TRITON)
def test_launches_scratch_and_record_follow_one_rule(point: Point, launched: list[str]) -> None:
    runs_cuda = point in CUDA
    backend, cache = paged_cuda.over(other(launched)), cache_of(point)
    assert backend.variant(point) == ("cuda" if runs_cuda else "triton")
    heads = point.shape.num_qo_heads
    q = torch.zeros(1, heads, point.shape.head_dim, dtype=cache.pool.k.dtype)
    scores, ids = torch.zeros(heads, cache.total_pages), torch.zeros(heads, 4, dtype=torch.int32)
    backend.stages["score"](q, cache, scores)
    backend.stages["select"](scores, cache, None, ids)
    backend.stages["attend"](q, cache, ids)
    backend.stages["dense"](q, cache)
    assert launched == (["score", "select", "attend", "dense"] if runs_cuda else ["other"] * 4)
    sizes = backend.scratch_floats["attend"](q, cache, ids), backend.scratch_floats["dense"](q, cache)
    plans = cuda_stages.attend_plan(q, cache, ids), cuda_stages.dense_plan(q, cache)
    assert sizes == (tuple(plan.scratch_floats for plan in plans) if runs_cuda else (1, 2))
    assert backend.fuses(q, cache, ids, 4) == runs_cuda


@pytest.mark.parametrize("point", CUDA + TRITON)
@pytest.mark.parametrize("new_tokens", [0, 1, 4, 5, 200])
@pytest.mark.parametrize("apart", [0, 4, 8])
def test_an_append_is_cudas_where_it_can_read_the_rows(
    point: Point, new_tokens: int, apart: int, launched: list[str]
) -> None:
    backend, cache = paged_cuda.over(other(launched)), cache_of(point)
    pool = cache.pool
    keys = torch.zeros(new_tokens, pool.num_kv_heads, pool.head_dim + apart, dtype=pool.k.dtype)
    keys = keys[:, :, : pool.head_dim]
    for stage in ("append", "append_kv"):
        backend.stages[stage](cache, keys, keys, None)
    heads_alone = point.shape.group_size > 8  # what keeps CUDA's other stages away, and is nothing to append
    runs_cuda = (point in CUDA or heads_alone) and apart != 4
    assert launched == (["append", "append_kv"] if runs_cuda else ["other"] * 2)


def test_a_dtype_without_any_kernel_is_not_cudas(launched: list[str]) -> None:
    point = msgspec.structs.replace(POINT, shape=msgspec.structs.replace(SHAPE, kv_dtype="int8"))
    assert paged_cuda.over(other(launched)).variant(point) == "triton"


def test_where_cuda_cannot_run_the_other_backend_is_left_alone() -> None:
    plain = other([])
    assert cuda_module.is_available() or paged_cuda.over(plain) is plain


@pytest.mark.parametrize("point", CUDA[:1] + TRITON[:1])
def test_the_chain_is_fused_where_cuda_runs(point: Point, launched: list[str]) -> None:
    backend = paged_cuda.over(
        replace(other(launched), scratch_floats={"attend": lambda *_: 1, "dense": lambda *_: 1})
    )
    cache = cache_of(point)
    q = torch.zeros(1, point.shape.num_qo_heads, point.shape.head_dim, dtype=cache.pool.k.dtype)
    bound = bind("quest", backend, cache, q, point.num_selected)
    launched.clear()
    for step in bound.chain:
        step.launch()
    assert launched == (["score", FUSED] if point in CUDA else ["other"] * 3)
    assert bound.fused == (point in CUDA)


@pytest.mark.parametrize("num_selected", [1, 2046, 2047, 2048, 4000])
@pytest.mark.parametrize("num_qo_heads", [8, 200])
def test_what_fuses_is_what_the_launcher_takes(
    num_selected: int, num_qo_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 heads leave no room for splits: one has all the pages."""
    monkeypatch.setattr(cuda_module, "is_available", lambda: True)
    monkeypatch.setattr(cuda_stages, "stage_kernel", lambda *_, **__: None)
    monkeypatch.setattr(cuda_stages, "_launch", lambda *_, **__: None)
    shape = Shape("wide", num_qo_heads=num_qo_heads, num_kv_heads=num_qo_heads // 8, head_dim=64)
    cache = cache_of(Point(shape, seq_len=4000 * 16))
    backend = paged_cuda.over(other([]))
    q = torch.zeros(1, num_qo_heads, 64, dtype=torch.float16)
    ids = torch.zeros(num_qo_heads, num_selected, dtype=torch.int32)
    scores, indptr = torch.zeros(num_qo_heads, 4000), torch.tensor([0, num_selected], dtype=torch.int32)
    scratch = torch.zeros(backend.scratch_floats["attend"](q, cache, ids))
    arguments = (
        scores,
        cache,
        indptr,
        ids,
        True,
        q,
        torch.empty_like(q),
        torch.empty(1, num_qo_heads),
        scratch,
    )
    fuses = backend.fuses(q, cache, ids, num_selected)
    assert fuses == (num_qo_heads == 8 or num_selected < 2048)
    if fuses:
        backend.stages[FUSED](*arguments)
    else:
        with pytest.raises(ValueError, match="apart"):
            backend.stages[FUSED](*arguments)


def test_triton_takes_the_name_on_a_gpu_alone() -> None:
    assert load("triton", "cpu").why_not(POINT) == "Triton needs a GPU: use --device cuda"
    backend = load("triton", "cuda")
    assert (backend.name, backend.variant(POINT), backend.why_not(POINT)) == ("triton", "triton", None)
    assert FUSED not in backend.stages

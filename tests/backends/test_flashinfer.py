"""The FlashInfer adapter against a stand-in that reads pages as FlashInfer documents them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from dense_case import LENGTHS, assert_holds, bound_to, point_of, shaped

from questprof.backends import Backend, load
from questprof.ceilings import CpuReader
from questprof.environment import capture
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.sweep import block as sweep
from questprof.timing.cpu import CpuExecutor
from questprof.timing.stopping import fixed

NAMES = ("flashinfer", "flashinfer-tc")


class Wrapper:
    """BatchDecodeWithPagedKVCacheWrapper in plain torch: plan() fills the fixed buffers, run() reads them."""

    made: ClassVar[list[Wrapper]] = []
    refusal: ClassVar[Exception | None] = None

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert (kv_layout, use_cuda_graph) == ("HND", True)
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any()
        self.workspace, self.tensor_cores, self.backend = float_workspace_buffer, use_tensor_cores, backend
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self.buffers = [buffer for buffer in buffers if buffer is not None]
        for buffer in self.buffers:
            buffer.fill_(-1)
        self.plans: list[dict[str, Any]] = []
        self.runs: list[tuple[int, ...]] = []
        Wrapper.made.append(self)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        if Wrapper.refusal is not None:
            raise Wrapper.refusal
        assert all(tensor.dtype == torch.int32 for tensor in (indptr, indices, last_page_len))
        for buffer, tensor in zip(self.buffers, (indptr, indices, last_page_len), strict=True):
            assert buffer.data_ptr() != tensor.data_ptr()
            buffer.copy_(tensor)
        self.group, self.page_size = num_qo_heads // num_kv_heads, page_size
        self.plans.append({"head_dim": head_dim, "q": q_data_type, "kv": kv_data_type})

    def run(self, q: torch.Tensor, paged: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor) -> None:
        assert self.plans
        self.runs.append(tuple(t.data_ptr() for t in (q, *paged, out, *self.buffers, self.workspace)))
        indptr, indices, last_page_len = (buffer.tolist() for buffer in self.buffers)
        for request, last in enumerate(last_page_len):
            pages = indices[indptr[request] : indptr[request + 1]]
            length = (len(pages) - 1) * self.page_size + last
            k, v = (
                part[pages].transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(self.group, 1).float()
                for part in paged
            )
            logits = torch.einsum("hd,thd->ht", q[request].float(), k) * q.shape[-1] ** -0.5
            out[request] = torch.einsum("ht,thd->hd", logits.softmax(-1), v).to(out.dtype)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer "0.6.3", to be had as the real one is."""
    module = ModuleType("flashinfer")
    module.__dict__.update(__version__="0.6.3", BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(Wrapper, "made", [])
    monkeypatch.setattr(Wrapper, "refusal", None)


@pytest.mark.parametrize("name", NAMES)
def test_ragged_shuffled_pages_are_read_right(name: str) -> None:
    bound = bound_to(load(name, "cuda"))
    out = bound.outputs.out
    bound.steps[-1].launch()
    assert bound.outputs.out is out
    assert bound.outputs.lse is None
    assert_holds(bound)


def test_the_pages_of_the_cache_are_read_in_place_by_a_wrapper_planned_once() -> None:
    bound = bound_to(load("flashinfer", "cuda"))
    (wrapper,) = Wrapper.made
    assert len(wrapper.plans) == 2  # one to load the kernels, one for the clock
    assert wrapper.plans[0] == {"head_dim": 64, "q": torch.float16, "kv": torch.float16}
    for _ in range(3):
        bound.steps[-1].launch()
    assert len(wrapper.plans) == 2
    first, *others = wrapper.runs
    assert first[1:3] == (bound.cache.pool.k.data_ptr(), bound.cache.pool.v.data_ptr())
    assert others == [first, first], "a CUDA graph replays addresses: they must not change between launches"


def test_buffers_belong_to_one_plan_and_the_workspace_to_all() -> None:
    for _ in range(2):
        bound_to(load("flashinfer", "cuda"))
    one, other = Wrapper.made
    assert one.workspace is other.workspace
    assert {b.data_ptr() for b in one.buffers}.isdisjoint(b.data_ptr() for b in other.buffers)


def test_the_time_of_a_warm_plan_is_kept() -> None:
    bound = bound_to(load("flashinfer", "cuda"))
    planned = load("flashinfer", "cuda").prepare(bound.cache, bound.q)
    assert planned.plan_us > 0
    assert planned.error is None


def test_each_name_takes_its_own_kernels() -> None:
    for name in NAMES:
        bound_to(load(name, "cuda"))
    assert [(w.tensor_cores, w.backend) for w in Wrapper.made] == [(False, "fa2"), (True, "fa2")]
    assert [load(name, "cuda").variant(shaped()) for name in NAMES] == ["flashinfer-0.6.3"] * 2


def test_supported_points_have_no_reason_against_them() -> None:
    for name in NAMES:
        backend = load(name, "cuda")
        assert backend.why_not(point_of()) is None
        assert backend.caches_held == 1
        for page_size in (1, 3, 16, 128):
            assert backend.why_not(msgspec.structs.replace(point_of(), page_size=page_size)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "fp32"}, "no kv_dtype fp32"),
        ({"head_dim": 96}, "no head_dim 96"),
        ({"num_qo_heads": 14}, "no group of 7 query heads"),
    ],
)
def test_what_flashinfer_cannot_do_is_named(changes: dict[str, int | str], reason: str) -> None:
    assert reason in (load("flashinfer", "cuda").why_not(shaped(**changes)) or "")


def test_tensor_cores_take_any_group() -> None:
    assert load("flashinfer-tc", "cuda").why_not(shaped(num_qo_heads=14)) is None


def test_an_empty_request_is_refused() -> None:
    assert load("flashinfer", "cuda").why_not(point_of((0, 16))) == "FlashInfer takes no empty request"


def test_without_a_gpu_it_says_so() -> None:
    backend = load("flashinfer", "cpu")
    assert backend.why_not(point_of()) == "FlashInfer needs a GPU: use --device cuda"
    assert backend.variant(point_of()) == "flashinfer"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    reason = load(name, "cuda").why_not(point_of()) or ""
    assert "pip install -e '.[baselines]'" in reason
    assert load(name, "cuda").variant(shaped()) == "flashinfer"


def _records(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, Any]:
    """One sweep of questprof's and FlashInfer's dense on the CPU, by backend."""
    monkeypatch.setattr(sweep, "load", _on_cpu(load))
    environment = capture("cpu")
    machine = sweep.Machine(
        environment, CpuExecutor(environment, CpuReader("reader", lambda: None, 1 << 40), fixed(3))
    )
    points = tuple(msgspec.structs.replace(point_of(), backend=backend) for backend in ("questprof", name))
    return {record.point.backend: record for record in sweep.run_block(Block(points), machine)}


def _on_cpu(real: Callable[[str, str], Backend]) -> Callable[[str, str], Backend]:
    return lambda name, device: real(name, device if name == "questprof" else "cuda")


def test_a_sweep_checks_and_times_it(monkeypatch: pytest.MonkeyPatch) -> None:
    record = _records(monkeypatch, "flashinfer")["flashinfer"]
    assert (record.status, record.variant) == ("ok", "flashinfer-0.6.3")
    assert list(record.times_us) == ["dense"]
    assert {c.stage for c in record.checks} == {"dense"}
    assert record.point.lengths == LENGTHS


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_plan_it_refuses_is_unavailable(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrapper, "refusal", kind("Unsupported max_mma_kv: 0\nmore"))
    records = _records(monkeypatch, "flashinfer")
    assert records["flashinfer"].status == "unavailable"
    assert records["flashinfer"].reason == "Unsupported max_mma_kv: 0"
    assert records["questprof"].status == "ok"


def test_a_plan_that_finds_no_memory_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrapper, "refusal", torch.cuda.OutOfMemoryError("CUDA out of memory."))
    assert {record.status for record in _records(monkeypatch, "flashinfer").values()} == {"oom"}


def test_an_unknown_backend_is_told_every_name() -> None:
    with pytest.raises(
        QuestprofError, match="triton, gather, sdpa, sdpa-cudnn, flashinfer, flashinfer-tc, fa3"
    ):
        load("flash", "cuda")

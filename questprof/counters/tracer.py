"""Tracing the stages of a backend: each launch recorded, its tensors known by the ledger's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.counters.recording import recording
from questprof.counters.sectors import SectorLog, Span
from questprof.counters.torch_traffic import TorchTraffic
from questprof.counts import SECTOR_BYTES, StageCount

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

APPEND = ("cache", "keys", "values", "new_indptr")
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "append": APPEND,
    "append_kv": APPEND,
    "score": ("q", "cache", "scores"),
    "select": ("scores", "cache", "select_indptr", "page_ids"),
    "attend": ("q", "cache", "page_ids", "select_indptr", "out", "lse", "scratch"),
    "dense": ("q", "cache", "out", "lse", "scratch"),
}
"""Names of a stage's tensors in the order of its arguments."""


@dataclass
class Tracer:
    """Counts of the latest launch of each stage of the backends that `over` wraps.

    `own` names the stages whose scratch is laid out as the project's plans say. `unseen` holds, by stage, the
    torch operations of a launch that moved data past the interpreter.
    """

    own: frozenset[str]
    counts: dict[str, StageCount] = field(default_factory=dict)
    logs: dict[str, SectorLog] = field(default_factory=dict)
    unseen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def over(self, backend: Backend) -> Backend:
        """`backend` with every stage traced."""
        stages = {stage: self._traced(stage, backend.stages[stage]) for stage in ARGUMENTS}
        return replace(backend, stages=stages)

    def _traced(self, stage: str, launch: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*arguments: Any, **options: Any) -> Any:
            tensors = dict(zip(ARGUMENTS[stage], arguments, strict=False))
            log, traffic = SectorLog(self._spans(stage, tensors)), TorchTraffic()
            with recording(log) as kernels, traffic:
                returned = launch(*arguments, **options)
            self._keep(stage, log, tuple(kernels), traffic)
            return returned

        return traced

    def _keep(self, stage: str, log: SectorLog, kernels: tuple[str, ...], traffic: TorchTraffic) -> None:
        tensors = log.counts()
        read = sum(tensor.read for tensor in tensors.values())
        write = sum(tensor.write for tensor in tensors.values())
        self.logs[stage] = log
        self.counts[stage] = StageCount(stage, "trace", read, write, kernels=kernels, tensors=tensors)
        self.unseen[stage] = traffic.names

    def _spans(self, stage: str, tensors: dict[str, Any]) -> Iterator[Span]:
        """Where the tensors of a launch lie; ValueError for one that does not begin with a sector."""
        named = dict(tensors)
        cache, scratch = named.pop("cache"), named.pop("scratch", None)
        for name, tensor in {**_cache_tensors(cache), **named}.items():
            yield _span(name, tensor)
        # What the tables tell of last pages is counted as read from them: a kernel may take it from either.
        yield _span("block_table", cache.last_page)
        yield _span("block_table", cache.dense_table)
        yield _span("summary_table", cache.last_block)
        if scratch is None:
            return
        whole = _span("split_partials", scratch)
        if stage not in self.own:
            yield whole
            return
        heads = named["q"].shape[1] if stage == "attend" else cache.pool.num_kv_heads
        counters, partials = _scratch_bytes(heads * cache.batch_size)
        yield Span("counters", whole.start, whole.start + counters)
        yield Span("split_partials", whole.start + partials, whole.end)


def _scratch_bytes(num_counters: int) -> tuple[int, int]:
    """(bytes of the arrival counters, byte at which the partials begin), as kernels/softmax.py has it."""
    return 4 * num_counters, 16 * -(-num_counters // 4)


def _cache_tensors(cache: PagedCache) -> dict[str, torch.Tensor]:
    return {
        "k": cache.pool.k,
        "v": cache.pool.v,
        "summary": cache.pool.summary.data,
        "block_table": cache.block_table,
        "kv_indptr": cache.kv_indptr,
        "last_page_len": cache.last_page_len,
        "summary_table": cache.summary_table,
        "summary_indptr": cache.summary_indptr,
    }


def _span(name: str, tensor: torch.Tensor) -> Span:
    start = tensor.data_ptr()
    if start % SECTOR_BYTES:
        raise ValueError(f"tensor {name} begins at byte {start % SECTOR_BYTES} of a sector")
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(name, start, start + (last + 1) * tensor.element_size() if tensor.numel() else start)

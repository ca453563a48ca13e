"""One point traced: its cache and query, every stage launched once in the interpreter, and what that says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from questprof import checks
from questprof.backends import paged, user
from questprof.counters import Counted
from questprof.counters.sectors import SectorLog
from questprof.counters.statuses import CountStatus, status_of_error, worst
from questprof.counters.trace import block_of
from questprof.counters.trace_fill import fill, poison
from questprof.counters.tracer import ARGUMENTS, Tracer
from questprof.counts import SECTOR_BYTES, StageCount
from questprof.errors import QuestprofError
from questprof.model import Point
from questprof.policies import Bound, Outputs, Step, bind, launcher
from questprof.workload import make_cache, make_pool, make_query, new_tokens

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache, PagePool

PREFILL = "append_prefill"


@dataclass
class Findings:
    """Counts by stage in the order of launching, and what was wrong."""

    counts: dict[str, StageCount] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    status: CountStatus = "ok"

    def add(self, status: CountStatus, *reasons: str) -> None:
        """Note what was wrong, if anything was."""
        self.reasons += reasons
        self.status = worst(self.status, status) if reasons else self.status


@dataclass
class Block:
    """What points that differ in budget and policy alone share: cache, query, and the launches of both."""

    key: str
    cache: PagedCache
    q: torch.Tensor
    dense: Findings
    scores: torch.Tensor | None = None
    score: StageCount | None = None


class PointTracer:
    """Traces points one after another; the latest block stays, for the points that share it."""

    def __init__(self, kernels: str, num_workers: int, *, prefill: bool) -> None:
        # The same stages whatever the device; only a normal run needs a GPU for them.
        backend = paged.load_triton("cuda")
        own = frozenset(ARGUMENTS)
        if kernels:
            stages = user.stage_set(kernels)
            if "select_attend" in stages.stages and not {"select", "attend"} <= set(stages.stages):
                raise QuestprofError(
                    f"kernels {kernels!r}",
                    "a trace counts select and attend apart, and it gives select_attend alone",
                    "Give select and attend beside it, or count with --source ncu.",
                )
            backend, own = user.over(backend, stages), own - set(stages.stages)
        self._tracer = Tracer(own)
        self._backend = self._tracer.over(backend)
        self._filler = dataclasses.replace(backend, stages={"append": fill})
        self._num_workers = num_workers
        self._prefill = prefill
        self._block: Block | None = None

    def count(self, point: Point) -> Counted:
        """The counts of `point`; a stage that fails, or leaves a wrong result, says so in `reason`."""
        on_cpu = replace(point, device="cpu", backend="triton")
        variant = self._backend.variant(on_cpu)
        try:
            if reason := self._backend.why_not(on_cpu):
                counted = Counted("", "trace", status="unavailable", reason=reason)
            else:
                counted = self._count(on_cpu)
        except Exception as error:  # one point that cannot be made is no end of the others
            counted = Counted("", "trace", status=status_of_error(error), reason=_in_words(error))
        return replace(counted, point_id=point.point_id, variant=variant)

    def _count(self, point: Point) -> Counted:
        block = self._shared(point)
        found = Findings(dict(block.dense.counts), list(block.dense.reasons), block.dense.status)
        facts: dict[str, Any] = {}
        if point.policy != "dense":
            bound = bind(point.policy, self._backend, block.cache, block.q, point.num_selected)
            self._run(point, bound, found, block)
            facts = {"union_ratio": checks.union_ratio(bound), "sign_share": checks.sign_share(bound)}
            if "attend" in found.counts:
                facts["unselected_bytes"] = unselected_bytes(bound, self._tracer.logs["attend"])
        counts, reason = tuple(found.counts.values()), "; ".join(found.reasons)
        return Counted("", "trace", counts=counts, status=found.status, reason=reason, **facts)

    def _shared(self, point: Point) -> Block:
        """The block of `point`, made anew unless the last point had the same."""
        key = block_of(point)
        if self._block is None or self._block.key != key:
            self._block = None  # frees its memory before the next is made
            pool = make_pool(point, 1, self._num_workers)
            poison(pool)
            cache = make_cache(point, pool, self._filler, 0)
            block = Block(key, cache, make_query(point, pool, point.data, 0), Findings())
            if self._prefill:
                self._append_prompt(point, pool, block)
            dense = bind("dense", self._backend, cache, block.q, ())
            self._run(point, dense, block.dense, block)
            self._block = block
        return self._block

    def _append_prompt(self, point: Point, pool: PagePool, block: Block) -> None:
        """The append of all tokens of `point` to empty caches, in one launch."""
        import torch
        from questprof_kernels.paged_cache import PagedCache

        prompt = make_pool(point, 1, self._num_workers)
        cache = PagedCache(prompt, len(point.lengths), sum(point.num_pages))
        new_indptr = cache.extend(point.lengths)
        generator = torch.Generator().manual_seed(point.seed)
        keys, values = new_tokens(prompt, sum(point.lengths), generator)
        launch = launcher(self._backend, "append", cache, keys, values, new_indptr)
        outputs = Outputs(block.q, None, appended=(keys, values), new_tokens=point.lengths)
        step = Step(PREFILL, launch, like="append")
        self._run(point, Bound(cache, block.q, True, outputs, (step,)), block.dense, block)

    def _run(self, point: Point, bound: Bound, found: Findings, block: Block) -> None:
        """Launch and check the steps of `bound` until one fails; counts and reasons go to `found`."""
        for step in bound.steps:
            if step.stage == "append_kv":  # part of `append`, without Quest's own
                continue
            try:
                count = self._launch(step, bound, block)
            except Exception as error:  # whatever a kernel does is a finding, not the end of the others
                found.add("failed", f"stage {step.stage} failed: {_in_words(error)}")
                return
            found.counts[step.stage] = replace(count, stage=step.stage)
            if operations := self._tracer.unseen.get(step.kind):
                names = ", ".join(operations)
                found.add(
                    "unstable", f"stage {step.stage} moves data in torch, where no trace sees it: {names}"
                )
            found.add("wrong", *wrong(bound, step, point.seed))

    def _launch(self, step: Step, bound: Bound, block: Block) -> StageCount:
        """The count of one step; `score` knows no budget, so that its launch serves the whole block."""
        if step.stage == "score" and block.scores is not None and block.score is not None:
            assert bound.outputs.scores is not None
            bound.outputs.scores.copy_(block.scores)
            return block.score
        step.launch()
        count = self._tracer.counts[step.kind]
        if step.stage == "score":
            block.scores, block.score = bound.outputs.scores, count
        return count


def wrong(bound: Bound, step: Step, seed: int) -> list[str]:
    """What the float64 reference says against the result that `step` left."""
    try:
        results = checks.check(bound, (step,), "before", seed)
    except (ValueError, IndexError) as error:  # page ids that no page has
        return [f"wrong: {step.stage}: {error}"]
    return [
        f"wrong: {check.stage} is off by {_off(check.max_rel_err)}, {check.tolerance:.1e} is allowed"
        for check in results
        if not check.holds
    ]


def _off(error: float | None) -> str:
    return "NaN or infinity" if error is None else f"{error:.1e}"


def unselected_bytes(bound: Bound, log: SectorLog) -> int:
    """Distinct bytes of K and V that were read in pages which no query head of their group selected."""
    pool, selected = bound.cache.pool, selected_pages(bound).numpy()
    sectors = 0
    for name in ("k", "v"):
        by_page = log.seen(name, "read").reshape(pool.num_pages, pool.num_kv_heads, -1)
        sectors += int(by_page.sum(-1)[~selected].sum())
    return SECTOR_BYTES * sectors


def selected_pages(bound: Bound) -> torch.Tensor:
    """Which physical pages some query head of a KV head's group selected, bool [num_pages, num_kv_heads]."""
    import torch

    cache, outputs = bound.cache, bound.outputs
    assert outputs.page_ids is not None
    assert outputs.select_indptr is not None
    kv_heads = cache.pool.num_kv_heads
    selected = torch.zeros((cache.pool.num_pages, kv_heads), dtype=torch.bool)
    by_group = outputs.page_ids.unflatten(0, (kv_heads, -1))
    for request, (start, stop) in enumerate(pairwise(outputs.select_indptr.tolist())):
        physical = torch.tensor(cache.physical_pages(request), dtype=torch.long)
        for head in range(kv_heads):
            logical = by_group[head, :, start:stop].unique()
            there = (logical >= 0) & (logical < len(physical))  # a wrong selection may name others
            selected[physical[logical[there].long()], head] = True
    return selected


def _in_words(error: Exception) -> str:
    if isinstance(error, QuestprofError):
        return error.why
    return f"{type(error).__name__}: {error}"

"""Every stage of the interface held against the float64 reference over one scene.

Each check launches the user's stage with both queries of the scene, with NaN in what it must not read, and on
a GPU once more from a CUDA graph. It returns the accuracy, or raises FaultError with the first place that
differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from questprof.backends.user import StageSet
from questprof.checks import distance, reported_pages, rounding_floor
from questprof.kernelcheck import attention
from questprof.kernelcheck.attention import Accuracy, Pages, Result
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.guarded import Guarded
from questprof.kernelcheck.launches import Launcher

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene

STALE = "Compute from what the tensors hold at the launch, not from what they held at the first one."


@dataclass(frozen=True)
class Outcome:
    """What a stage that is right, or approximate, did over one scene."""

    accuracy: Accuracy | None = None
    approximate: bool = False
    notes: tuple[str, ...] = ()


def check_stage(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Check `stage` of `stages` over `scene`; FaultError, or QuestprofError for what the stage raises."""
    return CHECKS[stage](stages, stage, scene)


def _turns(scene: Scene, judge: Callable[[], Accuracy | None], launcher: Launcher) -> Outcome:
    """Launch and judge with every query, then from a graph on a GPU; the worst accuracy."""
    found: list[Accuracy] = []
    for turn, query in enumerate(scene.queries):
        scene.q.copy_(query)
        left = {name: output.tensor.clone() for name, output in launcher.outputs.items()}
        launcher.launch()
        try:
            found += filter(None, [judge()])
        except FaultError as fault:
            if turn and any(_same(left[n], output.tensor) for n, output in launcher.outputs.items()):
                why = "it left the result of the launch before, though q has changed since"
                raise FaultError(why, STALE, fault.place) from None
            raise
    notes: tuple[str, ...] = ()
    if scene.q.is_cuda:
        if count := launcher.allocations():
            notes = (f"allocates {count} blocks a launch, which a graph keeps: use prepare or scratch",)
        launcher.launch_in_graph()
        found += filter(None, [judge()])
    return Outcome(max(found, key=lambda one: one.error, default=None), notes=notes)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _score(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    import torch

    shape = (scene.q.shape[1], scene.cache.total_pages)
    scores = Guarded(shape, torch.float32, scene.q.device)
    launcher = Launcher(
        stages, stage, scene, {"scores": scores}, lambda cache: ((scene.q, cache, scores.tensor), {})
    )
    return _turns(scene, lambda: _judge_scores(scene, scores), launcher)


def _judge_scores(scene: Scene, scores: Guarded) -> Accuracy:
    """Rows within their tolerance, as the checks of a sweep have it; the first page that is off otherwise."""
    import torch
    from questprof_kernels import reference

    ours, unwritten, starts = scores.tensor.cpu(), scores.unwritten.cpu(), scene.starts
    expected = reference.score(scene.q, scene.cache)
    eager = worst = 0.0
    for request, head in scene.rows:
        span = slice(starts[request], starts[request + 1])
        m, M = reference.stored_boxes(scene.cache, request, scene.kv_head(head))
        q = scene.q[request, head].cpu().float()
        plain = torch.maximum(q * m.float(), q * M.float()).sum(-1)
        eager = max(eager, distance(plain, expected[head, span]))
        worst = max(worst, distance(ours[head, span], expected[head, span]))
    allowed = 2 * eager + rounding_floor(torch.float32)
    for request, head in scene.rows:
        span = slice(starts[request], starts[request + 1])
        row, right = ours[head, span].double(), expected[head, span]
        if distance(row, right) <= allowed:
            continue
        off = ~((row - right).abs() <= allowed * right.norm() / len(right) ** 0.5)
        page = int(off.int().argmax())
        place = Place(request, head, page)
        if bool(unwritten[head, span][page]):
            raise FaultError("its score was not written", "Write scores[head, kv_indptr[r] + page].", place)
        raise FaultError(
            f"the score is {float(row[page]):.6g}, float64 says {float(right[page]):.6g}",
            "It is sum_j max(q_j * min_j, q_j * max_j) over the page's box, unscaled.",
            place,
        )
    return Accuracy(worst, allowed)


def _select(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    import torch

    scores = scene.scores()
    ids = Guarded((scene.q.shape[1], scene.bounds[-1]), torch.int32, scene.q.device)
    launcher = Launcher(
        stages,
        stage,
        scene,
        {"page_ids": ids},
        lambda cache: ((scores, cache, scene.select_indptr, ids.tensor, scene.setting.take_tail), {}),
        {"scores": scores, "select_indptr": scene.select_indptr},
    )

    def judge() -> None:
        _judge_ids(scene, ids, scene.page_ids(scores).cpu())

    def turn() -> None:
        judge()
        scene.q.copy_(scene.queries[-1])
        scores.copy_(scene.scores())  # the next launch selects from other scores

    return _turns(scene, turn, launcher)


def _judge_ids(scene: Scene, ids: Guarded, expected: torch.Tensor) -> None:
    ours, unwritten, bounds = ids.tensor.cpu(), ids.unwritten.cpu(), scene.bounds
    for request, head in scene.rows:
        span = slice(bounds[request], bounds[request + 1])
        row, right = ours[head, span].tolist(), expected[head, span].tolist()
        if bool(unwritten[head, span].any()):
            at = int(unwritten[head, span].int().argmax())
            place = Place(request, head, right[at])
            raise FaultError(
                f"page_ids[{head}, {span.start + at}] was not written",
                "Write select_indptr[r + 1] - select_indptr[r] ids for every head.",
                place,
            )
        if row != right:
            raise _wrong_ids(scene, request, head, row, right)


def _wrong_ids(scene: Scene, request: int, head: int, row: list[int], right: list[int]) -> FaultError:
    """How the ids `row` differ from `right`, and the first page that does."""
    at = next(i for i, (a, b) in enumerate(zip(row, right, strict=True)) if a != b)
    pages, missing = scene.cache.num_pages[request], [page for page in right if page not in row]
    repeated = next((page for i, page in enumerate(row) if page in row[:i]), None)
    outside = next((page for page in row if not 0 <= page < pages), None)
    fix = f"The {len(right)} best pages in ascending order; equal scores go to the lower page."
    if sorted(row) == right:
        return FaultError(
            f"the right pages in another order, {row}", "Write them ascending.", Place(request, head, row[at])
        )
    if repeated is not None:
        why = f"page {repeated} was selected twice: {row}, not {right}"
        return FaultError(why, fix, Place(request, head, repeated))
    if outside is not None:
        why = f"page {outside} was selected of {pages} pages: {row}, not {right}"
        return FaultError(why, "Ids are logical pages of the request, from 0.", Place(request, head, outside))
    if scene.setting.take_tail and missing[-1] == pages - 1:
        why = f"the tail page {pages - 1} was not selected: {row}, not {right}"
        return FaultError(
            why, "With take_tail the last page is always among the K.", Place(request, head, pages - 1)
        )
    return FaultError(
        f"page {missing[0]} was not selected: {row}, not {right}", fix, Place(request, head, missing[0])
    )


def _attend(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Attention over the reference's ids, those of the first query, with the other pages poisoned at last."""
    scene.q.copy_(scene.queries[0])
    ids = scene.page_ids(scene.scores())
    outputs, scratch = _attention_outputs(stages, stage, scene, ids)
    launcher = Launcher(
        stages,
        stage,
        scene,
        outputs,
        lambda cache: (
            (scene.q, cache, ids, scene.select_indptr, *(o.tensor for o in outputs.values()), scratch),
            {},
        ),
        {"page_ids": ids, "select_indptr": scene.select_indptr},
    )
    pages = _pages_of(scene, ids)
    return _attention_turns(scene, launcher, lambda: pages, leaks=("k", "v"))


def _dense(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    outputs, scratch = _attention_outputs(stages, stage, scene)
    launcher = Launcher(
        stages,
        stage,
        scene,
        outputs,
        lambda cache: ((scene.q, cache, *(o.tensor for o in outputs.values()), scratch), {}),
    )
    return _attention_turns(scene, launcher, lambda: dict.fromkeys(scene.rows))


def _select_attend(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Both halves of the fused stage, from the reference's scores: its ids, then attention over them."""
    import torch

    scores = scene.scores()
    ids = Guarded((scene.q.shape[1], scene.bounds[-1]), torch.int32, scene.q.device)
    outputs, scratch = _attention_outputs(stages, "attend", scene, scene.page_ids(scores))
    tail, most = scene.setting.take_tail, max(scene.num_selected)

    def arguments(cache: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        halves = (scores, cache, scene.select_indptr, ids.tensor, tail)
        return (*halves, scene.q, *(o.tensor for o in outputs.values()), scratch), {"most_selected": most}

    every = {"page_ids": ids, **outputs}
    given = {"scores": scores, "select_indptr": scene.select_indptr}
    launcher = Launcher(stages, stage, scene, every, arguments, given)

    def pages() -> Pages:
        expected = scene.page_ids(scores)
        _judge_ids(scene, ids, expected.cpu())
        return _pages_of(scene, expected)

    return _attention_turns(scene, launcher, pages, leaks=("k", "v"))


def _decode(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Attention over the ids it reports; without any, its error beside dense attention is its quality."""
    import torch

    asks, device = stages.asks, scene.q.device
    ids = Guarded((scene.q.shape[1], scene.bounds[-1]), torch.int32, device)
    outputs, scratch = _attention_outputs(stages, stage, scene)
    if "lse" not in asks:
        del outputs["lse"]
    if "page_ids" in asks:
        outputs["page_ids"] = ids
    offered = {
        "page_ids": ids.tensor,
        "select_indptr": scene.select_indptr,
        "num_selected": scene.num_selected,
        "take_tail": scene.setting.take_tail,
        "lse": outputs["lse"].tensor if "lse" in outputs else None,
        "scratch": scratch,
    }
    options = {name: offered[name] for name in asks}
    launcher = Launcher(
        stages,
        stage,
        scene,
        outputs,
        lambda cache: ((scene.q, cache, outputs["out"].tensor), options),
        {"select_indptr": scene.select_indptr},
    )
    if "page_ids" in asks:
        return _attention_turns(scene, launcher, lambda: _reported(scene, ids), leaks=("v",))
    return _approximate(scene, launcher)


def _approximate(scene: Scene, launcher: Launcher) -> Outcome:
    """A decode that says no ids: written, finite and repeatable; how far off dense attention."""

    def judge() -> Accuracy:
        result = _result(launcher, dict.fromkeys(scene.rows))
        for row in scene.rows:
            if bool(result.unwritten[row].any()):
                raise FaultError("out was not written", "Write every row of out.", Place(*row))
            if not bool(result.out[row].isfinite().all()):
                why = "out holds NaN or infinity: the slots behind the last token hold NaN here"
                raise FaultError(why, "Mask keys and values by last_page_len.", Place(*row))
        return Accuracy(attention.errors(scene, result), 0.0)

    turned = _turns(scene, judge, launcher)
    return Outcome(turned.accuracy, approximate=True, notes=turned.notes)


def _reported(scene: Scene, ids: Guarded) -> dict[tuple[int, int], list[int] | None]:
    """The pages that a decode wrote for every row; FaultError for what they cannot be."""
    ours, unwritten, bounds = ids.tensor.cpu(), ids.unwritten.cpu(), scene.bounds
    found: dict[tuple[int, int], list[int] | None] = {}
    for request, head in scene.rows:
        span = slice(bounds[request], bounds[request + 1])
        row, pages = ours[head, span].tolist(), scene.cache.num_pages[request]
        if bool(unwritten[head, span].any()):
            missing = int(unwritten[head, span].sum())
            why = f"page_ids was not written ({missing} of {len(row)} entries)"
            fix = "Write an id, or -1 for none, into every entry."
            raise FaultError(why, fix, Place(request, head))
        found[request, head] = reported_pages(row, pages)
        if found[request, head] is None:
            wrong = [page for i, page in enumerate(row) if page in row[:i] or not -1 <= page < pages]
            page = next((page for page in wrong if page != -1), None)
            why = f"page_ids says {row}, of {pages} pages"
            fix = "Logical pages of the request, each once, -1 for none; one page at least."
            raise FaultError(why, fix, Place(request, head, page))
    return found


def _append(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """New tokens where they belong, nothing else changed, and the boxes of their pages."""
    import torch

    from questprof.policies import newest_slots
    from questprof.workload import new_tokens

    cache, several = scene.cache, scene.cache.pool.page_size + 1
    counts = [min(length, several if r % 2 == 0 else 1) for r, length in enumerate(cache.seq_lens)]
    for request, count in enumerate(counts):  # the block table is full: as many tokens leave first
        cache.roll_back(request, count)
    generator = torch.Generator(device=cache.pool.device).manual_seed(scene.setting.seed + 1)
    new_indptr = cache.extend(counts)
    keys, values = new_tokens(cache.pool, sum(counts), generator)
    pages, slots = newest_slots(cache, counts)
    before = {}
    for name in ("k", "v"):
        storage = getattr(cache.pool, name)
        storage[pages, :, slots] = float("nan")
        before[name] = storage.clone()
    given = {"keys": keys, "values": values, "new_indptr": new_indptr}
    launcher = Launcher(
        stages,
        stage,
        scene,
        {},
        lambda _: ((cache, keys, values, new_indptr), {}),
        given,
        writes_cache=True,
    )
    launcher.launch()
    for name, new in (("k", keys), ("v", values)):
        before[name][pages, :, slots] = new
        _judge_storage(scene, name, before[name])
    if stage == "append":
        _judge_boxes(scene)
    return Outcome()


def _judge_storage(scene: Scene, name: str, expected: torch.Tensor) -> None:
    """K or V as it should be after an append, bit by bit."""
    from questprof.kernelcheck.guarded import bits

    cache, group = scene.cache, scene.q.shape[1] // scene.cache.pool.num_kv_heads
    wrong = bits(getattr(cache.pool, name)) != bits(expected)
    if not bool(wrong.any()):
        return
    for request in range(cache.batch_size):
        for kv_head in range(cache.pool.num_kv_heads):
            for page, physical in enumerate(cache.physical_pages(request)):
                if bool(wrong[physical, kv_head].any()):
                    slot = int(wrong[physical, kv_head].any(-1).int().argmax())
                    raise FaultError(
                        f"{name.upper()} of slot {slot} is not what append was given (KV head {kv_head})",
                        "Token i of request r goes behind those it has; only new slots are written.",
                        Place(request, kv_head * group, page),
                    )
    physical = int(wrong.flatten(1).any(1).int().argmax())
    why = f"it wrote into {name.upper()} of physical page {physical}, which no request owns"
    raise FaultError(why, "block_table maps logical pages to physical ones.")


def _judge_boxes(scene: Scene) -> None:
    from questprof_kernels import reference

    cache, group = scene.cache, scene.q.shape[1] // scene.cache.pool.num_kv_heads
    for request in range(cache.batch_size):
        for kv_head in range(cache.pool.num_kv_heads):
            stored = reference.stored_boxes(cache, request, kv_head)
            for ours, right in zip(stored, reference.boxes(cache, request, kv_head), strict=True):
                if len(wrong := (ours != right).any(-1).nonzero().flatten()):
                    page = int(wrong[0])
                    why = f"the box of KV head {kv_head} is not the least and greatest of the page's keys"
                    fix = "append keeps each dimension's minimum and maximum over the page's tokens."
                    raise FaultError(why, fix, Place(request, kv_head * group, page))


def _attention_outputs(
    stages: StageSet, stage: str, scene: Scene, *page_ids: torch.Tensor
) -> tuple[dict[str, Guarded], torch.Tensor]:
    """Guarded out and lse, and the scratch that the stage asked for."""
    import torch

    q = scene.q
    count = stages.scratch_floats.get(stage)
    floats = int(count(q, scene.cache, *page_ids)) if count else 0
    outputs = {
        "out": Guarded(q.shape, q.dtype, q.device),
        "lse": Guarded(q.shape[:2], torch.float32, q.device),
    }
    return outputs, torch.zeros(max(1, floats), dtype=torch.float32, device=q.device)


def _pages_of(scene: Scene, ids: torch.Tensor) -> Pages:
    host, bounds = ids.cpu(), scene.bounds
    return {(r, h): host[h, bounds[r] : bounds[r + 1]].tolist() for r, h in scene.rows}


def _result(launcher: Launcher, pages: Pages) -> Result:
    out, lse = launcher.outputs["out"], launcher.outputs.get("lse")
    return Result(
        out.tensor.cpu().clone(),
        None if lse is None else lse.tensor.cpu().clone(),
        out.unwritten.cpu(),
        None if lse is None else lse.unwritten.cpu(),
        pages,
    )


def _attention_turns(
    scene: Scene, launcher: Launcher, pages: Callable[[], Pages], leaks: tuple[str, ...] = ()
) -> Outcome:
    """Judge attention over what `pages` says after each launch; then with NaN in the pages not among them."""

    def again() -> Result:
        launcher.launch()
        return _result(launcher, pages())

    def judge() -> Accuracy:
        return attention.judge(scene, _result(launcher, pages()), again)

    outcome = _turns(scene, judge, launcher)
    if leaks:
        _judge_leaks(scene, launcher, pages, leaks)
    return outcome


def _judge_leaks(
    scene: Scene, launcher: Launcher, pages: Callable[[], Pages], leaks: tuple[str, ...]
) -> None:
    """FaultError where NaN in a page that no head of the group was given reaches an output."""
    unselected = list(_unselected(scene, pages()))
    with attention.kept(scene):
        for request, kv_head, page in unselected:
            _spoil(scene, request, kv_head, page, leaks)
        launcher.launch()
        result = _result(launcher, pages())
    row = next((row for row in scene.rows if not bool(result.out[row].isfinite().all())), None)
    if row is None:
        return
    for request, kv_head, page in unselected:
        with attention.kept(scene):
            _spoil(scene, request, kv_head, page, leaks)
            launcher.launch()
            alone = launcher.outputs["out"].tensor[row].isfinite().all()
        if not bool(alone):
            place = Place(*row, page if request == row[0] else None)
            why = f"NaN in page {page} of request {request}, which was not selected, reached out"
            raise FaultError(why, "Read selected pages alone: a weight of 0 times NaN is NaN.", place)
    why = "NaN in pages that were not selected reached out"
    raise FaultError(why, "Read selected pages alone.", Place(*row))


def _unselected(scene: Scene, pages: Pages) -> Iterator[tuple[int, int, int]]:
    """(request, KV head, logical page) of pages that no query head of the group reads."""
    for request, count in enumerate(scene.cache.num_pages):
        for kv_head in range(scene.cache.pool.num_kv_heads):
            heads = [head for head in range(scene.q.shape[1]) if scene.kv_head(head) == kv_head]
            read = {page for head in heads for page in pages[request, head] or ()}
            yield from ((request, kv_head, page) for page in range(count) if page not in read)


def _spoil(scene: Scene, request: int, kv_head: int, page: int, names: tuple[str, ...]) -> None:
    physical = scene.cache.physical_pages(request)[page]
    for name in names:
        getattr(scene.cache.pool, name)[physical, kv_head] = float("nan")


CHECKS: dict[str, Callable[[StageSet, str, Scene], Outcome]] = {
    "append": _append,
    "append_kv": _append,
    "score": _score,
    "select": _select,
    "attend": _attend,
    "dense": _dense,
    "select_attend": _select_attend,
    "decode": _decode,
}

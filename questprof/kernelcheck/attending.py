"""Stages `attend`, `dense`, `select_attend` and `decode` held against float64 attention over their pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from questprof.backends.user import StageSet
from questprof.checks import reported_pages
from questprof.kernelcheck import attention
from questprof.kernelcheck.attention import Accuracy, Pages, Result
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.guarded import Guarded
from questprof.kernelcheck.launches import Launcher
from questprof.kernelcheck.leaks import judge_leaks
from questprof.kernelcheck.picking import judge_ids, renewed
from questprof.kernelcheck.turns import Outcome, turns
from questprof.units import count

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene


def check_attend(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Attention over the reference's ids for the present query, with the other pages poisoned at last."""
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
        scratch=scratch,
    )

    def renew(turn: int) -> None:
        ids.copy_(scene.page_ids(scene.scores()))

    return _attention_turns(scene, launcher, lambda: _pages_of(scene, ids), renew, ("k", "v"))


def check_dense(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Attention over all pages."""
    outputs, scratch = _attention_outputs(stages, stage, scene)
    launcher = Launcher(
        stages,
        stage,
        scene,
        outputs,
        lambda cache: ((scene.q, cache, *(o.tensor for o in outputs.values()), scratch), {}),
        scratch=scratch,
    )
    return _attention_turns(scene, launcher, lambda: dict.fromkeys(scene.rows))


def check_select_attend(stages: StageSet, stage: str, scene: Scene) -> Outcome:
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
    launcher = Launcher(stages, stage, scene, every, arguments, given, scratch=scratch)

    def pages() -> Pages:
        judge_ids(scene, ids, scores)
        return _pages_of(scene, scene.page_ids(scores))

    return _attention_turns(scene, launcher, pages, renewed(scene, scores), ("k", "v"))


def check_decode(stages: StageSet, stage: str, scene: Scene) -> Outcome:
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
        scratch=scratch,
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

    turned = turns(scene, judge, launcher)
    return Outcome(turned.accuracy, approximate=True, allocations=turned.allocations)


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
            why = f"page_ids says {row}, of {count(pages, 'page')}"
            fix = "Logical pages of the request, each once, -1 for none; one page at least."
            raise FaultError(why, fix, Place(request, head, page))
    return found


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
    scene: Scene,
    launcher: Launcher,
    pages: Callable[[], Pages],
    renew: Callable[[int], None] = lambda turn: None,
    leaks: tuple[str, ...] = (),
) -> Outcome:
    """Judge attention over what `pages` says after each launch; then with NaN in the pages not among them."""

    def again() -> Result:
        launcher.launch()
        return _result(launcher, pages())

    def judge() -> Accuracy:
        return attention.judge(scene, _result(launcher, pages()), again)

    outcome = turns(scene, judge, launcher, renew)
    if leaks:
        judge_leaks(scene, launcher, pages, leaks)
    return outcome

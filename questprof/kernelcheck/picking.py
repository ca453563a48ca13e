"""Stages `score` and `select` held against float64: the one within rounding, the other exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from questprof.backends.user import StageSet
from questprof.checks import distance, rounding_floor
from questprof.kernelcheck.attention import Accuracy
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.guarded import Guarded
from questprof.kernelcheck.launches import Launcher
from questprof.kernelcheck.turns import Outcome, turns
from questprof.units import count

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene


def check_score(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Scores of every page of every query head; FaultError at the first page that is off."""
    import torch

    shape = (scene.q.shape[1], scene.cache.total_pages)
    scores = Guarded(shape, torch.float32, scene.q.device)
    launcher = Launcher(
        stages, stage, scene, {"scores": scores}, lambda cache: ((scene.q, cache, scores.tensor), {})
    )
    return turns(scene, lambda: _judge_scores(scene, scores), launcher)


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


def check_select(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """The ids picked from the reference's scores; after the first launch from others, of which some tie."""
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

    return turns(scene, lambda: judge_ids(scene, ids, scores), launcher, renewed(scene, scores))


def renewed(scene: Scene, scores: torch.Tensor) -> Callable[[int], None]:
    """What puts the scores of the present query into `scores`: from the second turn on with ties."""

    def renew(turn: int) -> None:
        scores.copy_(scene.tied_scores() if turn else scene.scores())

    return renew


def judge_ids(scene: Scene, ids: Guarded, scores: torch.Tensor) -> None:
    """FaultError at the first row of `ids` [num_qo_heads, select_indptr[-1]] that `scores` do not give."""
    expected = scene.page_ids(scores).cpu()
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
            own = scores[head, scene.starts[request] : scene.starts[request + 1]].tolist()
            raise _wrong_ids(scene, request, head, row, right, own)


def _wrong_ids(
    scene: Scene, request: int, head: int, row: list[int], right: list[int], scores: list[float]
) -> FaultError:
    """How the ids `row` differ from `right`, and the first page that does."""
    at = next(i for i, (a, b) in enumerate(zip(row, right, strict=True)) if a != b)
    pages, missing = scene.cache.num_pages[request], [page for page in right if page not in row]
    repeated = next((page for i, page in enumerate(row) if page in row[:i] and page != -1), None)
    outside = next((page for page in row if not 0 <= page < pages), None)
    fix = f"The {len(right)} best pages in ascending order; equal scores go to the lower page."
    if set(row) == {-1}:
        why = f"no page was written: page_ids holds -1 alone, not {right}"
        return FaultError(why, fix, Place(request, head, right[0]))
    if sorted(row) == right:
        return FaultError(
            f"the right pages in another order, {row}", "Write them ascending.", Place(request, head, row[at])
        )
    if repeated is not None:
        why = f"page {repeated} was selected twice: {row}, not {right}"
        return FaultError(why, fix, Place(request, head, repeated))
    if outside is not None:
        why = f"page {outside} was selected of {count(pages, 'page')}: {row}, not {right}"
        return FaultError(why, "Ids are logical pages of the request, from 0.", Place(request, head, outside))
    if scene.setting.take_tail and missing[-1] == pages - 1:
        why = f"the tail page {pages - 1} was not selected: {row}, not {right}"
        return FaultError(
            why, "With take_tail the last page is always among the K.", Place(request, head, pages - 1)
        )
    others = [page for page in row if page not in right]
    tied = next(((a, b) for a in missing for b in others if scores[a] == scores[b]), None)
    page, why = missing[0], f"page {missing[0]} was not selected: {row}, not {right}"
    if tied:
        page, why = tied[0], f"pages {tied[0]} and {tied[1]} score alike, and {tied[1]} was selected: {row}"
    return FaultError(why, fix, Place(request, head, page))

"""Stages `append` and `append_kv`: new tokens where they belong, right boxes, and nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from questprof.backends.user import StageSet
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.launches import Launcher
from questprof.kernelcheck.turns import Outcome, turns

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene


@dataclass(frozen=True)
class _New:
    """New tokens, other ones a turn, and the physical pages and slots that they belong in."""

    turns: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    new_indptr: torch.Tensor
    pages: torch.Tensor
    slots: torch.Tensor


def check_append(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """New tokens where they belong, the boxes of their pages (as they were, of `append_kv`), no more."""
    new = _make_room(scene)
    contents = _contents(scene)
    for name in ("k", "v"):
        contents[name][new.pages, :, new.slots] = float("nan")
    before = {name: tensor.clone() for name, tensor in contents.items()}
    keys, values = (tensor.clone() for tensor in new.turns[0])

    def reset() -> None:
        for name, tensor in contents.items():
            tensor.copy_(before[name])

    def renew(turn: int) -> None:
        keys.copy_(new.turns[turn][0])
        values.copy_(new.turns[turn][1])

    def judge() -> None:
        for name, given in (("k", keys), ("v", values)):
            expected = before[name].clone()
            expected[new.pages, :, new.slots] = given
            _judge_storage(scene, name, expected)
        if stage == "append":
            _judge_boxes(scene)
        _judge_other_boxes(scene, before["boxes"], own=stage != "append")

    launcher = Launcher(
        stages,
        stage,
        scene,
        {},
        lambda _: ((scene.cache, keys, values, new.new_indptr), {}),
        {"keys": keys, "values": values, "new_indptr": new.new_indptr},
        reset,
    )
    return turns(scene, judge, launcher, renew)


def _make_room(scene: Scene) -> _New:
    """Take the newest tokens of every request out, many and one by turns, and make room for as many new."""
    import torch

    from questprof.policies import newest_slots
    from questprof.workload import new_tokens

    cache, several = scene.cache, scene.cache.pool.page_size + 1
    counts = [min(length, several if r % 2 == 0 else 1) for r, length in enumerate(cache.seq_lens)]
    for request, count in enumerate(counts):  # the block table is full: as many tokens leave first
        cache.roll_back(request, count)
    generator = torch.Generator(device=cache.pool.device).manual_seed(scene.setting.seed + 1)
    new_indptr = cache.extend(counts)
    every = tuple(new_tokens(cache.pool, sum(counts), generator) for _ in scene.queries)
    return _New(every, new_indptr, *newest_slots(cache, counts))


def _contents(scene: Scene) -> dict[str, torch.Tensor]:
    pool = scene.cache.pool
    return {"k": pool.k, "v": pool.v, "boxes": pool.summary.data}


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
    """The boxes of every page of every request are those of its keys."""
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


def _judge_other_boxes(scene: Scene, before: torch.Tensor, *, own: bool) -> None:
    """Boxes that no request owns are as they were; with `own` the requests' as well."""
    from questprof.kernelcheck.guarded import bits

    wrong = bits(scene.cache.pool.summary.data) != bits(before)
    for request, page, index in _own_boxes(scene):
        if own and bool(wrong[index].any()):
            why = "it changed the box of a page, which is append's to write"
            raise FaultError(why, "append_kv writes K and V alone.", Place(request, 0, page))
        wrong[index] = False
    if bool(wrong.any()):
        at = ", ".join(str(int(i)) for i in wrong.nonzero()[0])
        why = f"it wrote into pool.summary.data at [{at}], a box of no page of a request"
        fix = "Boxes lie by physical page (paired), or by summary_table and logical page (transposed)."
        raise FaultError(why, fix)


def _own_boxes(scene: Scene) -> Iterator[tuple[int, int, Any]]:
    """(request, logical page, index into the summary) of every box that belongs to a page of a request."""
    cache, summary = scene.cache, scene.cache.pool.summary
    for request in range(cache.batch_size):
        for page, physical in enumerate(cache.physical_pages(request)):
            if summary.layout == "paired":
                yield request, page, (physical,)
            else:
                block = cache.summary_blocks(request)[summary.block_of(page)]
                yield request, page, (block, ..., page % summary.data.shape[-1])

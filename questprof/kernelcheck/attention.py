"""Whether attention over given pages is right, row by row, and which page it is wrong about.

The page is found by experiment: with V all zeros but a one in a dimension of each (KV head, page), the output
of a row is the weight that the kernel gave to every page, beside those of float64 attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from questprof.checks import distance, expected_attention, rounding_floor
from questprof.kernelcheck.findings import FaultError, Place

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene

IDS = "Ids are logical pages; block_table maps them, and head // group is the KV head."
ONCE = "Every page counts once: look at the last tile of the loop, at splits and at their merge."
SCALE = "A logit is q . k times head_dim ** -0.5; where exp2 takes it, times log2(e) as well."
TOKENS = "The tokens of a page count alike: look at slots, masks and the running maximum."
WHOLE = "No page is at fault alone: look at V, at the normalisation and at the dtype of out."
TWICE = 0.05
"""How far from two a page's weight may be, beside the others', that counts as taken twice."""
STEEPEST = 64.0
"""Logits up to so many times too large or too small are told from other faults."""
EXPLAINED = 0.1
"""Of the difference of the weights, what other logits may leave where they are its cause."""
Row = tuple[int, int]
Pages = Mapping[Row, "list[int] | None"]
"""Logical pages of every row; None: all."""
NOTICED = 0.02
"""Share of a row's largest page weight from which on a difference is one of the kernel, not of rounding."""


@dataclass
class Result:
    """What a launch left, on the CPU, and the pages that it is to be judged over."""

    out: torch.Tensor
    lse: torch.Tensor | None
    unwritten: torch.Tensor
    lse_unwritten: torch.Tensor | None
    pages: Pages


Launch = Callable[[], Result]


@dataclass(frozen=True)
class Accuracy:
    """The worst row's error, and what is allowed."""

    error: float
    tolerance: float


def judge(scene: Scene, result: Result, launch: Launch) -> Accuracy:
    """The accuracy of right attention; FaultError, with its place, of wrong. `launch` launches it again."""
    expected, accuracy = _expected(scene, result)
    for row in scene.rows:
        if bool(result.unwritten[row].any()):
            dim = int(result.unwritten[row].int().argmax())
            raise FaultError(
                f"out was not written (from dimension {dim} on)", "Write every row of out.", Place(*row)
            )
        if not distance(result.out[row], expected[row][0]) <= accuracy.tolerance:
            raise _fault(scene, row, result, expected, accuracy.tolerance, launch)
    _judge_lse(scene, result, expected)
    return accuracy


def errors(scene: Scene, result: Result) -> float:
    """The worst row's distance from the attention over its pages; inf for a NaN."""
    return _expected(scene, result)[1].error


Expected = dict[Row, tuple["torch.Tensor", float]]


def _expected(scene: Scene, result: Result) -> tuple[Expected, Accuracy]:
    bound, expected = scene.bound(), {}
    eager = worst = 0.0
    for row in scene.rows:
        found = expected_attention(bound, *row, result.pages[row], scene.q[row].cpu())
        assert found is not None
        expected[row] = (found.out, found.lse)
        eager = max(eager, found.eager_error)
        worst = max(worst, distance(result.out[row], found.out))
    return expected, Accuracy(worst, 2 * eager + rounding_floor(scene.q.dtype))


def _judge_lse(scene: Scene, result: Result, expected: Expected) -> None:
    import torch

    if result.lse is None or result.lse_unwritten is None:
        return
    for row in scene.rows:
        if bool(result.lse_unwritten[row]):
            raise FaultError("lse was not written", "Write lse, or leave it out of decode.", Place(*row))
        ours, right = float(result.lse[row]), expected[row][1]
        allowed = (1e-3 if scene.q.dtype != torch.float32 else 1e-5) * max(1.0, abs(right))
        if not abs(ours - right) <= allowed:
            base = " (that is its base-2 logarithm)" if abs(ours * 0.6931472 - right) <= allowed else ""
            why = f"lse is {ours:.5g}, float64 says {right:.5g}{base}"
            fix = "lse is the natural logarithm of the sum of exp(scaled logits)."
            raise FaultError(why, fix, Place(*row))


def _fault(
    scene: Scene, row: Row, result: Result, expected: Expected, tolerance: float, launch: Launch
) -> FaultError:
    """Why `row` is wrong, as far as relaunching tells."""
    if not bool(result.out[row].isfinite().all()):
        with finite(scene):
            again = launch()
        repaired = distance(again.out[row], expected[row][0]) <= tolerance
        if repaired:
            place = Place(*row, scene.cache.num_pages[row[0]] - 1)
            why = "NaN from beyond the last token reached out: slots behind last_page_len hold nothing"
            return FaultError(why, "Mask keys and values by last_page_len: 0 times NaN is NaN.", place)
    other = next(
        (o for o in scene.rows if o != row and distance(result.out[row], expected[o][0]) <= tolerance), None
    )
    page, said, fix = _page(scene, row, result.pages[row], launch)
    off = distance(result.out[row], expected[row][0])
    why = f"out is off by {off:.2g} of its norm, {tolerance:.1e} is allowed"
    if not bool(result.out[row].isfinite().all()):
        why = "out holds NaN or infinity"
    if other is not None:
        why = f"out holds the result of request {other[0]}, head {other[1]}"
        fix = "Rows of out are [request, query head]; the KV head is head // group."
        return FaultError(why, fix, Place(*row, page))
    why += f": {said}" if said else ""
    return FaultError(why, fix, Place(*row, page))


Cause = tuple[int | None, str, str]
"""The first page whose weight is wrong (None: no single one), how it is wrong, and what to do."""


def _page(scene: Scene, row: Row, pages: list[int] | None, launch: Launch) -> Cause:
    """What is wrong with the weights of `row`, as a launch over one-hot values shows them."""
    import torch

    request, head = row
    total = scene.cache.total_pages
    if total * scene.cache.pool.num_kv_heads > scene.q.shape[-1]:
        return None, "", WHOLE
    right = page_weights(scene, row, pages)
    with _marked(scene):
        weights = launch().out[row].double()
    first = scene.kv_head(head) * total + scene.starts[request]
    last = first + scene.cache.num_pages[request]
    own = weights[first:last]
    if not bool(weights.isfinite().all()):
        return None, "", WHOLE
    astray = torch.cat([weights[:first], weights[last:]])
    noticed = NOTICED * float(right.max())
    if float(astray.abs().max()) > noticed:
        return _first_off(own, right, noticed), "it read pages of another KV head or request", IDS
    page = _first_off(own, right, noticed)
    if page is not None and (times := _steeper(scene, row, pages, own, right)):
        said = f"{_weighs(page, own, right)}; all weigh as if logits were {times:.3g} times as large"
        return page, said, SCALE
    return _page_of(own, right, noticed)


def _weighs(page: int, own: torch.Tensor, right: torch.Tensor) -> str:
    return f"page {page} weighs {float(own[page]):.3g} there, float64 says {float(right[page]):.3g}"


def _steeper(
    scene: Scene, row: Row, pages: list[int] | None, own: torch.Tensor, right: torch.Tensor
) -> float | None:
    """The factor on all logits that gives the weights `own`, which are not `right`; None where none does."""
    import torch

    factors: list[float] = torch.logspace(-1, 1, 361, base=STEEPEST).tolist()  # each 2.3 % above the last
    apart = [float((page_weights(scene, row, pages, times) - own).abs().max()) for times in factors]
    least = min(range(len(factors)), key=apart.__getitem__)
    explains = apart[least] <= min(NOTICED, EXPLAINED * float((right - own).abs().max()))
    return factors[least] if explains else None


def _page_of(own: torch.Tensor, right: torch.Tensor, noticed: float) -> Cause:
    """The first page that was left out or read in vain; else that weighs otherwise than the rest.

    A page left out makes all others heavier, by the same factor: that alone names no page.
    """
    for page, (ours, wanted) in enumerate(zip(own.tolist(), right.tolist(), strict=True)):
        if wanted == 0 and abs(ours) > noticed:
            return page, f"page {page} was read, which is not among its pages", IDS
        if wanted > noticed and ours == 0:
            return page, f"page {page} was left out", ONCE
    held = right > noticed
    factor = float((own[held] / right[held]).median())
    if (off := _first_off(own, right * factor, noticed)) is not None:
        said = _weighs(off, own, right)
        if abs(float(own[off] / (right[off] * factor)) - 2) <= TWICE:
            return off, f"{said}: twice as much beside the others", ONCE
        return off, said, TOKENS
    said = f"every weight is {factor:.3g} times what it should be" if abs(factor - 1) > NOTICED else ""
    return None, said, WHOLE


def _first_off(own: torch.Tensor, right: torch.Tensor, noticed: float) -> int | None:
    off = ((own - right).abs() > noticed).nonzero().flatten()
    return int(off[0]) if len(off) else None


def page_weights(scene: Scene, row: Row, pages: list[int] | None, times: float = 1.0) -> torch.Tensor:
    """Softmax weight of every logical page of a row in attention over `pages`, float64 [num_pages].

    Of logits `times` as large as they should be.
    """
    import torch
    from questprof_kernels import reference

    request, head = row
    weights = torch.zeros(scene.cache.num_pages[request], dtype=torch.float64)
    chosen = list(range(len(weights))) if pages is None else pages
    q = scene.q[row].cpu().double() * (scene.q.shape[-1] ** -0.5 * times)
    logits = [reference.gather(scene.cache, request, scene.kv_head(head), [page])[0] @ q for page in chosen]
    shares = torch.cat(logits).softmax(0).split([len(part) for part in logits])
    for page, share in zip(chosen, shares, strict=True):
        weights[page] += share.sum()
    return weights


@contextmanager
def _marked(scene: Scene) -> Iterator[None]:
    """V as one-hot rows meanwhile, in dimension KV head * total_pages + flat logical page; K without NaN."""
    pool, total = scene.cache.pool, scene.cache.total_pages
    with kept(scene):
        pool.k.nan_to_num_(0.0)
        pool.v.fill_(0)
        for request, start in enumerate(scene.starts[:-1]):
            for page, physical in enumerate(scene.cache.physical_pages(request)):
                for kv_head in range(pool.num_kv_heads):
                    pool.v[physical, kv_head, :, kv_head * total + start + page] = 1
        yield


@contextmanager
def finite(scene: Scene) -> Iterator[None]:
    """K and V without NaN meanwhile."""
    with kept(scene):
        scene.cache.pool.k.nan_to_num_(0.0)
        scene.cache.pool.v.nan_to_num_(0.0)
        yield


@contextmanager
def kept(scene: Scene) -> Iterator[None]:
    """K and V as they are now, again afterwards."""
    pool = scene.cache.pool
    k, v = pool.k.clone(), pool.v.clone()
    try:
        yield
    finally:
        pool.k.copy_(k)
        pool.v.copy_(v)

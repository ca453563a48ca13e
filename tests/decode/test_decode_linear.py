"""Choosing among variants of a product: right ones only, the fastest of them, refusals told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from questprof_kernels import cuda_module, decode_gemv_cuda, decode_torch, int4

from questprof.decode import linear
from questprof.decode.linear import Task, choose
from questprof.decode.variants import Stored, Variant, variants
from questprof.errors import QuestprofError
from questprof.model import CACHE_MULTIPLE


def task(**changes: Any) -> Task:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(24, 128, generator=generator) / 11
    x = torch.randn(2, 128, generator=generator)
    fields = {"stored": Stored(weights), "x": x, "out": torch.empty(2, 24), "weight_bytes": 24 * 512}
    return Task("qkv", **{**fields, **changes})


def variant(name: str, seconds: float, factor: float = 1.0) -> Variant:
    def product(x: torch.Tensor, kept: Any, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        time.sleep(seconds)
        torch.mm(x, kept[0].t() * factor, out=out)

    return Variant(name, lambda stored: (stored.weights,), product)


def refuse(x: torch.Tensor, kept: Any, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    raise ValueError("not on this machine")


def test_the_fastest_right_one_is_chosen_and_the_others_are_told() -> None:
    wrong = variant("wrong", 0.0, 1.001)
    silent = Variant("silent", lambda stored: (), lambda *_: None)  # leaves what was in out
    refusing = Variant("refusing", lambda stored: (), refuse)
    slow, fast = variant("slow", 0.01), variant("fast", 0.001)
    chosen, found = choose(task(), [wrong, silent, refusing, slow, fast], 0)
    assert chosen is fast
    told = {choice.variant: choice for choice in found}
    assert [name for name, choice in told.items() if choice.chosen] == ["fast"]
    assert told["wrong"].reason.startswith("wrong: its error is")
    assert told["silent"].reason.startswith("wrong: its error is nan")
    assert told["refusing"].reason == "ValueError: not on this machine"
    assert (told["slow"].us or 0) > 10_000 > (told["fast"].us or 0) > 1000
    assert told["fast"].gb_s == pytest.approx(24 * 512 / (told["fast"].us or 0) / 1e3)


def test_a_small_kernel_before_a_product_is_taken_off_and_spoils_no_later_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 launches of 2 us before as many products of 5 us: 5 us a product."""

    def replays(launches: Sequence[Callable[[], None]]) -> float:
        for launch in launches:
            launch()
        return sum(2.0 if launch.func is norm else 5.0 for launch in launches)

    def norm(x: torch.Tensor) -> None:
        x.fill_(7.0)

    monkeypatch.setattr(linear, "_replays", replays)
    monkeypatch.setattr(linear, "_median_us", linear._median_us_cuda)
    candidates = [variant("first", 0.0), variant("second", 0.0)]
    _, found = choose(task(before=norm), candidates, 60 * 24 * 512 // CACHE_MULTIPLE)
    assert [(choice.reason, choice.us) for choice in found] == [("", 5.0), ("", 5.0)]


@pytest.mark.parametrize("together", [2.0, 1.9])
def test_a_product_lost_in_the_scatter_of_what_runs_before_it_is_timed_alone(
    together: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before takes 2 us alone and no more (or less) with the product, which takes 0.5 us alone."""

    def replays(launches: Sequence[Callable[[], None]]) -> float:
        launches[-1]()
        kinds = {launch.func is norm for launch in launches}
        each = together / 2 if len(kinds) == 2 else 2.0 if True in kinds else 0.5
        return each * len(launches)

    def norm(x: torch.Tensor) -> None:
        x.fill_(7.0)

    monkeypatch.setattr(linear, "_replays", replays)
    monkeypatch.setattr(linear, "_median_us", linear._median_us_cuda)
    _, found = choose(task(before=norm), [variant("small", 0.0)], 0)
    assert [(choice.us, choice.gb_s) for choice in found] == [(0.5, 24 * 512 / 0.5 / 1e3)]


def test_no_right_one_is_an_error_with_every_reason() -> None:
    with pytest.raises(QuestprofError, match=r"worse: wrong: .*; refusing: ValueError"):
        choose(task(), [variant("worse", 0.0, 2.0), Variant("refusing", lambda _: (), refuse)], 0)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("weight_format", ["fp32", "int4"])
def test_every_variant_of_a_cpu_is_right(weight_format: str, gated: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(64, 256, generator=generator) / 16
    bias = None if gated else torch.randn(64, generator=generator)
    stored = Stored(weights, bias=bias)
    if weight_format == "int4":
        stored = Stored(None, *int4.quantise(weights), bias)
    x = torch.randn(3, 256, generator=generator)
    todo = Task(
        "gate_up", stored, x, torch.empty(3, 32 if gated else 64), 1, decode_torch.swiglu if gated else None
    )
    candidates = variants(weight_format, "cpu", 3, gated=gated, dependent=False)
    _, found = choose(todo, candidates, 0)
    assert [choice.reason for choice in found] == [""] * (2 if weight_format == "int4" else 1)
    exact, allowed = todo.expected()
    plain = x.double() @ stored.dequantised(torch.float64).t()
    if gated:
        gate, up = plain.chunk(2, dim=1)
        plain = gate * torch.sigmoid(gate) * up
    else:
        plain = plain + bias.double()  # type: ignore[union-attr]
    assert torch.allclose(exact, plain, rtol=0, atol=1e-12)
    assert 0 < allowed < 1e-4


@pytest.mark.parametrize(("num_rows", "passes"), [(8, [8]), (9, [8, 1]), (32, [8, 8, 8, 8])])
def test_more_rows_than_a_gemv_takes_go_over_int4_weights_in_passes(
    num_rows: int, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def gemv_int4(x: Any, packed: Any, scales: Any, bias: Any, out: Any, plan: Any, **_: Any) -> None:
        seen.append(len(x))
        assert x.is_contiguous()
        weights = int4.dequantise(numbers, scales, torch.float32)
        out.copy_(x.float() @ weights.t())

    monkeypatch.setattr(decode_gemv_cuda, "gemv_int4", gemv_int4)
    monkeypatch.setattr(cuda_module, "is_available", lambda: True)
    numbers, scales = int4.quantise(torch.randn(64, 256, generator=torch.Generator().manual_seed(1)) / 16)
    x = torch.randn(num_rows, 256, generator=torch.Generator().manual_seed(2)).half()
    candidates = variants("int4", "cuda", num_rows, gated=False, dependent=False)
    own = next(candidate for candidate in candidates if candidate.name == decode_gemv_cuda.INT4_PLANS[0].name)
    todo = Task("out_proj", Stored(None, numbers, scales), x, torch.empty(num_rows, 64).half(), 1)
    _, (choice,) = choose(todo, [own], 0)
    assert choice.reason == ""
    assert seen[: len(passes)] == passes


def test_what_passes_would_read_too_often_is_left_to_torch() -> None:
    assert [v.name for v in variants("int4", "cuda", 33, gated=False, dependent=False)] == ["torch int4pack"]
    assert [v.name for v in variants("fp16", "cuda", 9, gated=False, dependent=False)] == ["torch"]

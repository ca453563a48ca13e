"""The roofs of a GPU as far as they can be tried without one: kernels interpreted, clocks replaced."""

from __future__ import annotations

import pytest
import torch

from questprof.roofline import roofs_cuda

KIB = 1 << 10


def test_reads_and_copies_make_passes_of_the_asked_bytes(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """32 KiB, 64 KiB a launch: two passes; every launch runs, and the copy's halves end up equal."""
    monkeypatch.setattr(roofs_cuda, "SAMPLE_BYTES", 64 * KIB)
    words = torch.arange(8 * KIB, dtype=torch.int32, device=device)
    before = words.clone()
    reads = list(roofs_cuda._reads(words))
    assert len(reads) >= 3
    for _, passes, launch in reads:
        assert passes == 2
        launch()
    assert torch.equal(words, before)
    names = []
    for name, passes, launch in roofs_cuda._copies(words, 16 * KIB):
        words.copy_(before)
        launch()
        assert torch.equal(words[: 4 * KIB], before[: 4 * KIB])
        assert torch.equal(words[4 * KIB :], before[: 4 * KIB])
        names.append((name, passes))
    assert names[-1] == ("the driver's copy", 1)
    assert "the driver's copy" not in [name for name, *_ in roofs_cuda._copies(words, 32 * KIB)]


def test_the_fastest_candidate_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB, 8 passes in 4 us a launch: 0.5 us a pass, 2097 GB/s; 1 pass in 1 us is slower."""
    asked: list[tuple[str, int, int]] = []

    def slow() -> None: ...
    def fast() -> None: ...

    def samples(launch, launches: int, rounds: int) -> list[float]:
        asked.append((launch.__name__, launches, rounds))
        return [{"slow": 1.0, "fast": 4.0}[launch.__name__]] * rounds

    monkeypatch.setattr(roofs_cuda, "graph_samples", samples)
    found = roofs_cuda._fastest("read", 1 << 20, iter([("slow", 1, slow), ("fast", 8, fast)]))
    assert found.name == "fast"
    assert found.samples_gb_s == pytest.approx([(1 << 20) / 0.5 / 1e3] * roofs_cuda.ROUNDS)
    assert asked[0] == ("slow", 4096, roofs_cuda.TRIALS)  # 4 GiB a sample
    assert asked[-1] == ("fast", 512, roofs_cuda.ROUNDS)


def test_a_product_is_worked_out_from_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 16^3 = 8192 operations in 2 us: 0.004096 TFLOP/s; the precision is as it was afterwards."""
    precisions = []

    def clock(launch, launches: int) -> float:
        launch()
        precisions.append(torch.get_float32_matmul_precision())
        return 2.0

    monkeypatch.setattr(roofs_cuda, "event_us", clock)
    before = torch.get_float32_matmul_precision()
    found = roofs_cuda._product("fp32", torch.float32, "CUDA cores", 16, "cpu")
    assert (found.flops, found.dtype, found.size) == (8192, "fp32", "16 x 16 x 16")
    assert found.samples_tflop_s == pytest.approx([0.004096] * roofs_cuda.PRODUCT_ROUNDS)
    assert set(precisions) == {"highest"}
    assert torch.get_float32_matmul_precision() == before


def test_what_a_chip_cannot_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(roofs_cuda, "_product", lambda dtype, *_: dtype)
    absent: list[tuple[str, str]] = []
    assert list(roofs_cuda._flop_rates(absent)) == ["fp16", "fp32"]
    assert [what for what, _ in absent] == ["bf16 rate", "tf32 rate"]


def test_products_that_do_not_fit_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(roofs_cuda, "_product", refuse)
    absent: list[tuple[str, str]] = []
    assert list(roofs_cuda._flop_rates(absent)) == []
    assert len(absent) == 4
    assert "do not fit" in absent[0][1]


def test_launches_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs_cuda, "EMPTY_LAUNCHES", 3)
    monkeypatch.setattr(roofs_cuda, "graph_samples", lambda launch, launches, rounds: [0.5] * rounds)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    node = roofs_cuda._graph_node()
    assert (node.samples_us, node.kind) == ((0.5,) * roofs_cuda.EMPTY_ROUNDS, "graph node")
    eager = roofs_cuda._eager()
    assert eager.kind == "eager"
    assert len(eager.samples_us) == roofs_cuda.EMPTY_ROUNDS
    assert min(eager.samples_us) > 0

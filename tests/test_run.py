"""What a sweep says before it measures."""

import os
from types import SimpleNamespace

import pytest

from questprof import run
from questprof.run import default_backends


@pytest.mark.parametrize(
    ("load", "device", "warns"),
    [(1.5, "cpu", True), (1.4, "cpu", False), (0.0, "cpu", False), (9.0, "cuda", False)],
)
def test_other_work_on_the_cpu_is_warned_of(
    load: float, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads: three quarters of them busy are a load average of 1.5."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    said = run._busy(SimpleNamespace(device=device, num_workers=2))  # type: ignore[arg-type]
    assert bool(said) == warns
    assert f"load average {load}" in said or not warns


@pytest.mark.parametrize(
    ("device", "installed", "expected"),
    [
        ("cpu", ("flashinfer",), "questprof,sdpa"),
        ("cuda", (), "questprof,sdpa,sdpa-cudnn"),
        ("cuda", ("flashinfer",), "questprof,sdpa,sdpa-cudnn,flashinfer,flashinfer-tc"),
        ("cuda", ("flash_attn_interface",), "questprof,sdpa,sdpa-cudnn,fa3"),
    ],
)
def test_the_default_baselines_are_those_that_can_run(
    device: str, installed: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: name if name in installed else None)
    assert default_backends(device) == expected  # type: ignore[arg-type]

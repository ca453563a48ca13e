"""docs/kernels.md holds: its example passes its check, and its tables name all that the interface has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from questprof.backends.user import OTHERS
from questprof.backends.user_launch import ARGUMENTS, OFFERED, call_of
from questprof.kernelcheck.findings import Order, Setting, StageFinding
from questprof.kernelcheck.run import check_stages

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
SETTING = Setting(4, 2, 64, "fp16", "fp16", 8, "paired", take_tail=True)


def test_its_triton_example_is_right(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code) == 1
    source = tmp_path / "documented_kernel.py"
    source.write_text(code[0])
    order = Order(f"{source}:stages", "cuda" if device == "cuda" else "cpu", (SETTING,))
    (found,) = (finding for finding in check_stages(order) if isinstance(finding, StageFinding))
    assert (found.stage, found.status) == ("score", "pass"), found


def test_it_names_every_function_as_it_is_called() -> None:
    for stage in ARGUMENTS:
        assert stage == "append_kv" or f"`{call_of(stage)}`" in PAGE, stage
    for name in (*OFFERED, *OTHERS):
        assert f"`{name}" in PAGE, name


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)\s]+\.(?:md|py))\)", PAGE)
    assert targets
    for target in targets:
        assert (Path(__file__).parents[2] / "docs" / target).exists(), target

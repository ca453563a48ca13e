"""The worked example of docs/kernels.md: as it is where FlashInfer is, elsewhere over a stand-in for it."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from questprof.backends import user
from questprof.kernelcheck.findings import Order, Setting, StageFinding
from questprof.kernelcheck.run import check_stages

IS_THERE = torch.cuda.is_available() and find_spec("flashinfer") is not None
FILE = Path(__file__).parents[2] / "examples" / "flashinfer_kernel.py"
GROUPED = Setting(4, 2, 64, "fp16", "fp16", 16, "paired", take_tail=True)
OPEN = Setting(2, 2, 128, "bf16", "bf16", 8, "paired", take_tail=False)


class Wrapper:
    """Paged decode as FlashInfer documents it: HND pages, planned on the host, lse in base 2."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str, **options: Any) -> None:
        assert (kv_layout, options["use_cuda_graph"]) == ("HND", True)
        names = ("indptr", "indices", "last_page_len")
        self.tables = [options[f"paged_kv_{name}_buffer"] for name in names]
        self.planned = False

    def plan(
        self, indptr: Any, indices: Any, last: Any, heads: int, kv_heads: int, *_: Any, **kinds: Any
    ) -> None:
        assert indptr.device.type == last.device.type == "cpu"
        for table, given in zip(self.tables, (indptr, indices, last), strict=True):
            assert given.dtype == torch.int32
            table.copy_(given)
        self.group, self.planned = heads // kv_heads, True
        assert kinds["q_data_type"] == kinds["kv_data_type"]

    def run(
        self, q: torch.Tensor, pages: Any, *, out: torch.Tensor, lse: torch.Tensor, return_lse: bool
    ) -> None:
        assert self.planned
        assert return_lse
        indptr, indices, last = (table.tolist() for table in self.tables)
        for request, length in enumerate(last):
            used = indices[indptr[request] : indptr[request + 1]]
            tokens = (len(used) - 1) * pages[0].shape[2] + length
            k, v = (
                part[used].transpose(1, 2).flatten(0, 1)[:tokens].repeat_interleave(self.group, 1).float()
                for part in pages
            )
            logits = torch.einsum("hd,thd->ht", q[request].float(), k) * q.shape[-1] ** -0.5
            out[request] = torch.einsum("ht,thd->hd", logits.softmax(-1), v).to(out.dtype)
            lse[request] = logits.logsumexp(-1) / 0.6931471805599453


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> str:
    """The example's stages, over FlashInfer or over the stand-in."""
    if not IS_THERE:
        module = ModuleType("flashinfer")
        module.__dict__.update(__version__="0.6.3", BatchDecodeWithPagedKVCacheWrapper=Wrapper)
        monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.delitem(sys.modules, FILE.stem, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield f"{FILE}:stages"
    sys.modules.pop(FILE.stem, None)


def test_it_parses_and_is_documented_like_any_code_of_the_project() -> None:
    tree = ast.parse(FILE.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert {"prepare", "dense", "attend"} <= {function.name for function in functions}
    assert all(ast.get_docstring(function) for function in functions)


@pytest.mark.parametrize("setting", [GROUPED, OPEN])
def test_its_stages_agree_with_float64(source: str, setting: Setting) -> None:
    order = Order(source, "cuda" if IS_THERE else "cpu", (setting,))
    found = [finding for finding in check_stages(order) if isinstance(finding, StageFinding)]
    assert [(f.stage, f.status) for f in found] == [("attend", "pass"), ("dense", "pass")], found


def test_its_variant_names_the_version(source: str) -> None:
    stages = user.stage_set(source)
    assert stages.variant.startswith(f"{source} ")
    assert stages.prepare is not None

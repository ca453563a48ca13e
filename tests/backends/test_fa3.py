"""The FlashAttention-3 adapter against a stand-in that reads pages as its interface documents them."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType

import pytest
import torch
from dense_case import assert_holds, bound_to, point_of, shaped

from questprof.backends import load

CALLS: list[tuple[torch.Tensor, torch.Tensor]] = []


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
) -> torch.Tensor:
    """Over q [batch, 1, heads, dim] and pages [num_pages, page_size, kv_heads, dim]."""
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert page_table.dtype == cache_seqlens.dtype == torch.int32
    assert page_table.is_contiguous()
    CALLS.append((k_cache, v_cache))
    out = torch.empty_like(q)
    group = q.shape[2] // k_cache.shape[2]
    for request, length in enumerate(cache_seqlens.tolist()):
        pages = page_table[request, : -(-length // k_cache.shape[1])].long()
        k, v = (part[pages].flatten(0, 1)[:length].float() for part in (k_cache, v_cache))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        logits = torch.einsum("hd,thd->ht", q[request, 0].float(), k) * q.shape[-1] ** -0.5
        out[request, 0] = torch.einsum("ht,thd->hd", logits.softmax(-1), v).to(q.dtype)
    return out


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flash_attn_interface")
    module.__dict__["flash_attn_with_kvcache"] = flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    CALLS.clear()


@pytest.mark.usefixtures("installed")
def test_ragged_shuffled_pages_are_read_right_and_in_place() -> None:
    bound = bound_to(load("fa3", "cuda"))
    bound.steps[-1].launch()
    assert_holds(bound)
    ((k, v),) = CALLS
    assert (k.data_ptr(), v.data_ptr()) == (bound.cache.pool.k.data_ptr(), bound.cache.pool.v.data_ptr())


@pytest.mark.usefixtures("installed")
def test_the_variant_is_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("fa3", "cuda").variant(shaped()) == "flash-attn-3-unknown"
    monkeypatch.setattr(metadata, "version", lambda name: "3.0.0")
    assert load("fa3", "cuda").variant(shaped()) == "flash-attn-3-3.0.0"


@pytest.mark.usefixtures("installed")
def test_what_it_cannot_do_is_named() -> None:
    why_not = load("fa3", "cuda").why_not
    assert why_not(point_of()) is None
    assert "no kv_dtype fp32" in (why_not(shaped(kv_dtype="fp32")) or "")
    assert "no head_dim 320" in (why_not(shaped(head_dim=320)) or "")
    assert "empty" in (why_not(point_of((0, 16))) or "")


def test_a_missing_package_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    reason = load("fa3", "cuda").why_not(point_of()) or ""
    assert "no wheel on PyPI" in reason
    assert "flash-attention" in reason


def test_without_a_gpu_it_says_so() -> None:
    assert load("fa3", "cpu").why_not(point_of()) == "FlashAttention-3 needs a GPU: use --device cuda"

"""torch's scaled_dot_product_attention over contiguous K and V: dense baselines, never its math path.

`sdpa` is flash attention (on the CPU, torch's fused CPU kernel), `sdpa-cudnn` is cuDNN's. A kernel that
refuses a point says so at its first launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.model import Point
from questprof.units import KERNEL_DTYPES

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

KERNELS = {"sdpa": "FLASH_ATTENTION", "sdpa-cudnn": "CUDNN_ATTENTION"}
"""Backend name -> the one member of torch's SDPBackend that it may run on a GPU."""

GPU_DTYPES = ("fp16", "bf16")


@dataclass(frozen=True)
class Contiguous:
    """K and V as SDPA wants them: [batch_size, num_kv_heads, seq_len, head_dim] each."""

    k: torch.Tensor
    v: torch.Tensor


def load(device: str) -> Backend:
    """Flash attention on `cuda`, torch's fused kernel on `cpu`."""
    return _backend("sdpa", device)


def load_cudnn(device: str) -> Backend:
    """CuDNN's fused attention; only on `cuda`."""
    return _backend("sdpa-cudnn", device)


def _backend(name: str, device: str) -> Backend:
    variant = _variant(name, device)
    return Backend(
        name=name,
        variant=lambda _: variant,
        stages={"dense": partial(_dense_cuda, KERNELS[name]) if device == "cuda" else _dense},
        prepare=_prepare,
        scratch_floats={},
        why_not=partial(_why_not, name, device),
    )


def _variant(name: str, device: str) -> str:
    """Library and kernel: `torch-2.11.0-flash`, `torch-2.11.0-cudnn-9.10.2`, on the CPU `torch-2.11.0`."""
    import torch

    torch_version = f"torch-{torch.__version__}"
    if device == "cpu":
        return torch_version
    if name == "sdpa":
        return f"{torch_version}-flash"
    number = torch.backends.cudnn.version() or 0
    return f"{torch_version}-cudnn-{number // 10000}.{number // 100 % 100}.{number % 100}"


def _prepare(cache: PagedCache, _: torch.Tensor) -> Contiguous:
    return Contiguous(_contiguous(cache, cache.pool.k), _contiguous(cache, cache.pool.v))


def _contiguous(cache: PagedCache, storage: torch.Tensor) -> torch.Tensor:
    """Equal-length requests copied out of their pages, one request at a time."""
    import torch
    from questprof_kernels.cpu_memory import empty

    _, heads, _, dim = storage.shape
    length = cache.seq_lens[0]
    target: torch.Tensor = empty((cache.batch_size, heads, length, dim), storage.dtype, storage.device)
    for request in range(cache.batch_size):
        pages = torch.tensor(cache.physical_pages(request), device=storage.device)
        for head in range(heads):
            target[request, head] = storage[pages, head].reshape(-1, dim)[:length]
    return target


def _dense(q: torch.Tensor, cache: Contiguous, *_: Any) -> torch.Tensor:
    """Attention output [batch_size, num_qo_heads, head_dim]; SDPA allocates it."""
    import torch.nn.functional as functional

    grouped = q.shape[1] != cache.k.shape[1]
    out = functional.scaled_dot_product_attention(q.unsqueeze(2), cache.k, cache.v, enable_gqa=grouped)
    return out.squeeze(2)


def _dense_cuda(kernel: str, q: torch.Tensor, cache: Contiguous, *_: Any) -> torch.Tensor:
    """The same with `kernel` (a member of SDPBackend) alone allowed; RuntimeError where it cannot."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, kernel)):
        return _dense(q, cache)


def _why_not(name: str, device: str, point: Point) -> str | None:
    dtypes = GPU_DTYPES if device == "cuda" else KERNEL_DTYPES
    if name == "sdpa-cudnn" and device != "cuda":
        return "cuDNN needs a GPU: use --device cuda"
    if len(set(point.lengths)) > 1 or 0 in point.lengths:
        return "SDPA takes requests of one length only"
    if point.shape.kv_dtype not in dtypes:
        return f"{name} takes no kv_dtype {point.shape.kv_dtype} on {device}: {', '.join(dtypes)}"
    return None

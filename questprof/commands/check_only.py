"""What `sweep --check-only` does: each `--kernel` stage by stage against float64, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import typer

from questprof.errors import Exit, QuestprofError
from questprof.printable import printable
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.kernelcheck.findings import KernelFinding, Setting
    from questprof.model import Shape
    from questprof.sweep.settings import Device

SHAPES = ("llama-2-7b", "llama-3.1-8b")
"""Where no shape is asked for: query heads that share no KV head, and four that do."""
KV_HEADS = 2
"""KV heads of a check, where the shape has so many: enough to tell one from another."""


TAKEN = (
    *("check_only", "kernel", "preset", "shape", "heads", "kv_heads", "head_dim", "dtype", "summary_dtype"),
    *("page_sizes", "summary_layout", "policies", "device", "seed", "json"),
)
"""Parameters of a sweep that a check takes as well."""


def refuse_useless(typed: Mapping[str, str]) -> None:
    """QuestprofError for options, their spelling by parameter, that a check would leave unused."""
    useless = [spelling for name, spelling in typed.items() if name not in TAKEN]
    if useless:
        why = "a check times nothing, over small caches of its own"
        fix = f"Leave {'it' if len(useless) == 1 else 'them'} out, or --check-only."
        raise QuestprofError(f"{', '.join(useless)} with --check-only", why, fix)


def check_only(
    specs: Sequence[str],
    device: Device,
    shapes: Sequence[Shape],
    page_sizes: Sequence[int],
    layouts: Sequence[str],
    policies: Sequence[str],
    seed: int,
    *,
    json: bool,
) -> None:
    """Check every kernel set of `specs` ([NAME=]MODULE:OBJECT); exit status 1 unless all of them pass."""
    from questprof.backends import user
    from questprof.grid import check_pages
    from questprof.kernelcheck.findings import Order
    from questprof.kernelcheck.process import Patience, check_kernel

    if not specs:
        fix = "Add --kernel my_kernel.py:decode; `questprof init-kernel my_kernel.py` writes one."
        raise QuestprofError("--check-only", "there is no kernel to check", fix)
    check_pages([], page_sizes)
    chosen = settings(shapes, page_sizes, layouts, policies, device, seed)
    found: list[KernelFinding] = []
    for name, source in user.named(specs).items():
        try:
            found.append(check_kernel(name, Order(source, device, chosen), Patience(tell=_tell)))
        except KeyboardInterrupt:
            raise _interrupted(name, found, json) from None
    _show_json(found) if json else _show(found)
    if not all(kernel.passed for kernel in found):
        raise typer.Exit(Exit.CHECK_FAILED)


def settings(
    shapes: Sequence[Shape],
    page_sizes: Sequence[int],
    layouts: Sequence[str],
    policies: Sequence[str],
    device: Device,
    seed: int,
) -> tuple[Setting, ...]:
    """One setting a shape, page size, layout (none given: the faster for the shape) and policy, each once."""
    from questprof.grid import default_layout
    from questprof.kernelcheck.findings import Setting

    every = (
        Setting(
            num_qo_heads=min(KV_HEADS, shape.num_kv_heads) * shape.group_size,
            num_kv_heads=min(KV_HEADS, shape.num_kv_heads),
            head_dim=shape.head_dim,
            kv_dtype=shape.kv_dtype,
            summary_dtype=shape.effective_summary_dtype,
            page_size=page_size,
            summary_layout=layout,  # type: ignore[arg-type]
            take_tail=policy == "quest",
            seed=seed,
        )
        for shape, page_size, policy in product(dict.fromkeys(shapes), page_sizes, policies)
        for layout in layouts or (default_layout(shape, device),)
    )
    return tuple(dict.fromkeys(every))


def _interrupted(name: str, found: Sequence[KernelFinding], json: bool) -> typer.Exit:
    """The end of an interrupted check, which says so; what was found of other sets is shown."""
    if found and not json:
        _show(found)
    _tell(f"interrupted; {name} was not checked to the end")
    return typer.Exit(Exit.INTERRUPTED)


def _tell(text: str) -> None:
    """A line to the reader while a check takes its time."""
    print(printable(text), file=sys.stderr, flush=True)


def _show(found: Sequence[KernelFinding]) -> None:
    from questprof.kernelcheck.display import print_kernels
    from questprof.terminal import plain_console

    print_kernels(plain_console(), found)


def _show_json(found: Sequence[KernelFinding]) -> None:
    import msgspec

    kernels = [{**msgspec.to_builtins(kernel), "passed": kernel.passed} for kernel in found]
    document = {"passed": all(kernel.passed for kernel in found), "kernels": kernels}
    print_json(document)

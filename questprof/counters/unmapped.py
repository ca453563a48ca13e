"""Proof that attention leaves unselected pages alone: with their memory unmapped, it still runs.

No counter can see one page in thousands, but a GPU cannot read an address that is not mapped. The pages
that no query head selected are laid together, the granules that hold nothing else are unmapped, and attend
runs over the same page ids in a process of its own, which a touched page would end.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from questprof.counters import ncu_errors
from questprof.counters.ncu_process import execute
from questprof.counts import UnmappedProof
from questprof.model import Point
from questprof.structs import Struct
from questprof.units import format_bytes


class Task(Struct, frozen=True):
    """What the child is asked."""

    point: Point
    kernels: str = ""


class Placement(Struct, frozen=True):
    """Where pages lie, and which granules hold unselected ones alone."""

    order: tuple[int, ...]
    """Physical page of each page, pages counted through all requests in turn."""
    first_granule: int
    num_granules: int
    unselected: int


class Prepared(Struct, frozen=True, tag="prepared"):
    """Said by the child right before it unmaps."""

    granule_bytes: int
    unmapped_bytes: int
    """Of K and V together."""
    unselected_pages: int
    num_pages: int


class Finished(Struct, frozen=True, tag="finished"):
    """Said by the child at its end: '' when attend ran and gave what it gives on ordinary memory."""

    fault: str = ""


def place(selected: Iterable[int], num_pages: int, page_bytes: int, granule_bytes: int) -> Placement:
    """Selected pages first, the others behind them; the granules that hold no byte of a selected page.

    `selected`: page numbers in 0..num_pages - 1, counted through all requests in turn. The storage ends with
    a whole granule. ValueError for a page that is none.
    """
    chosen = sorted(set(selected))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < num_pages:
        raise ValueError(f"pages {chosen[0]} to {chosen[-1]} of {num_pages}")
    others = sorted(set(range(num_pages)).difference(chosen))
    order = [0] * num_pages
    for physical, page in enumerate((*chosen, *others)):
        order[page] = physical
    first = -(-len(chosen) * page_bytes // granule_bytes)
    end = -(-num_pages * page_bytes // granule_bytes)
    return Placement(tuple(order), first, max(0, end - first) if others else 0, len(others))


def selected_pages(
    page_ids: Sequence[Sequence[int]], select_indptr: Sequence[int], kv_indptr: Sequence[int]
) -> set[int]:
    """The pages that any query head selected, counted through all requests in turn.

    `page_ids` [num_qo_heads][select_indptr[-1]]: logical ids, those of request r from select_indptr[r] on.
    """
    found = set()
    for request, start in enumerate(kv_indptr[:-1]):
        span = slice(select_indptr[request], select_indptr[request + 1])
        found |= {start + page for row in page_ids for page in row[span]}
    return found


def prove(point: Point, *, kernels: str = "", timeout_s: float = 120.0) -> UnmappedProof:
    """Run the proof for `point` on this machine's GPU; `kernels` is a user's stage set or ''.

    `completed` tells whether attend ran without the unselected pages and gave the same. Otherwise `reason`
    says why: a touched page, or with `unmapped_bytes` 0 that nothing could be unmapped.
    """
    with tempfile.TemporaryDirectory(prefix="questprof-unmapped-") as folder:
        task = Path(folder, "task.json")
        task.write_bytes(msgspec.json.encode(Task(point, kernels)))
        command = [sys.executable, "-m", "questprof.counters.unmapped_worker", str(task)]
        output, code = execute(command, timeout_s, folder)
    return judged(output, code, timeout_s)


def judged(output: str, code: int | None, timeout_s: float) -> UnmappedProof:
    """The proof from what the child printed and its exit status; None when it was ended after `timeout_s`."""
    told = [line for text in output.splitlines() if (line := _decoded(text)) is not None]
    prepared = next((line for line in told if isinstance(line, Prepared)), None)
    finished = next((line for line in told if isinstance(line, Finished)), None)
    if prepared is None:
        fault = finished.fault if finished else ncu_errors.last_error(output)
        return UnmappedProof(0, 0, 0, completed=False, reason=f"could not be prepared: {fault}")
    if not prepared.unmapped_bytes:
        fault = (
            f"nothing to unmap: {prepared.unselected_pages} of {prepared.num_pages} pages are unselected and "
            f"fill no granule of {format_bytes(prepared.granule_bytes)}; take more tokens or fewer heads"
        )
    elif finished is None:
        ended = f"no end after {timeout_s:g} s" if code is None else f"the process ended with status {code}"
        fault = f"{ended}: {ncu_errors.last_error(output)}"
    else:
        fault = finished.fault
    return UnmappedProof(
        prepared.granule_bytes,
        prepared.unmapped_bytes,
        prepared.unselected_pages,
        completed=not fault,
        reason=_explained(fault),
    )


def _explained(fault: str) -> str:
    """`fault` with what it means, where that is known."""
    if "illegal" in fault and ("memory access" in fault or "address" in fault.lower()):
        return f"attend touched a page that no query head selected ({fault})"
    return fault


def _decoded(text: str) -> Prepared | Finished | None:
    try:
        return msgspec.json.decode(text, type=Prepared | Finished)
    except msgspec.DecodeError:
        return None

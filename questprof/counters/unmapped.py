"""Proof that attention leaves unselected pages alone: with their memory unmapped, it still runs.

No counter can see one page in thousands, but a GPU cannot read an address that is not mapped. One KV head and
its group of query heads get a cache whose selected pages fill the first granules of the pool; all others lie
behind them, in granules that are unmapped before attend runs over the same page ids, in a process of its own,
which a touched page would end. A page of all KV heads would be one that some head has selected, mostly.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from questprof.counters import ncu_errors
from questprof.counters.ncu_process import execute
from questprof.counts import UnmappedProof
from questprof.model import Point
from questprof.structs import Struct


class Task(Struct, frozen=True):
    """What the child is asked."""

    point: Point
    kernels: str = ""


class Placement(Struct, frozen=True):
    """Where pages lie, and which granules hold unselected ones alone."""

    order: tuple[int, ...]
    """Physical page of each page, pages counted through all requests in turn, then those of none."""
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


def spare_pages(page_bytes: int, granule_bytes: int) -> int:
    """Pages of no request that a pool needs, so that unselected pages can begin with a granule."""
    return -(-granule_bytes // page_bytes) + 1


def place(
    selected: Iterable[int], num_pages: int, pool_pages: int, page_bytes: int, granule_bytes: int
) -> Placement:
    """Selected pages first, the others from the next granule on, which hold no byte of a selected page.

    `selected`: page numbers in 0..num_pages - 1, counted through all requests in turn. The pool has
    `pool_pages`, at least `spare_pages` more; its storage ends with a whole granule. ValueError for a page
    that is none, and for too small a pool.
    """
    chosen = sorted(set(selected))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < num_pages:
        raise ValueError(f"pages {chosen[0]} to {chosen[-1]} of {num_pages}")
    others = sorted(set(range(num_pages)).difference(chosen))
    first = -(-len(chosen) * page_bytes // granule_bytes)
    start = -(-first * granule_bytes // page_bytes)
    if start + len(others) > pool_pages:
        raise ValueError(f"{pool_pages} pages of pool, {start + len(others)} needed")
    places = [*range(len(chosen)), *range(start, start + len(others))]
    order = dict(zip((*chosen, *others), places, strict=True))
    unused = sorted(set(range(pool_pages)).difference(places))
    end = -(-pool_pages * page_bytes // granule_bytes)
    in_turn = (*(order[page] for page in range(num_pages)), *unused)
    return Placement(in_turn, first, end - first if others else 0, len(others))


def one_group(point: Point) -> Point:
    """`point` with one KV head, and the query heads of its group."""
    shape = replace(point.shape, num_kv_heads=1, num_qo_heads=point.shape.group_size)
    return replace(point, shape=shape)


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
    """Run the proof for one KV head of `point` on this machine's GPU; `kernels` is a user's stage set or ''.

    `completed` tells whether attend ran without the unselected pages and gave the same. Otherwise `reason`
    says why: a touched page, or with `unmapped_bytes` 0 that nothing could be unmapped.
    """
    with tempfile.TemporaryDirectory(prefix="questprof-unmapped-") as folder:
        task = Path(folder, "task.json")
        task.write_bytes(msgspec.json.encode(Task(one_group(point), kernels)))
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
            f"nothing to unmap: {prepared.unselected_pages} of {prepared.num_pages} pages are unselected; "
            "take more tokens or a smaller budget"
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

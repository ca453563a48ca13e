"""Records of kind `bytes` whose counts are their ledger's, and the same with one mistake planted.

SHAPE of `profiles` has 2 KV heads of 64 dims in fp16: a vector is 128 bytes. At POINT 4096 tokens in pages
of 16 make P = 256 pages, of which K = 64 are selected:

    dense   K = V = 4096 tokens x 128 B x 2 heads = 1048576 B
    attend  K = V = 64 pages x 16 tokens x 128 B x 2 heads = 262144 B
    score   summary = 256 pages x 2 bounds x 128 B x 2 heads = 131072 B
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from profiles import GPU, SHAPE
from questprof.counts import Calibration, Entry, StageCount, TensorCount, UnmappedProof
from questprof.ledger import entries
from questprof.model import Point, Record, Shape

WORKERS = 4
POINT = Point(SHAPE, 4096, token_budget=1024)
KV, SELECTED, SUMMARY = 1048576, 262144, 131072
BIG = Point(Shape("big", 32, 32, 128), 65536, token_budget=4096)
"""K = V of dense: 65536 tokens x 256 B x 32 heads = 512 MiB; of 256 of 4096 pages: 32 MiB; summary 64 MiB."""
MIB = 1 << 20
STAGES = ("append", "score", "select", "attend", "dense")
CALIBRATED = Calibration("ncu", 256 * MIB, 256 * MIB + 40960)
PROVEN = UnmappedProof(2 * MIB, 512 * MIB, 3000, True)

Tensors = dict[str, TensorCount]


def ledger(point: Point = POINT, **options: Any) -> tuple[Entry, ...]:
    """The ledger of `point`, for a machine of WORKERS."""
    return entries(point, WORKERS, variant=options.pop("variant", "triton"), **options)


def tensors(found: tuple[Entry, ...], stage: str, point: Point = POINT) -> Tensors:
    """Counts by tensor that are the ledger's; what heads of a group read beside the union is read again."""
    visits = visited(point) if stage == "attend" else 0
    return {
        e.tensor: TensorCount(e.read_bytes, e.write_bytes, max(0, visits - e.read_bytes) if e.in_eq12 else 0)
        for e in found
        if e.stage == stage and (e.read_bytes or e.write_bytes)
    }


def visited(point: Point) -> int:
    """Bytes of K that all query heads read in attend: K pages each, less the empty slots of a tail page."""
    tokens = 0
    for length, pages, chosen in zip(point.lengths, point.num_pages, point.num_selected, strict=True):
        has_tail = chosen and (point.policy == "quest" or chosen == pages)
        tokens += chosen * point.page_size - (-length % point.page_size if has_tail else 0)
    return tokens * point.shape.num_qo_heads * point.shape.head_dim * 2


def stage_count(stage: str, counted: Mapping[str, TensorCount]) -> StageCount:
    """A traced stage whose totals are its tensors'."""
    read, write = (sum(getattr(c, side) for c in counted.values()) for side in ("read", "write"))
    return StageCount(stage, "trace", read, write, tensors=dict(counted))


def traced(
    point: Point = POINT,
    changes: Mapping[str, Mapping[str, TensorCount | None]] | None = None,
    union_ratio: float | None = None,
    sign_share: float | None = None,
    **record: Any,
) -> Record:
    """A record as a trace gives it; `changes` by stage and tensor replace its counts (None: not accessed)."""
    ratio = None if union_ratio is None else max(1.0, union_ratio)
    options = {"union_ratio": ratio, "sign_share": sign_share}
    found = ledger(point, **options)
    counts = []
    for stage in STAGES:
        own = {**tensors(found, stage, point), **(changes or {}).get(stage, {})}
        counts.append(stage_count(stage, {name: count for name, count in own.items() if count}))
    given = {"unselected_bytes": 0, "union_ratio": union_ratio, "sign_share": sign_share, "variant": "triton"}
    return _record(replace(point, variant="triton"), found, counts, given | record)


def measured(
    point: Point = BIG,
    reads: Mapping[str, int] | None = None,
    writes: Mapping[str, int] | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    pipelined: int | None = None,
    chain: bool = True,
    **record: Any,
) -> Record:
    """A record as hardware gives it; `reads`, `writes` add to what the ledger has of a stage.

    `pipelined` are the reads of the chain, by default the ledger's; `chain` False leaves it out.
    """
    found = ledger(point, variant="cuda")
    counts = []
    for stage in STAGES:
        own = [entry for entry in found if entry.stage == stage]
        read = sum(entry.read_bytes for entry in own) + (reads or {}).get(stage, 0)
        write = sum(entry.write_bytes for entry in own) + (writes or {}).get(stage, 0)
        own_metrics = dict((metrics or {}).get(stage, {}))
        counts.append(
            StageCount(stage, "ncu", read, write, kernels=(f"{stage}_kernel",), metrics=own_metrics)
        )
    if chain:
        own = [entry for entry in found if entry.stage == "quest"]
        read = chain_reads(point) if pipelined is None else pipelined
        write = sum(entry.write_bytes for entry in own) + (writes or {}).get("quest", 0)
        counts.append(StageCount("quest", "ncu", read, write, "pipelined", ("a", "b", "c")))
    given = {"counter_calibration": (CALIBRATED,), "variant": "cuda"}
    return _record(replace(point, variant="cuda"), found, counts, given | record)


def chain_reads(point: Point = BIG) -> int:
    """Isolated reads of score, select and attend by the ledger."""
    own = ledger(point, variant="cuda")
    return sum(e.read_bytes for e in own if e.stage in ("score", "select", "attend"))


def refused(point: Point = POINT, reason: str = "no ncu", **record: Any) -> Record:
    """A point that nothing could count."""
    return _record(point, ledger(point), (), {"status": "unavailable", "reason": reason} | record)


def _record(point: Point, found: Any, counts: Any, given: dict[str, Any]) -> Record:
    fields = {"status": "ok", "ledger": found, "counts": tuple(counts)} | given
    return Record("bytes", point, point.point_id, GPU.env_id, **fields)

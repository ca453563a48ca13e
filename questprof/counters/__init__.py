"""Two ways to count the bytes that the stages of a point really move, behind one interface.

`trace` runs the Triton kernels in the interpreter and records every address; `ncu` reads the hardware's
counters while the stages run on a GPU. Either takes points and yields one `Counted` a point; neither judges.
"""

from __future__ import annotations

from questprof.counters.statuses import CountStatus
from questprof.counts import Calibration, Source, StageCount, UnmappedProof
from questprof.structs import ByValue


class Counted(ByValue, frozen=True):
    """What one source says of one point; `reason` tells what `status` means, or why there are no counts.

    The real ids and queries give `union_ratio` and `sign_share`, with which the ledger is compared.
    """

    point_id: str
    source: Source
    variant: str = ""
    counts: tuple[StageCount, ...] = ()
    union_ratio: float | None = None
    sign_share: float | None = None
    unselected_bytes: int | None = None
    proof: UnmappedProof | None = None
    calibration: tuple[Calibration, ...] = ()
    status: CountStatus = "ok"
    reason: str = ""

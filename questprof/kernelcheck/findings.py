"""What checking a kernel is asked and what it says, as it goes from process to process and into JSON."""

from __future__ import annotations

from typing import Literal

from questprof.model import SummaryLayout
from questprof.structs import Struct
from questprof.units import count


class Setting(Struct, frozen=True):
    """The caches that a kernel is checked over: heads, page and dtype as they will be timed, few pages."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str
    summary_dtype: str
    page_size: int
    summary_layout: SummaryLayout
    take_tail: bool
    seed: int = 0

    @property
    def title(self) -> str:
        """In words."""
        kv_heads = f"{count(self.num_kv_heads, 'KV head')} of {self.head_dim}"
        heads = f"{count(self.num_qo_heads, 'query head')} over {kv_heads}"
        layout = f", {self.summary_layout} summary" * (self.summary_layout != "paired")
        policy = "" if self.take_tail else ", quest-open"
        return f"{heads}, {self.kv_dtype}, page {self.page_size}{layout}{policy}"


class Order(Struct, frozen=True):
    """One kernel set to check: `MODULE:OBJECT`, over each of the settings."""

    source: str
    device: Literal["cpu", "cuda"]
    settings: tuple[Setting, ...]


class Place(Struct, frozen=True):
    """Where a result differs first; `page` is logical, None where no single page is at fault."""

    request: int
    head: int
    page: int | None = None

    @property
    def words(self) -> str:
        """`request 1, head 3, page 7`."""
        page = "" if self.page is None else f", page {self.page}"
        return f"request {self.request}, head {self.head}{page}"


class StageFinding(Struct, frozen=True):
    """What one stage did over one setting."""

    stage: str
    setting: str
    status: Literal["pass", "fail", "approximate"]
    case: str = ""
    """The cache it failed on, in words."""
    why: str = ""
    fix: str = ""
    place: Place | None = None
    max_rel_err: float | None = None
    """The worst row's, of the outputs that have a tolerance; of an approximation, off dense attention."""
    tolerance: float | None = None
    allocations: int = 0
    """The most blocks of GPU memory that a launch allocated, which a graph keeps."""


class Brings(Struct, frozen=True):
    """The stages that a kernel set brings."""

    brings: tuple[str, ...]


class Began(Struct, frozen=True):
    """A stage whose launches come next: what a process that dies or hangs was at."""

    began: str
    setting: str
    case: str = ""


class Finished(Struct, frozen=True):
    """The last line: every stage was checked. A process that ends without it was ended by the kernel."""

    finished: bool


class KernelFinding(Struct, frozen=True):
    """All stages of one kernel set. `failure` is why there is no more, where something ended the check."""

    name: str
    source: str
    device: str
    stages: tuple[StageFinding, ...]
    borrowed: tuple[str, ...] = ()
    """Stages that the set leaves to the project."""
    failure: str = ""
    fix: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every stage ran and none failed."""
        return bool(self.stages) and not self.failure and all(stage.status != "fail" for stage in self.stages)


class FaultError(Exception):
    """A stage that does not do what the interface says, and where."""

    def __init__(self, why: str, fix: str, place: Place | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.place = place

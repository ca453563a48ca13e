"""The one data model: Point (what is asked), Record (what came out), Header (where and how).

All structs are frozen and omit defaults when encoded, so that a new field orphans no stored id.
Raw samples are stored; medians, ratios and verdicts are derived elsewhere in pure functions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import force_setattr, replace

from questprof.counts import ByteCount, Calibration, Entry, Source, StageCount, UnmappedProof
from questprof.decode.records import DecodeResult, DecodeSetup
from questprof.errors import QuestprofError
from questprof.recall.rows import RecallRows
from questprof.roofs import Roofs
from questprof.structs import ByValue, Count, CountOrNone, Sample, Struct, short_hash
from questprof.units import DTYPE_BYTES, count

SCHEMA_VERSION = 1
CACHE_MULTIPLE = 3
"""Bytes touched between two uses of the same bytes, over the last-level cache, from which on it is cold."""

Kind = Literal["sweep", "bytes", "amdahl", "recall", "eval", "cache"]
Status = Literal["ok", "wrong", "oom", "unstable", "unavailable"]
Data = Literal["independent", "shared", "constant", "ramp", "needle"]
"""What keys and queries are. Independent, shared: standard normal keys, and the queries of a group drawn
independently or equal. The others choose the page scores: all equal, rising page by page, one page alone."""
SummaryLayout = Literal["paired", "transposed"]
PageOrder = Literal["shuffled", "sequential", "scattered"]
"""How a cache's pages follow each other; shuffled: in its own part of the pool; scattered: over all of it."""


class Shape(ByValue, frozen=True):
    """The attention shape of one model. `num_layers` scales resident bytes, never a stage's bytes."""

    name: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str = "fp16"
    summary_dtype: str = ""
    """Empty: the same as kv_dtype."""
    num_layers: int = 32

    @property
    def group_size(self) -> int:
        """Query heads a KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def effective_summary_dtype(self) -> str:
        """The summary's dtype with the default resolved."""
        return self.summary_dtype or self.kv_dtype


class Point(ByValue, frozen=True):
    """One cell of the grid. `token_budget` 0 with policy `dense`. Lengths and budgets are in tokens.

    Ragged batches give `seq_lens` (and `token_budgets` when they differ) and leave seq_len as the maximum.
    """

    shape: Shape
    seq_len: Count
    page_size: Count = 16
    token_budget: CountOrNone = 0
    batch_size: Count = 1
    seq_lens: tuple[CountOrNone, ...] = ()
    token_budgets: tuple[CountOrNone, ...] = ()
    policy: str = "quest"
    policy_params: dict[str, int | float | str] = {}
    summary_layout: SummaryLayout = "paired"
    backend: str = "questprof"
    variant: str = ""
    device: Literal["cpu", "cuda"] = "cuda"
    data: Data = "independent"
    page_order: PageOrder = "shuffled"
    pool_bytes: int = 0
    """Size of the pool that scattered pages were asked to lie in; 0 with the other orders."""
    seed: int = 0
    decode: DecodeSetup | None = None
    """What is asked of a whole decode step; kind `amdahl` only."""

    def __post_init__(self) -> None:
        """Defaults as in every struct, whole numbers as int: 4 and 4.0 are equal, and their JSON is not."""
        super().__post_init__()
        if any(isinstance(value, float | bool) for value in self.policy_params.values()):
            plain = {name: _as_int(value) for name, value in self.policy_params.items()}
            force_setattr(self, "policy_params", plain)

    @property
    def point_id(self) -> str:
        """Hash of the canonical JSON (sorted keys, defaults omitted)."""
        return short_hash(self)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each request."""
        return self.seq_lens or (self.seq_len,) * self.batch_size

    @property
    def budgets(self) -> tuple[int, ...]:
        """Token budget of each request."""
        return self.token_budgets or (self.token_budget,) * self.batch_size

    @property
    def num_pages(self) -> tuple[int, ...]:
        """P of each request."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    @property
    def num_selected(self) -> tuple[int, ...]:
        """K of each request: floor(B / S), and all P pages where the budget covers the length."""
        sizes = zip(self.budgets, self.lengths, self.num_pages, strict=True)
        return tuple(
            pages if budget >= length else budget // self.page_size for budget, length, pages in sizes
        )


def _as_int(value: float | str) -> float | str:
    """`value`, or the int that it equals."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value


class StageTiming(Struct, frozen=True):
    """How the samples of one stage were taken."""

    launches_per_sample: int
    num_buffers: int
    touched_bytes: int
    """Distinct bytes touched between two uses of the same bytes."""
    cache_state: Literal["cold", "warm", "hot"]
    """cold: touched_bytes > 3x the last-level cache; hot: input left there by the stage before."""
    loop_id: str
    """Candidates timed interleaved in one loop share this."""
    stop_reason: str


class SingleSteps(Struct, frozen=True):
    """Steps of a stage that were timed one by one on a GPU, for p50, p95 and p99; us.

    On a CPU every sample of `Record.times_us` is a single step already.
    """

    samples_us: tuple[Sample, ...]
    """Each one launch of a graph of one step, between two CUDA events, the launch included."""
    num_buffers: int
    touched_bytes: int
    """Distinct bytes touched between two uses of the same bytes."""
    cache_state: Literal["cold", "warm", "hot"]
    resolution_us: float | None = None
    """The least difference between two of the samples: the clock tells nothing finer."""
    empty_us: float | None = None
    """Median of the same around a kernel that does nothing, which every sample includes about once."""


class Clocks(Struct, frozen=True):
    """What NVML, or on a CPU the kernel, said around the samples; what it does not tell is absent."""

    reasons: tuple[str, ...] = ()
    """Clock-event reasons other than idle that were seen during the loop."""
    temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    other_processes: int = 0
    """Compute processes on the device beside this one."""
    waited_share: float | None = None
    """On a CPU: share of the loop that its threads were ready to run and had no core, mean over workers."""


class Energy(Struct, frozen=True):
    """Energy of one stage from NVML's counter over seconds of repeated launches."""

    joules: float
    seconds: float
    launches: int


class Check(Struct, frozen=True):
    """One comparison with the float64 reference."""

    stage: str
    when: Literal["before", "after"]
    max_rel_err: float | None
    """None: the result holds a NaN or infinity where the reference has a number."""
    tolerance: float
    sampled: bool = False
    approximate: bool = False
    """The error is that of an approximation beside dense attention: shown as its quality, never refused."""

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance; of an approximation, whether it is finite."""
        return self.max_rel_err is not None and (self.approximate or self.max_rel_err <= self.tolerance)


class Ceiling(Struct, frozen=True):
    """One streaming-read measurement: raw samples in GB/s (1e9 bytes a second)."""

    name: str
    num_bytes: int
    samples_gb_s: tuple[Sample, ...]


class Record(Struct, frozen=True):
    """One measured (or refused) point. What does not apply is absent."""

    kind: Kind
    point: Point
    point_id: str
    env_id: str
    status: Status
    reason: str = ""
    times_us: dict[str, tuple[Sample, ...]] = {}
    """Raw samples per stage; a sample is the mean of launches_per_sample launches."""
    timing: dict[str, StageTiming] = {}
    single_steps: dict[str, SingleSteps] = {}
    """Of `quest` and `dense` on a GPU; p95 and p99 come from these alone, never from `times_us` there."""
    bytes: dict[str, dict[Source, ByteCount]] = {}
    ledger: tuple[Entry, ...] = ()
    """Every tensor of every stage as predicted before the run; kind `bytes` only."""
    counts: tuple[StageCount, ...] = ()
    """What trace and hardware counted, beside the ledger; kind `bytes` only."""
    unselected_bytes: int | None = None
    """From a trace: distinct bytes of K and V read in pages that no query head of their group selected."""
    proof: UnmappedProof | None = None
    counter_calibration: tuple[Calibration, ...] = ()
    clocks: Clocks | None = None
    energy: dict[str, Energy] = {}
    floor_bytes: dict[str, int] = {}
    """Bytes that equation (12) counts, per stage, from the ledger, as predicted before the run."""
    checks: tuple[Check, ...] = ()
    calibration: tuple[Ceiling, ...] = ()
    """Streaming reads taken in the same loop as the samples, where the executor takes them."""
    variant: str = ""
    """Which implementation of the backend ran."""
    pool_bytes: int = 0
    """Bytes of the pool that scattered pages lay in: what memory allowed of the point's own."""
    union_ratio: float | None = None
    """|union of a group's pages| / K, their sums over KV heads and requests, from the real ids."""
    sign_share: float | None = None
    """Share of a transposed summary's rows that the signs of the real queries pick; None when paired."""
    measured_at: str = ""
    rows: RecallRows | None = None
    """Selection quality by layer and head; kind `recall` only."""
    decode: DecodeResult | None = None
    """What measuring a whole decode step gave; kind `amdahl` only."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Unique in a profile."""
        return (self.kind, self.point_id, self.env_id)


class Environment(Struct, frozen=True):
    """Where a profile was measured. `env_id` hashes all of it but the size of the memory."""

    device: Literal["cpu", "cuda"]
    device_name: str
    num_workers: int
    last_level_cache_bytes: int
    memory_bytes: int
    python: str
    platform: str
    versions: dict[str, str]
    driver: str = ""
    cuda: str = ""
    commit: str = ""

    @property
    def env_id(self) -> str:
        """Hash of what must agree for figures to be comparable."""
        return short_hash(replace(self, memory_bytes=0))


class Header(Struct, frozen=True):
    """Line 1 of a profile."""

    schema_version: int
    environment: Environment
    command: str
    started_at: str
    ceilings: tuple[Ceiling, ...] = ()
    roofs: Roofs | None = None
    """What `roofline` measured of the device in the same run."""


class Profile(Struct, frozen=True):
    """A profile in memory: the header, its records, what reading it had to say, and its file's name."""

    header: Header
    records: tuple[Record, ...] = ()
    warnings: tuple[str, ...] = ()
    name: str = ""
    joined: tuple[Profile, ...] = ()
    """The runs that it was joined from, which hold its records; empty: it is one run."""

    @property
    def runs(self) -> tuple[Profile, ...]:
        """The runs it is of, itself where it is one: figures compared with each other are of one of them."""
        return self.joined or (self,)

    def only(self, wanted: Callable[[Record], bool]) -> Profile:
        """The profile with the records that are `wanted`, in each of its runs."""
        kept = tuple(record for record in self.records if wanted(record))
        return replace(self, records=kept, joined=tuple(run.only(wanted) for run in self.joined))

    def to_dataframe(self) -> Any:
        """A pandas DataFrame, one row per record and stage; QuestprofError without pandas.

        The columns are those of `questprof.exports.flat_rows`, with units in their names.
        """
        from questprof.exports import to_dataframe

        return to_dataframe(self)


@lru_cache(maxsize=1)
def shape_presets() -> dict[str, Shape]:
    """The presets of shapes.toml by name."""
    table = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text())
    keep = {"num_qo_heads", "num_kv_heads", "head_dim", "num_layers"}
    return {
        name: Shape(name=name, **{key: value for key, value in entry.items() if key in keep})
        for name, entry in table.items()
    }


def validate_shape(shape: Shape) -> Shape:
    """`shape` itself; QuestprofError when its heads, dims or dtypes cannot be."""
    problems = []
    if min(shape.num_qo_heads, shape.num_kv_heads, shape.head_dim, shape.num_layers) < 1:
        problems.append("heads, head_dim and layers must be at least 1")
    elif shape.num_qo_heads % shape.num_kv_heads:
        query_heads = count(shape.num_qo_heads, "query head does", "query heads do")
        problems.append(f"{query_heads} not divide into {count(shape.num_kv_heads, 'KV head')}")
    dtypes = dict.fromkeys((shape.kv_dtype, shape.effective_summary_dtype))
    problems += [f"dtype {dtype!r} is unknown" for dtype in dtypes if dtype not in DTYPE_BYTES]
    if problems:
        raise QuestprofError(
            f"shape {shape.name!r}",
            "; ".join(problems),
            f"Query heads are a multiple of KV heads; dtypes are {', '.join(DTYPE_BYTES)}.",
        )
    return shape

"""Bytes of a stage: predicted by the ledger, counted by an address trace, measured by hardware counters."""

from __future__ import annotations

from typing import Final, Literal

from questprof.structs import ByValue, Struct

Source = Literal["ncu", "trace", "formula"]
SECTOR_BYTES: Final = 32
"""What caches and memory of NVIDIA's GPUs move at the least, and what bytes are counted in."""


class ByteCount(Struct, frozen=True):
    """Bytes read and written by one launch of a stage."""

    read: int
    write: int


class Entry(Struct, frozen=True):
    """One tensor of one stage in the byte ledger. `in_eq12`: its reads are what equation (12) counts."""

    stage: str
    tensor: str
    read_bytes: int
    write_bytes: int
    in_eq12: bool
    note: str


class TensorCount(Struct, frozen=True):
    """What one launch did to one tensor, in bytes of whole 32-byte sectors, from an address trace."""

    read: int = 0
    write: int = 0
    """Distinct sectors."""
    repeat_read: int = 0
    repeat_write: int = 0
    """Further visits of sectors already counted, by this launch."""


class StageCount(ByValue, frozen=True):
    """What one source counted of one stage, in bytes a launch."""

    stage: str
    source: Source
    read: int
    write: int
    mode: Literal["isolated", "pipelined"] = "isolated"
    """isolated: every kernel alone, after a cache flush; pipelined: the stages of a chain as they run."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels of one launch."""
    tensors: dict[str, TensorCount] = {}
    """From a trace: by the ledger's tensor names; `other` is every address outside them."""
    metrics: dict[str, float] = {}
    """From hardware: further counters by their own names, in base units; what the chip lacks is absent."""


class Calibration(Struct, frozen=True):
    """A streaming read of known size inside the counting run: the counter's own error."""

    source: Source
    known_bytes: int
    counted_bytes: int


class UnmappedProof(Struct, frozen=True):
    """`attend` over a pool whose granules of unselected pages were unmapped: a touched page is a fault."""

    granule_bytes: int
    unmapped_bytes: int
    unselected_pages: int
    """Pages that no query head selected; those in granules with a selected page stay mapped."""
    completed: bool
    reason: str = ""

"""One stage as one source counted it, beside its ledger: amounts, tolerance, cause, sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from questprof.bytecheck.causes import (
    L2_FACTOR,
    REPEAT_SHARE,
    Sizes,
    gathers,
    hardware_cause,
    repeats,
    sizes,
    trace_cause,
)
from questprof.bytecheck.judgement import Amount, Cause, StageFinding, Term, amount, percent
from questprof.bytecheck.tolerance import (
    LAUNCH_BYTES,
    TRACE_TEXT,
    Allowance,
    hardware_reads,
    hardware_text,
    trace_reads,
    trace_writes,
)
from questprof.counts import SECTOR_BYTES, Entry, StageCount, TensorCount
from questprof.model import Record
from questprof.units import format_bytes

UNSEEN = "not counted"
"""How the entry among a launch's kernels ends that stands for what no counter of a kernel sees."""
L2_READS = "lts__t_sectors_srcunit_tex_op_read.sum"
"""Sectors that the multiprocessors read through the L2 cache; fabric traffic between its halves left out."""


def trace_finding(record: Record, count: StageCount, *, trusted: bool = True) -> StageFinding:
    """A traced stage: every tensor to the sector, no sector of K, V or summary read again unexpectedly."""
    ledger = [entry for entry in record.ledger if entry.stage == count.stage]
    size = sizes(record.point, count.stage, record.ledger)
    terms = _traced_terms(record, ledger, count.tensors)
    read, write = _total([t.read for t in terms]), _total([t.write for t in terms])
    repeated = repeats(count.tensors, size)
    off = [t for t in terms if not (t.read and t.write and t.read.holds and t.write.holds)]
    unselected = record.unselected_bytes if count.stage == "attend" else 0
    fails = bool(off) or repeated > REPEAT_SHARE
    cause: Cause = ""
    why = ""
    if fails:
        surplus = sum(max(0, term.write.residual_bytes) for term in terms if term.write)
        cause, why = trace_cause(count.tensors, size, unselected, surplus)
    if not count.tensors:
        read, write = amount(_read(ledger), count.read), amount(_write(ledger), count.write)
    holds = None if not (ledger and count.tensors and trusted) else not fails
    cause = cause if ledger else ""
    why = why or "; ".join(map(_term_text, off[:3]))
    return _finding(record, count, (read, write), holds, cause, why, TRACE_TEXT, terms, repeated, None)


def hardware_finding(record: Record, count: StageCount, *, trusted: bool = True) -> StageFinding:
    """A stage that hardware counted: its reads, a write of a gather's size, and reads of L2 over memory's."""
    ledger = [entry for entry in record.ledger if entry.stage == count.stage]
    size = sizes(record.point, count.stage, record.ledger)
    unseen = [kernel for kernel in count.kernels if kernel.endswith(UNSEEN)]
    launches = _launches(count)
    allowed = hardware_reads(count.stage, ledger, launches, record.point)
    read = amount(_read(ledger), count.read, allowed.below, allowed.above)
    write = amount(_write(ledger), count.write)
    x_l2 = _x_l2(count)
    gathered = gathers(count, size, write.predicted_bytes)
    twice = _l2_twice(x_l2, count, size)
    fails = not read.holds or gathered or twice
    cause: Cause = ""
    why = ""
    if fails:
        cause, why = hardware_cause(count, size, allowed.above, write.predicted_bytes)
    if twice and cause in ("", "unnamed"):
        cause, why = "read twice", f"{x_l2:.2f} x as many bytes were read through the L2 cache"
    holds = None if not (ledger and trusted) or (unseen and not fails) else not fails
    why = why or "; ".join(unseen)
    terms = tuple(
        Term(e.tensor, e.in_eq12, e.read_bytes, e.write_bytes)
        for e in ledger
        if e.read_bytes or e.write_bytes
    )
    text = hardware_text(count.stage, record.point)
    return _finding(record, count, (read, write), holds, cause, why, text, terms, None, x_l2)


def _launches(count: StageCount) -> int:
    """Kernels of a stage; a range of a chain that hides them has at most three."""
    return max(len(count.kernels), 3 if count.stage == "quest" and len(count.kernels) < 2 else 1)


def _finding(
    record: Record,
    count: StageCount,
    amounts: tuple[Amount, Amount],
    holds: bool | None,
    cause: Cause,
    why: str,
    tolerance: str,
    terms: tuple[Term, ...],
    repeated: float | None,
    x_l2: float | None,
) -> StageFinding:
    variant = record.variant or record.point.variant
    label = ", ".join(filter(None, (count.source, variant, count.mode * (count.mode != "isolated"))))
    return StageFinding(
        stage=count.stage,
        source=count.source,
        mode=count.mode,
        variant=variant,
        read=amounts[0],
        write=amounts[1],
        holds=holds,
        cause=cause,
        tolerance=tolerance,
        sentence=_sentence(f"{count.stage} ({label})", amounts[0], holds, cause, why, count.source),
        terms=terms,
        repeat_share=repeated,
        x_l2=x_l2,
    )


def _sentence(where: str, read: Amount, holds: bool | None, cause: Cause, why: str, source: str) -> str:
    """`attend (ncu, cuda) read 33.1 MiB, 33.5 MiB predicted (-1.2 %): probably K without V, ...`."""
    share = "" if read.residual_share is None else f" ({percent(read.residual_share)})"
    text = f"{where} read {format_bytes(read.counted_bytes)}, {format_bytes(read.predicted_bytes)} predicted"
    text += share
    if cause:
        name = "cause unnamed" if cause == "unnamed" else cause
        probably = "probably " if source == "ncu" and cause != "unnamed" else ""
        return f"{text}: {probably}{name}" + (f" ({why})" if why else "")
    if holds is None and not read.predicted_bytes:
        return f"{text}: the ledger has no such stage"
    return f"{text}: {why}" if why else text


def _traced_terms(
    record: Record, ledger: Sequence[Entry], counted: Mapping[str, TensorCount]
) -> tuple[Term, ...]:
    """A term for every tensor of the ledger and of the trace; a chain's lines of one tensor are one term."""
    by_tensor: dict[str, list[Entry]] = {}
    for entry in ledger:
        by_tensor.setdefault(entry.tensor, []).append(entry)
    terms = []
    for tensor in dict.fromkeys((*by_tensor, *counted)):
        lines, count = by_tensor.get(tensor, []), counted.get(tensor, TensorCount())
        reads = [trace_reads(entry, record.point) for entry in lines]
        writes = [trace_writes(entry, record.point) for entry in lines]
        # In a chain the same bytes are distinct once.
        again = _read(lines) - max((entry.read_bytes for entry in lines), default=0)
        read = _amount(_read(lines), count.read, reads, again)
        write = _amount(_write(lines), count.write, writes, 0)
        eq12 = any(entry.in_eq12 for entry in lines)
        if lines or count != TensorCount():
            terms.append(Term(tensor, eq12, _read(lines), _write(lines), read, write, count.repeat_read))
    return tuple(terms)


def _amount(predicted: int, counted: int, allowed: Sequence[Allowance], again: int) -> Amount:
    below, above = sum(a.below for a in allowed), sum(a.above for a in allowed)
    return amount(predicted, counted, below + again, above)


def _total(found: Sequence[Amount | None]) -> Amount:
    """The sum of amounts and of their allowances."""
    own = [one for one in found if one]
    return amount(
        sum(one.predicted_bytes for one in own),
        sum(one.counted_bytes for one in own),
        sum(one.below_bytes for one in own),
        sum(one.above_bytes for one in own),
    )


def _read(ledger: Sequence[Entry]) -> int:
    return sum(entry.read_bytes for entry in ledger)


def _write(ledger: Sequence[Entry]) -> int:
    return sum(entry.write_bytes for entry in ledger)


def _term_text(term: Term) -> str:
    """`k read 512 B of 1 KiB`."""
    parts = []
    for verb, found in (("read", term.read), ("written", term.write)):
        if found and not found.holds:
            parts.append(f"{verb} {found.counted_bytes} B, {found.predicted_bytes} B predicted")
    return f"{term.tensor} {', '.join(parts)}"


def _x_l2(count: StageCount) -> float | None:
    sectors = count.metrics.get(L2_READS)
    return sectors * SECTOR_BYTES / count.read if sectors and count.read > 0 else None


def _l2_twice(x_l2: float | None, count: StageCount, size: Sizes) -> bool:
    """Whether the multiprocessors read much more than the stage's first reads and its groups' repeats.

    Blocks that wait for one another ask the L2 cache again and again, for little: a launch's bytes are free.
    """
    if x_l2 is None or count.mode != "isolated" or not size.counted:
        return False
    expected = size.counted * (1 + size.expected_repeats) + size.extras
    return x_l2 * count.read > L2_FACTOR * max(expected, count.read) + LAUNCH_BYTES

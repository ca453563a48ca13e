"""What the machine did while it was timed, as warnings: what was seen, the likely cause, the advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from questprof.model import Profile, Record
from questprof.units import format_count

WAITED_SHARE = 0.1
"""Of a loop: from there on that its threads had no core, other work is worth a warning."""
DISTURBED_SHARE = 0.7
"""Of the ceiling's own rate: a reader that falls below it in a block's loop shared the machine."""
ADVICE = {
    "software power cap": (
        "the board reached its power limit", "compare only runs at one limit (nvidia-smi -q -d POWER)"
    ),
    "hardware slowdown": ("the board slowed itself down", "look at cooling and power supply"),
    "software thermal slowdown": ("the GPU was too hot", "cool it, or let it rest between runs"),
    "hardware thermal slowdown": ("the GPU was too hot", "cool it, or let it rest between runs"),
    "power brake": ("the server asked for less power", "look at its power supply"),
    "application clocks setting": (
        "clocks are set by hand", "compare only with runs at the same ones (nvidia-smi -q -d CLOCK)"
    ),
    "sync boost": ("clocks are tied to those of other GPUs", "take the GPU out of its sync-boost group"),
    "display clock setting": ("a display holds the clocks", "measure on a GPU without one"),
}  # fmt: skip
"""Likely cause and advice by clock-event reason."""


def conditions(profile: Profile) -> list[str]:
    """Warnings about clocks, company and disturbance, each once, with the lengths where it was seen."""
    seen: dict[str, list[Record]] = {}
    for record in profile.records:
        for said in (*_clocks(record), *_disturbed(record, profile)):
            seen.setdefault(said, []).append(record)
    return [f"{said} [{_lengths(records)}]" for said, records in seen.items()]


def _clocks(record: Record) -> list[str]:
    clocks = record.clocks
    if clocks is None:
        return []
    said = []
    for reason in clocks.reasons:
        cause, advice = ADVICE.get(
            reason, ("the driver holds the clocks down", "see nvidia-smi -q -d PERFORMANCE")
        )
        said.append(f"clocks were held down while timing ({reason}): {cause}; {advice}")
    if (clocks.waited_share or 0.0) > WAITED_SHARE:
        said.append(
            f"threads were ready but had no core for more than {100 * WAITED_SHARE:g} % of the timing loop: "
            "other work ran beside them; figures there are too high: repeat on an idle machine"
        )
    if clocks.other_processes:
        said.append(
            f"{clocks.other_processes} other processes computed on the GPU, beside which figures rise; "
            "repeat when nvidia-smi shows none"
        )
    return said


def _disturbed(record: Record, profile: Profile) -> list[str]:
    """Whether the reader ran far below its own rate at the start of the run: others used the machine."""
    ceilings = {
        (c.name, c.num_bytes): median(c.samples_gb_s) for c in profile.header.ceilings if c.samples_gb_s
    }
    slow = [
        c.name
        for c in record.calibration
        if c.samples_gb_s
        and median(c.samples_gb_s) < DISTURBED_SHARE * ceilings.get((c.name, c.num_bytes), 0.0)
    ]
    if not slow:
        return []
    return [
        f"streaming reads between the samples fell below {DISTURBED_SHARE:g} of the rate at the start: other "
        "work ran beside them, or the clock fell; figures there are too high: repeat on an idle machine"
    ]


def _lengths(records: Iterable[Record]) -> str:
    lengths = sorted({record.point.seq_len for record in records})
    return "length " + ", ".join(map(format_count, lengths))

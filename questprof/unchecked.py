"""Times whose results nobody checked are no times: what a profile that was edited may claim. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from questprof.model import Record

UNCHECKED: Final = "its results were not checked: the record holds times and no check after them"


def without_unchecked(record: Record) -> Record:
    """`record` itself, or where a sweep timed what nobody checked afterwards the same without its times.

    No figure without a passed check: such a record is `unavailable`, with UNCHECKED as its reason.
    """
    if record.kind != "sweep" or not record.times_us or any(one.when == "after" for one in record.checks):
        return record
    reason = f"{record.reason}; {UNCHECKED}" if record.reason else UNCHECKED
    return replace(
        record, status="unavailable", reason=reason, times_us={}, timing={}, single_steps={}, energy={}
    )

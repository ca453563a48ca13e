"""Whether the bytes are what equation (12) says, and every other check of a decision. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from questprof.bytecheck.judge import judge_profile, overall
from questprof.bytecheck.summary import LABELS
from questprof.decide.evidence import Findings
from questprof.errors import Exit
from questprof.model import Profile, Record
from questprof.rows import summarise
from questprof.scan import scan_rows, verdict
from questprof.units import format_count

BytesVerdict = Literal["passed", "failed", "inconclusive", "not run"]
VERDICTS: dict[Exit, BytesVerdict] = {
    Exit.OK: "passed",
    Exit.CHECK_FAILED: "failed",
    Exit.INCONCLUSIVE: "inconclusive",
}


@dataclass(frozen=True)
class BytesFact:
    """The bytes check in brief."""

    verdict: BytesVerdict
    source: str = ""
    """What counted: `counted: address trace`."""
    num_points: int = 0
    why: str = ""
    """Causes of a failure, or why it did not run or does not conclude."""


def bytes_fact(found: Findings) -> BytesFact:
    """The verdict over every counted point."""
    judged = judge_profile(found.bytes) if found.bytes else ()
    counted = [one for one in judged if one.sources]
    if not counted:
        reasons = dict.fromkeys(one.reason for one in judged if one.reason)
        why = "; ".join(reasons) or found.missing.get("bytes", "it was not asked for")
        return BytesFact("not run", why=why)
    sources = ", ".join(dict.fromkeys(LABELS[source] for one in counted for source in one.sources))
    said = VERDICTS.get(overall(judged), "inconclusive")
    unsure = [one for one in counted if one.holds is not True]
    causes = dict.fromkeys(cause for one in unsure for cause in one.causes if cause != "unnamed")
    sentences = dict.fromkeys(sentence for one in unsure for sentence in one.sentences)
    why = ", ".join(causes) or next(iter(sentences), "")
    return BytesFact(said, sources, len(counted), why if said != "passed" else "")


def wrong_points(found: Findings) -> tuple[str, ...]:
    """Timed points whose result is wrong, in words."""
    records = [record for profile in (found.sweep, found.steps) if profile for record in profile.records]
    judged = [(record, *verdict(record)) for record in records]
    return tuple(_named(record, reason) for record, status, reason in judged if status == "wrong")


def unstable_points(found: Findings) -> tuple[str, ...]:
    """Points of the answer that prove nothing because their samples would not settle, in words."""
    return tuple(dict.fromkeys((*_unstable_rows(found), *_unstable_steps(found))))


def _unstable_rows(found: Findings) -> Iterator[str]:
    """Of attention, with the fastest baseline: another one that did not settle decides nothing."""
    for row in scan_rows(found.sweep) if found.sweep else ():
        agreeing = ", heads of a group agreeing" if row.data == "shared" else ""
        where = f"attention at {format_count(row.seq_len)}, batch {row.batch_size}{agreeing}"
        if row.point.backend != found.asked.backend or row.trivial:
            continue
        if row.status == "unstable":
            yield f"{where}: {row.reason or 'Quest did not settle'}"
        elif row.fastest and row.fastest.status == "unstable":
            yield f"{where}: {row.fastest.reason or 'dense did not settle'}"
        elif row.status == "ok" and row.unsteady:
            yield f"{where}: {row.unsteady}"


def _unstable_steps(found: Findings) -> Iterator[str]:
    for record in found.steps.records if found.steps else ():
        status, reason = verdict(record)
        stat = summarise(record.times_us.get("step", ()))
        if status == "unstable" or (status == "ok" and stat and not stat.steady):
            yield _named(record, reason or f"its samples are {stat.doubt if stat else 'missing'}")


def has_points(profile: Profile | None) -> bool:
    """Whether anything was measured that could run."""
    return profile is not None and any(one.status in ("ok", "wrong", "unstable") for one in profile.records)


def _named(record: Record, reason: str) -> str:
    point = record.point
    what = "dense" if point.policy == "dense" else "Quest"
    what = f"{what} step" if record.kind == "amdahl" else f"{what} attention"
    backend = f" ({point.backend})" if point.policy == "dense" and point.backend != "questprof" else ""
    where = f"{what}{backend} at {format_count(point.seq_len)}, batch {point.batch_size}"
    return f"{where}: {reason}" if reason else where


def some(points: tuple[str, ...], most: int = 3) -> str:
    """The first few in words, and how many more there are."""
    rest = len(points) - most
    return "; ".join((*points[:most], *([f"and {rest} more"] if rest > 0 else ())))

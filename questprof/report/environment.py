"""Environment and provenance: where the figures come from, and what repeats them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from questprof.model import Profile
from questprof.report.evidence import name_of
from questprof.report.records import listing
from questprof.report.section import Block, Context
from questprof.rows import summarise
from questprof.scan import best_ceiling
from questprof.units import format_bytes


def build(profile: Profile, prefix: str, page: Context) -> Block:
    """The section; every profile has one."""
    header = profile.header
    context = {
        "facts": _facts(profile),
        "versions": sorted(header.environment.versions.items()),
        "command": header.command,
        "ceilings": _ceilings(profile),
        "num_calibrated": sum(bool(record.calibration) for record in profile.records),
        "warnings": profile.warnings,
        "id": prefix,
        "files": [
            {"name": name_of(one, i), **listing(one)}
            for i, one in enumerate(page.members, start=1)
            if one.records
        ],
    }
    return Block("environment.html", context)


def _facts(profile: Profile) -> list[tuple[str, str]]:
    """Label and value; what is unknown (empty or 0) is left out."""
    env, records = profile.header.environment, profile.records
    statuses = Counter(record.status for record in records)
    by_status = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    samples = sum(len(times) for record in records for times in record.times_us.values())
    facts = [
        ("Device", f"{env.device_name} ({'CPU' if env.device == 'cpu' else 'CUDA'})"),
        ("Threads" if env.device == "cpu" else "Multiprocessors", str(env.num_workers or "")),
        ("Last-level cache", format_bytes(env.last_level_cache_bytes) if env.last_level_cache_bytes else ""),
        ("Memory", format_bytes(env.memory_bytes) if env.memory_bytes else ""),
        ("Driver", env.driver),
        ("CUDA", env.cuda),
        ("Python", env.python),
        ("Platform", env.platform),
        ("Commit", env.commit),
        ("Started", profile.header.started_at),
        ("Records", f"{len(records)} ({by_status})" if records else "0"),
        ("Raw samples", str(samples)),
    ]
    return [(label, value) for label, value in facts if value]


def _ceilings(profile: Profile) -> list[dict[str, Any]]:
    """A line a ceiling of every run; the largest is told of each run, whose floors stand on it."""
    found = []
    for run in profile.runs:
        best = best_ceiling(run.header.ceilings)
        for ceiling in run.header.ceilings:
            stat = summarise(ceiling.samples_gb_s)
            name = f"{ceiling.name}, {run.name}" if profile.joined and run.name else ceiling.name
            line = {"name": name, "size": format_bytes(ceiling.num_bytes)}
            if stat:
                spread = f"{stat.p10:.4g}–{stat.p90:.4g}"
                line |= {"median": f"{stat.median:.4g}", "spread": spread, "samples": str(stat.num_samples)}
            found.append(line | {"best": stat is not None and stat.median == best})
    return found

"""Several profiles on one page: no figure is of two runs, and their order changes none."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from profiles import CPU, dense, profile, quest, two_baselines
from questprof.model import Profile
from questprof.report import render
from questprof.report.evidence import evidence
from questprof.report.verdict import answers
from questprof.store import read_profile
from questprof.sweep.merge import merge_profiles

KEPT = Path(__file__).parents[2] / "profiles"
NAMES = ("kernels", "bytes", "roofline", "amdahl-llama-2-7b")


@pytest.fixture(scope="module")
def kept() -> dict[str, Profile]:
    return {name: read_profile(KEPT / "h200" / f"{name}.jsonl") for name in NAMES}


def _timed(found: Profile, policy: str, budget: int, layout: str) -> list[float]:
    """Medians of `policy` at 32k, straight from the records."""
    stage = "dense" if policy == "dense" else "quest"
    return [
        median(record.times_us[stage])
        for record in found.records
        if record.point.seq_len == 32768
        and (record.point.policy, record.point.token_budget) == (policy, budget)
        and record.point.summary_layout == layout
    ]


def _with_half_the_dense_times(found: Profile) -> Profile:
    halved = [
        replace(
            r, times_us={s: tuple(t / 2 for t in ts) if s == "dense" else ts for s, ts in r.times_us.items()}
        )
        for r in found.records
    ]
    return replace(found, records=tuple(halved))


def test_the_headline_is_of_one_run_in_any_order(kept: dict[str, Profile]) -> None:
    """kernels.jsonl has the most points; roofline.jsonl repeats some, and dense is made faster there."""
    own = min(_timed(kept["kernels"], "dense", 0, "transposed"))
    (quest_us,) = _timed(kept["kernels"], "quest", 2048, "transposed")
    roofline = _with_half_the_dense_times(kept["roofline"])
    assert min(_timed(roofline, "dense", 0, "transposed")) < own
    told = set()
    for order in permutations({**kept, "roofline": roofline}.values()):
        (found,) = evidence(merge_profiles(order))
        rows = [
            row
            for row in found.rows
            if (row.seq_len, row.token_budget) == (32768, 2048) and row.point.summary_layout == "transposed"
        ]
        assert [row.speed_up for row in rows] == [own / quest_us]
        told.add(answers(found)[0].sentence)
    assert len(told) == 1
    assert f"{own / quest_us:.2g}x at 32k in attention" in told.pop()


def test_floors_stand_on_the_ceiling_of_their_own_run(kept: dict[str, Profile]) -> None:
    ceilings = {}
    for name in ("kernels", "roofline"):
        reads = [*kept[name].header.ceilings, *(c for r in kept[name].records for c in r.calibration)]
        ceilings[name] = max(median(read.samples_gb_s) for read in reads)
    assert len(set(ceilings.values())) == 2
    page = render([kept["kernels"], kept["bytes"], kept["roofline"]], plotlyjs="cdn")
    told = re.findall(r"largest streaming read of ([a-z ]+) \((\d+) GB/s", page)
    assert {(run, int(gb_s)) for run, gb_s in told} == {
        ("this run", round(ceilings[name])) for name in ceilings
    }


def test_of_two_equal_grids_the_earlier_is_told_whatever_the_order() -> None:
    first = replace(profile(*two_baselines(), started_at="2026-01-01T00:00:00+00:00"), name="first")
    again = [quest(32768, (1.0, 1.0, 1.0)), *two_baselines()[:-2]]
    later = replace(
        profile(*again, two_baselines()[-1], started_at="2026-01-02T00:00:00+00:00"), name="later"
    )
    assert {evidence(order)[0].times.name for order in ([first, later], [later, first])} == {"first"}


def test_a_profile_given_twice_is_told_once(parse: Any, kept: dict[str, Profile]) -> None:
    page = parse(render([kept["kernels"], kept["kernels"]], plotlyjs="cdn"))
    assert "kernels.jsonl is given twice: both are the same run, which is shown once" in page.text
    assert "Not in this verdict" not in page.text
    assert "comparison" not in page.html.split("</style>")[1].split("<script")[0]


def test_roofs_of_another_run_are_used_and_its_times_are_not(parse: Any, kept: dict[str, Profile]) -> None:
    page = parse(render([kept["kernels"], kept["roofline"]], plotlyjs="cdn"))
    assert "From kernels.jsonl, roofline.jsonl." in page.text
    assert "Not in this verdict: the times of roofline.jsonl, of the same shape, of another run" in page.text


def test_cpu_figures_are_named_with_the_profile_they_are_of() -> None:
    """Above the page only where all of it is of a CPU: the question above a GPU's answer is no CPU's."""
    gpu = replace(profile(*two_baselines()), name="gpu.jsonl")
    records = (dense(8192, 40.0, env=CPU), quest(8192, (1.0, 1.0, 1.0), env=CPU))
    cpu = replace(profile(*records, env=CPU), name="cpu.jsonl")
    for both in ([gpu, cpu], [cpu, gpu]):
        page = render(both, plotlyjs="cdn")
        head, *articles = re.split("<article", page)
        notices = {
            re.search(r'data-source="(\w+)', text)[1]: "These are CPU figures" in text for text in articles
        }  # type: ignore[index]
        assert "These are CPU figures" not in head
        assert notices == {"gpu": False, "cpu": True}
    alone = render([cpu], plotlyjs="cdn")
    assert alone.index("These are CPU figures") < alone.index("<h1>")
    assert alone.count("These are CPU figures") == 1

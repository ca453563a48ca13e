"""environment.py: what a reader needs to repeat the run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from profiles import CPU, GPU, READ_1000, dense, profile, quest, two_baselines
from questprof.model import Ceiling
from questprof.report import render


@pytest.fixture
def facts_of(parse):
    def facts(found) -> dict[str, str]:
        page = parse(render([found], plotlyjs="directory"))
        terms, values = page.all("dt"), page.all("dd")
        return {term: value for (_, term), (_, value) in zip(terms, values, strict=True)}

    return facts


def test_device_versions_and_counts(facts_of):
    """two_baselines: 5 lengths x (2 dense of one stage + 2 Quest of six stages) x 3 samples = 210."""
    facts = facts_of(profile(*two_baselines(), quest(65536, None, status="oom")))
    assert facts["Device"] == "Toy GPU (CUDA)"
    assert facts["Multiprocessors"] == "4"
    assert (facts["Last-level cache"], facts["Memory"]) == ("1 MiB", "16 GiB")
    assert (facts["Driver"], facts["CUDA"], facts["Commit"]) == ("580.1", "13.0", "0123abc")
    assert (facts["torch"], facts["triton"]) == ("2.13.0", "3.9.0")
    assert facts["Started"] == "2026-01-02T03:04:05+00:00"
    assert facts["Records"] == "21 (20 ok, 1 oom)"
    assert facts["Raw samples"] == "210"


def test_what_is_unknown_is_left_out(facts_of):
    facts = facts_of(profile(env=CPU))
    assert facts["Threads"] == "2"
    assert facts["Records"] == "0"
    assert not facts.keys() & {"Driver", "CUDA", "Commit", "Multiprocessors"}
    blank = replace(GPU, last_level_cache_bytes=0, memory_bytes=0, num_workers=0)
    assert not facts_of(profile(env=blank)).keys() & {"Last-level cache", "Memory", "Multiprocessors"}


def test_the_command_is_exact(parse):
    command = "questprof sweep --shape 'a b'  --lengths 2k..32k   -o x.jsonl"
    page = parse(render([profile(dense(2048, 1.0), command=command)]))
    assert page.all("code")[0][1] == command


def test_ceilings_with_their_spread_and_the_one_that_counts(parse):
    slow = Ceiling("one thread", 1 << 20, (500.0,))
    page = parse(render([profile(ceilings=(slow, READ_1000, Ceiling("empty", 1 << 10, ())))]))
    (_, text) = page.all("tbody")[0]
    assert "500–500" in text
    assert "992–1008" in text  # 990 + 0.2 x 10 and 1000 + 0.8 x 10
    assert text.count("the largest") == 1
    assert text.index("1 GiB") < text.index("the largest") < text.index("empty")
    assert "no valid sample" in text


def test_reads_taken_in_the_timing_loop_are_mentioned(parse):
    calibrated = dense(2048, 10.0, calibration=(READ_1000,))
    text = parse(render([profile(calibrated, dense(4096, 10.0))])).text
    assert "taken in the timing loop of the point itself (1 records have one)" in text
    assert "timing loop" not in parse(render([profile(dense(4096, 10.0))])).text


def test_warnings_of_reading_are_shown(parse):
    page = parse(render([replace(profile(), warnings=("the last line is torn",))]))
    assert "the last line is torn" in page.text
    assert "Warnings" not in parse(render([profile()])).text

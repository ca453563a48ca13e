"""Who faces whom: matching by point, what is refused, what is listed."""

from typing import Any

import pytest
from msgspec.structs import replace

from profiles import CPU, GPU, GQA_SHAPE, SHAPE, dense, profile, quest
from questprof.compare.pairs import across, labels, within
from questprof.errors import Exit, QuestprofError
from questprof.model import Environment, Profile, Shape

US = (2.0, 1.0, 5.0)
KERNELS = profile(
    *(quest(k * 1024, US, backend=name) for k in (4, 8) for name in ("base", "new", "other")),
    quest(16384, US, backend="base"),
    quest(32768, US, backend="new"),
)


def _named(found: Profile, name: str) -> Profile:
    return replace(found, name=name)


def test_points_meet_and_the_rest_is_listed() -> None:
    base = profile(quest(4096, US), quest(8192, US), dense(4096, 9.0))
    new = profile(quest(8192, US), quest(4096, US), quest(4096, US, budget=2048))
    found = across(base, new)
    assert [pair.base.point for pair in found.pairs] == [pair.new.point for pair in found.pairs]
    assert [pair.base.point.seq_len for pair in found.pairs] == [4096, 8192]
    assert [record.point.policy for record in found.only_base] == ["dense"]
    assert [record.point.token_budget for record in found.only_new] == [2048]
    assert not found.one_run


def test_of_two_records_of_one_point_the_last_counts() -> None:
    twice = profile(quest(4096, US), quest(4096, (3.0, 1.0, 5.0)))
    (pair,) = across(twice, twice).pairs
    assert pair.base.times_us["score"] == twice.records[1].times_us["score"]


@pytest.mark.parametrize(
    "change",
    [{"device_name": "Other GPU"}, {"driver": "590.2"}, {"cuda": "14.0"}, {"num_workers": 8}],
)
def test_other_machines_are_refused_unless_forced(change: dict[str, Any]) -> None:
    other: Environment = replace(GPU, **change)
    base, new = profile(quest(4096, US)), profile(quest(4096, US), env=other)
    with pytest.raises(QuestprofError, match="different machines") as caught:
        across(base, new)
    assert caught.value.status == Exit.USAGE
    assert next(iter(change)) in caught.value.why
    forced = across(base, new, force=True)
    assert len(forced.pairs) == 1
    assert "different machines" in forced.notes[0]


def test_versions_and_commit_are_noted() -> None:
    other = replace(GPU, commit="fedcba9", versions=GPU.versions | {"torch": "2.14.0"}, memory_bytes=1)
    (note,) = across(profile(quest(4096, US)), profile(quest(4096, US), env=other)).notes
    assert note == "differing: torch: 2.13.0 -> 2.14.0, commit: 0123abc -> fedcba9"
    assert across(profile(quest(4096, US)), profile(quest(4096, US))).notes == ()


def test_two_files_of_one_name_are_told_apart() -> None:
    run = _named(profile(quest(4096, US)), "run.jsonl")
    assert across(run, run).names == ("run.jsonl (base)", "run.jsonl (new)")


@pytest.mark.parametrize(
    ("shape", "says"), [(replace(SHAPE, kv_dtype="bf16"), "but for dtype"), (GQA_SHAPE, "but for shape")]
)
def test_other_dtypes_and_shapes_are_refused_unless_forced(shape: Shape, says: str) -> None:
    base = _named(profile(quest(4096, US)), "a.jsonl")
    new = _named(profile(quest(4096, US, shape=shape)), "b.jsonl")
    with pytest.raises(QuestprofError, match=f"share no point; points match {says}"):
        across(base, new)
    forced = across(base, new, force=True)
    assert len(forced.pairs) == 1
    assert says in forced.notes[-1]
    assert forced.names == ("a.jsonl", "b.jsonl")


def test_nothing_in_common_is_refused_even_when_forced() -> None:
    with pytest.raises(QuestprofError, match="share no point"):
        across(profile(quest(4096, US)), profile(quest(8192, US)), force=True)
    with pytest.raises(QuestprofError, match="share no point"):
        across(profile(env=CPU), profile(env=CPU))


def test_two_stage_sets_of_one_run() -> None:
    found = within(KERNELS, "base", "new")
    assert [(p.base.point.backend, p.new.point.backend) for p in found.pairs] == [("base", "new")] * 2
    assert [record.point.seq_len for record in found.only_base] == [16384]
    assert [record.point.seq_len for record in found.only_new] == [32768]
    assert found.one_run
    assert found.names == ("base", "new")


def test_what_ran_under_each_name_is_noted() -> None:
    ran = [replace(quest(4096, US, backend=n), variant=f"mod_{n}:stages") for n in "ab"]
    found = within(profile(*ran), "a", "b")
    assert found.notes == ("a is mod_a:stages", "b is mod_b:stages")


def test_names_that_are_not_there() -> None:
    with pytest.raises(QuestprofError, match="'old'") as caught:
        within(KERNELS, "old", "new")
    assert "base, new, other" in caught.value.fix
    apart = profile(quest(4096, US, backend="base"), quest(8192, US, backend="new"))
    with pytest.raises(QuestprofError, match="share no point"):
        within(apart, "base", "new")


def test_labels_name_what_varies_and_are_unique() -> None:
    points = [quest(4096, US).point, quest(8192, US, page_size=32).point]
    assert labels(points) == ["4k/1k page 16", "8k/1k page 32"]
    assert labels([dense(1000, 1.0).point]) == ["1000"]
    alike = [replace(points[0], policy_params={"k": k}) for k in (1, 2)]
    assert len(set(labels(alike))) == 2
    assert labels([points[0]] * 2) == ["4k/1k"] * 2
    assert labels([]) == []

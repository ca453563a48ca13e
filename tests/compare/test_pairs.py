"""Who faces whom: matching by point, what is refused, what is listed."""

from typing import Any

import amdahl_steps
import pytest
from msgspec.structs import replace

from profiles import CPU, GPU, GQA_SHAPE, SHAPE, dense, profile, quest
from questprof.compare.pairs import across, within
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
    later = profile(quest(4096, US), started_at="2027-01-01T00:00:00+00:00")
    assert across(profile(quest(4096, US)), later).notes == ()


def test_two_files_of_one_name_are_told_apart() -> None:
    run = _named(profile(quest(4096, US)), "run.jsonl")
    assert across(run, run).names == ("run.jsonl (base)", "run.jsonl (new)")


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (replace(SHAPE, kv_dtype="bf16"), "but for dtype"),
        (replace(SHAPE, summary_dtype="bf16"), "but for dtype"),
        (GQA_SHAPE, "but for shape"),
        (replace(GQA_SHAPE, kv_dtype="bf16"), "but for shape and dtype"),
    ],
)
def test_other_dtypes_and_shapes_are_refused_unless_forced(shape: Shape, says: str) -> None:
    base = _named(profile(quest(4096, US)), "a.jsonl")
    new = _named(profile(quest(4096, US, shape=shape)), "b.jsonl")
    with pytest.raises(QuestprofError, match=rf"share no point; points match {says}\. Measure"):
        across(base, new)
    forced = across(base, new, force=True)
    assert len(forced.pairs) == 1
    assert says in forced.notes[-1]
    assert forced.names == ("a.jsonl", "b.jsonl")


def test_what_is_set_aside_is_what_differs() -> None:
    """A CPU's fp32 beside a GPU's fp16: dtype and device; a variant alone is named alone."""
    here, there = quest(4096, US), quest(4096, US, shape=replace(SHAPE, kv_dtype="fp32"), env=CPU)
    forced = across(profile(here), profile(there, env=CPU), force=True)
    assert forced.notes[-1] == "forced: points match but for dtype and device"
    with pytest.raises(QuestprofError, match=r"points match but for variant\."):
        across(profile(here), profile(quest(4096, US, variant="cuda")))


def test_only_records_of_times_are_compared() -> None:
    counted = replace(quest(8192, None), kind="bytes", times_us={})
    found = across(profile(quest(4096, US), counted), profile(quest(4096, US)))
    assert (len(found.pairs), found.only_base) == (1, ())
    with pytest.raises(QuestprofError, match="holds no times"):
        across(profile(quest(4096, US)), profile(counted))


def test_nothing_in_common_is_refused_even_when_forced() -> None:
    with pytest.raises(QuestprofError, match="share no point"):
        across(profile(quest(4096, US)), profile(quest(8192, US)), force=True)
    with pytest.raises(QuestprofError, match="no record is in base and new"):
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


def test_two_backends_are_needed() -> None:
    with pytest.raises(QuestprofError, match="no evidence against itself"):
        within(KERNELS, "base", "base")


def test_a_point_measured_twice_is_noted() -> None:
    """Kept silent, the reader would take the earlier record for the one compared."""
    once, again = quest(4096, US), quest(4096, (3.0, 1.0, 5.0))
    found = across(profile(once), profile(once, once, again))
    assert found.notes == (
        "new measures points more than once, the last counts: 2 earlier records are left out",
    )
    assert found.pairs[0].new.times_us == again.times_us
    both = within(profile(*KERNELS.records, KERNELS.records[0]), "base", "new")
    assert both.notes == (
        "base measures points more than once, the last counts: 1 earlier record is left out",
    )


def test_forced_points_that_become_equal_are_not_compared() -> None:
    """fp16 and bf16 against fp32: nobody says which of the two is meant, so neither is."""
    fp16, bf16, fp32 = (
        quest(4096, US, shape=replace(SHAPE, kv_dtype=dtype)) for dtype in ("fp16", "bf16", "fp32")
    )
    found = across(profile(fp16, bf16), profile(fp32), force=True)
    assert found.pairs == ()
    (unclear,) = found.unclear
    assert ([r.point.shape.kv_dtype for r in unclear.base], unclear.new) == (["fp16", "bf16"], (fp32,))
    mirrored = across(profile(fp32), profile(fp16, bf16, quest(8192, US)), force=True)
    assert (len(mirrored.pairs), len(mirrored.unclear), len(mirrored.only_new)) == (0, 1, 1)
    with pytest.raises(QuestprofError, match="share no point; points match but for dtype"):
        across(profile(fp16, bf16), profile(fp32))


def test_variants_of_one_backend_are_not_compared_in_anothers_name() -> None:
    cuda, triton = (quest(4096, US, backend="base", variant=name) for name in ("cuda", "triton"))
    new = [quest(n, US, backend="new") for n in (4096, 8192)]
    found = within(profile(cuda, triton, quest(8192, US, backend="base"), *new), "base", "new")
    assert [pair.base.point.seq_len for pair in found.pairs] == [8192]
    assert [r.point.variant for r in found.unclear[0].base] == ["cuda", "triton"]


def test_steps_of_other_models_and_weights_meet_when_forced() -> None:
    """Each model has the layout that suits its shape; a profile with both formats keeps them apart."""
    both = [amdahl_steps.quest(setup={"weight_format": name}) for name in ("fp16", "int4")]
    grouped = {"summary_layout": "transposed", "shape": replace(GQA_SHAPE, num_layers=4)}
    other = [
        amdahl_steps.quest(setup={"model": "other", "weight_format": name}, point=grouped)
        for name in ("fp16", "int4")
    ]
    with pytest.raises(QuestprofError, match="points match but for shape and summary layout"):
        across(profile(*both), profile(*other))
    found = across(profile(*both), profile(*other), force=True)
    formats = [(p.base.point.decode, p.new.point.decode) for p in found.pairs]
    assert [(b and b.weight_format, n and n.weight_format) for b, n in formats] == [
        ("fp16", "fp16"),
        ("int4", "int4"),
    ]
    lone = across(profile(both[0]), profile(both[1]), force=True)
    assert len(lone.pairs) == 1
    assert lone.notes[-1] == "forced: points match but for weights"


def test_what_is_timed_beside_a_step_is_named_and_not_judged() -> None:
    steps = amdahl_steps.pair_profile(amdahl_steps.dense(eager_us=5000.0), amdahl_steps.quest())
    found = across(steps, steps)
    assert [list(pair.base.times_us) for pair in found.pairs] == [["step"], ["step"]]
    _, note = found.notes
    assert note.endswith("not compared, timed too few times for a verdict: eager steps")
    alone = amdahl_steps.pair_profile()
    later = replace(alone, header=replace(alone.header, started_at="2027-01-01T00:00:00+00:00"))
    assert across(alone, later).notes == ()

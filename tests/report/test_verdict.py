"""verdict.py, evidence.py: the first screen in words, worked by hand; what joins, and what is missing."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from amdahl_steps import DENSE, QUEST, pair_profile
from amdahl_steps import dense as dense_step
from amdahl_steps import quest as quest_step
from bytes_records import traced
from msgspec.structs import replace
from planted_recall import Planted
from test_roofline_section import ROOFS, with_bytes

from profiles import CPU, GPU, GQA_SHAPE, SHAPE, dense, profile, quest, two_baselines
from questprof.bytecheck.grid import traced_shape
from questprof.cli import app
from questprof.counts import TensorCount
from questprof.model import Clocks, Point
from questprof.report import render
from questprof.report.evidence import evidence
from questprof.report.verdict import answers

NAMED = {"times": "sweep.jsonl", "bytes": "bytes.jsonl", "steps": "step.jsonl", "recall": "recall.jsonl"}


def only(*profiles):
    """The one answer of the profiles, and what it rests on."""
    (found,) = evidence(profiles)
    (answer,) = answers(found)
    return answer, found


def part(answer, name: str):
    (found,) = [one for one in answer.parts if one.name == name]
    return found


def at_2048(**point):
    """Dense 100, 200, 400 us at 8k, 16k, 32k; Quest 160, 170, 200: 0.625x, 1.176x, 2x.

    So they cross at 8k x 2 ** (ln 1.6 / ln 1.882) = 13.4k.
    """
    found = []
    for k, us, (score, attend) in (
        (8, 100.0, (30.0, 120.0)),
        (16, 200.0, (40.0, 120.0)),
        (32, 400.0, (60.0, 130.0)),
    ):
        found.append(dense(k * 1024, us, **point))
        found.append(quest(k * 1024, (score, 10.0, attend), budget=2048, **point))
    return found


def test_one_sentence_with_every_part_that_a_sweep_gives():
    """Budget 1024 is nearer to 2048 than 4096 is. At 32k: 132 / 18 us; score takes 10 of 18."""
    answer, _ = only(profile(*two_baselines()))
    assert answer.sentence == (
        "On Toy GPU, toy, batch 1, budget 1024: Quest is faster from 2.1k; 7.3x at 32k in attention, "
        "per token not measured, attention mass not measured; bytes check not run; attention limited by "
        "score."
    )
    assert "56% of its stages' time at 32k, measured: clock" in part(answer, "Attention limited by").source
    assert [one.name for one in answer.missing] == [
        "Per token",
        "Attention mass",
        "Bytes check",
        "Attention limited by",
    ]


def test_profiles_of_one_device_and_shape_make_one_sentence():
    """Step 1.6x at 32k / 2048 (amdahl_steps); mass 0.95 at 2048 of a trace of this shape."""
    masses = Planted(budgets=(1024, 2048), mass=lambda *case: 0.95).profile()
    records = tuple(
        replace(r, point=replace(r.point, shape=replace(SHAPE, kv_dtype="fp32", name="model")))
        for r in masses.records
    )
    records = tuple(replace(r, point_id=r.point.point_id) for r in records)
    given = {
        "times": profile(*at_2048()),
        "bytes": profile(traced()),
        "steps": pair_profile(),
        "recall": replace(masses, records=records),
    }
    answer, found = only(*(replace(one, name=NAMED[key]) for key, one in given.items()))
    assert answer.sentence == (
        "On Toy GPU, toy, batch 1, budget 2048: Quest is faster from 13k; 2.0x at 32k in attention, "
        "1.60x per token, at attention mass 0.950; bytes check passed; attention limited by attend."
    )
    assert part(answer, "Bytes check").source == ("1 of 1 points hold (batch 1, 4k), counted: address trace")
    assert [one.name for one in found.used] == list(NAMED.values())
    assert found.apart == ()


def test_the_gain_per_token_is_of_the_cache_s_own_dtype_and_others_stand_beside():
    """int4 weights make the rest of the step shorter and the gain larger: 1.6x is told, not 2x."""
    small = {"setup": {"weight_format": "int4"}}
    half = {name: us * 500 / 1000 for name, us in DENSE.items()}
    less = {name: us * 250 / 625 for name, us in QUEST.items()}
    steps = [dense_step(), quest_step(), dense_step(half, **small), quest_step(less, **small)]
    answer, _ = only(profile(*at_2048()), pair_profile(*steps))
    assert "1.60x per token" in answer.sentence
    assert part(answer, "Per token").source.endswith("fp16 weights; 2.0x with int4")


def test_steps_in_doubt_tell_no_gain_per_token():
    starved = replace(quest_step(), clocks=Clocks(waited_share=0.5))
    answer, _ = only(profile(*at_2048()), pair_profile(dense_step(), starved))
    told = part(answer, "Per token")
    assert (told.value, told.source) == (
        "", "undecided: the Quest step had threads without a core for 50% of its time"
    )  # fmt: skip


def test_a_failed_bytes_check_is_said():
    wrong = {"attend": {"k": TensorCount(999_999_999, 0, 0)}}
    answer, _ = only(profile(*at_2048()), profile(traced(changes=wrong)))
    assert "bytes check failed" in answer.sentence
    assert part(answer, "Bytes check").source.startswith("1 of 1 points fail")


def test_bytes_of_another_layout_are_not_those_of_the_kernels_that_were_timed():
    """Counted with the paired summary, timed with the transposed one: said, and what counts the latter."""
    timed = profile(*at_2048(summary_layout="transposed"))
    answer, _ = only(timed, profile(traced()))
    assert "bytes check passed (paired summary)" in answer.sentence
    told = part(answer, "Bytes check")
    assert told.source.endswith("; the transposed one, which was timed, was not counted")
    assert told.command.startswith("questprof bytes --check-formula")
    both = profile(traced(), traced(Point(SHAPE, 4096, token_budget=1024, summary_layout="transposed")))
    told = part(only(timed, both)[0], "Bytes check")
    assert (told.value, told.command) == ("passed", "")
    assert told.source.startswith("1 of 1 points hold")


def test_the_first_screen_says_what_its_words_mean(parse):
    page = parse(render([profile(*at_2048())], plotlyjs="cdn"))
    first = page.text.partition("Contents")[0]
    meanings = first.partition("Quest keeps a")[2]
    for word in ("summary", "score", "select", "attend", "Attention mass", "budget", "per token"):
        assert word in meanings


def test_the_roof_that_bounds_the_slowest_stage():
    records = [with_bytes(dense(8192, 8.4), 4194304), with_bytes(quest(8192, (2.0, 2.0, 4.0)), 1_000_000)]
    answer, _ = only(profile(*records, roofs=ROOFS))
    assert not part(answer, "Attention limited by").command
    assert re.search(r"(bound by|under) \w+ \(\d+%\)", part(answer, "Attention limited by").source)


def test_another_device_and_another_shape_stay_apart_and_are_named():
    other = replace(GPU, device_name="Other GPU")
    big = replace(SHAPE, name="big", num_qo_heads=8, num_kv_heads=8)
    given = [
        replace(profile(*at_2048()), name="sweep.jsonl"),
        replace(
            profile(*(replace(r, env_id=other.env_id) for r in pair_profile().records), env=other),
            name="far.jsonl",
        ),
        replace(profile(traced(replace(Point(big, 4096, token_budget=1024)))), name="big.jsonl"),
    ]
    answer, found = only(*given)
    assert "per token not measured" in answer.sentence
    assert "bytes check not run" in answer.sentence
    assert found.apart == (
        "far.jsonl: it is of another device, Other GPU, not of Toy GPU",
        "big.jsonl: it is of another shape, big, not of toy (fp16)",
    )
    text = render(given, plotlyjs="cdn")
    assert "Not in this verdict: far.jsonl: it is of another device" in text


def test_a_trace_counted_on_another_machine_joins_and_hardware_counts_do_not():
    """An address trace is of the kernels, wherever they ran."""
    away = profile(traced(), env=CPU)
    answer, _ = only(profile(*at_2048()), away)
    assert "bytes check passed" in answer.sentence


def test_a_trace_of_the_first_heads_counts_for_all_and_says_so():
    """What `questprof bytes` traces of a shape of 8 KV heads where no counters are: two of them."""
    wide = replace(SHAPE, name="wide", num_qo_heads=8, num_kv_heads=8)
    assert (traced_shape(wide).name, traced_shape(wide).num_kv_heads) == ("wide*", 2)
    counted = profile(traced(Point(traced_shape(wide), 4096, token_budget=1024)))
    answer, found = only(profile(*at_2048(shape=wide)), counted)
    assert "bytes check passed" in answer.sentence
    assert part(answer, "Bytes check").source.endswith(
        "counted: address trace, of 2 of 8 KV heads (every head moves the same bytes)"
    )
    assert found.apart == ()
    grouped = replace(wide, num_kv_heads=4)  # two query heads a KV head: another group, other bytes
    assert "bytes check not run" in only(profile(*at_2048(shape=grouped)), counted)[0].sentence


def test_two_shapes_two_verdicts_and_a_batch_one_each():
    found = evidence([profile(*at_2048(), *at_2048(batch_size=4), *at_2048(shape=GQA_SHAPE))])
    said = [answer.sentence for one in found for answer in answers(one)]
    assert [re.search(r"toy[a-z-]*, batch \d", sentence)[0] for sentence in said] == [
        "toy, batch 1",
        "toy, batch 4",
        "toy-gqa, batch 1",
    ]


def test_heads_of_a_group_make_a_range():
    records = [*at_2048(shape=GQA_SHAPE), *at_2048(shape=GQA_SHAPE, data="shared")]
    records = [r for r in records if not (r.point.policy == "dense" and r.point.data == "shared")]
    faster = [
        replace(r, times_us=r.times_us | {"quest": (100.0,) * 3}) if r.point.data == "shared" else r
        for r in records
    ]
    answer, _ = only(profile(*faster))
    assert "4.0x if the query heads of a group pick the same pages" in part(answer, "Attention").source


def test_no_valid_pair_is_no_verdict():
    answer, _ = only(profile(quest(8192, None, budget=2048, status="oom")))
    assert "no verdict, no length above the budget has a valid pair of figures" in answer.sentence
    assert "attention not comparable" in answer.sentence
    assert "what limits it is not known" in answer.sentence


def test_every_command_that_fills_a_gap_is_one_the_tool_takes():
    root = typer.main.get_command(app)
    shapes = (SHAPE, replace(SHAPE, name="llama-2-7b", num_qo_heads=32, num_kv_heads=32, head_dim=128),
              replace(SHAPE, name="my model; rm -rf"))  # fmt: skip
    seen = set()
    for shape in shapes:
        answer, _ = only(profile(*at_2048(shape=shape, page_size=32, batch_size=2)))
        for missing in answer.missing:
            tool, name, *words = shlex.split(missing.command)
            known = {
                option
                for param in root.commands[name].params
                for option in (*param.opts, *param.secondary_opts)
            }
            assert tool == "questprof"
            assert {word for word in words if word.startswith("-")} <= known, missing.command
            seen.add(name)
    assert seen == {"amdahl", "recall", "bytes", "roofline"}


@pytest.mark.parametrize(
    ("dtype", "env", "said", "asked"),
    [("fp16", GPU, "", ""), ("bf16", GPU, " in bf16", "bf16"), ("fp32", CPU, " in fp32", "fp32")],
)
def test_a_dtype_that_is_not_usual_is_said_and_measured(dtype, env, said, asked):
    """What a command measures of another dtype would not count for this one."""
    shape = replace(SHAPE, kv_dtype=dtype)
    records = at_2048(shape=shape, env=env)
    answer, _ = only(profile(*records, env=env))
    assert f"toy{said}, batch 1" in answer.sentence
    commands = {one.command.split()[1]: shlex.split(one.command) for one in answer.missing}
    for name, option in (("bytes", "--dtype"), ("roofline", "--dtype"), ("amdahl", "--weights")):
        words = commands[name]
        assert (words[words.index(option) + 1] if option in words else "") == asked
        assert ("--device" in words) == (env is CPU and name != "bytes")


def test_one_length_is_not_every_length():
    answer, _ = only(profile(*at_2048()[-2:]))
    assert "Quest is faster at the only length measured above the budget (32k)" in answer.sentence


def test_an_order_of_pages_that_is_not_usual_is_said():
    answer, _ = only(profile(*at_2048(page_order="sequential")))
    assert "toy, sequential pages, batch 1" in answer.sentence


def test_speed_at_equal_mass_where_a_trace_is_near_a_timed_length():
    """Trace and times at 8k: mass 0.95 at budget 1024, so the speed-up there."""
    masses = Planted(
        positions=(8190, 8191),
        budgets=(512, 1024, 2048),
        mass=lambda *case: {512: 0.9, 1024: 0.95, 2048: 1.0}[case[3]],
    )
    recall = masses.profile()
    records = tuple(
        replace(r, point=replace(r.point, shape=replace(SHAPE, kv_dtype="fp32"))) for r in recall.records
    )
    recall = replace(recall, records=tuple(replace(r, point_id=r.point.point_id) for r in records))
    timed = profile(
        dense(8192, 100.0), *(quest(8192, (5.0, 5.0, us), budget=b) for b, us in ((1024, 15.0), (2048, 40.0)))
    )
    answer, _ = only(timed, recall)
    assert any(
        line.startswith(
            "At 95% of the attention mass of made-up: 4.0x at 8k in attention, with page 16 and a budget"
        )
        for line in answer.more
    )


@pytest.mark.parametrize(
    ("records", "env", "question", "notice"),
    [
        ([traced()], CPU, "Are the bytes really not read?", False),
        (two_baselines(env=CPU), CPU, "Does Quest pay off on Toy CPU?", True),
    ],
)
def test_a_page_asks_what_its_records_answer(parse, records, env, question, notice):
    """Counts of a trace are no CPU figures: they are of the kernels."""
    page = parse(render([profile(*records, env=env)], plotlyjs="cdn"))
    assert page.all("h1")[0][1] == question
    assert ("These are CPU figures" in page.text) is notice

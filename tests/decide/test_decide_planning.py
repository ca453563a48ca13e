"""The minutes and their grid: what fits, what is dropped, what the lengths follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from decisions import asked, traffic

from profiles import CPU, GPU
from questprof.amdahl.plan import plan
from questprof.decide.outputs import plan_paths
from questprof.decide.planning import StepPacer, paced_rule, plan_sweep, step_seconds, telling
from questprof.decide.request import (
    bytes_asked,
    choose_lengths,
    middle,
    nearest,
    parse_one,
    resolve,
    spanning,
    step_lengths,
    step_request,
    sweep_grid,
)
from questprof.decode.config import load_config
from questprof.errors import Exit, QuestprofError
from questprof.grid import plan_blocks
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.settings import RULES, Settings
from questprof.timing.stopping import fixed


def test_a_short_time_keeps_both_ends_and_names_what_it_drops() -> None:
    """Five lengths; time for the start and a tenth more than the two that are the ends take."""
    blocks = plan_blocks(sweep_grid(asked()))
    settings = Settings("cuda", RULES["cuda"])
    costs = [cost(block, GPU, settings).seconds for block in blocks]
    made = plan_sweep(blocks, GPU, settings, ASSUMED["cuda"].start_s + 1.1 * (costs[0] + costs[-1]) + 0.01)
    assert [block.points[0].seq_len for block in made.blocks] == [2048, 32768]
    assert made.dropped == tuple(block.title for block in blocks[1:-1])
    assert made.seconds == pytest.approx(ASSUMED["cuda"].start_s + costs[0] + costs[-1])
    assert plan_sweep(blocks, GPU, settings, 1e6).dropped == ()


def test_time_for_one_length_goes_to_one_above_the_budget() -> None:
    """At 64 tokens Quest reads everything, whatever it costs: alone it would answer nothing."""
    blocks = plan_blocks(sweep_grid(asked(lengths=(64, 2048, 4096))))
    settings = Settings("cuda", RULES["cuda"])
    last = cost(blocks[-1], GPU, settings).seconds
    made = plan_sweep(blocks, GPU, settings, ASSUMED["cuda"].start_s + 1.1 * last + 0.01)
    assert [block.points[0].seq_len for block in made.blocks] == [4096]
    assert telling(blocks) == [2, 0, 1]


def test_no_time_at_all_is_a_usage_error_that_says_how_much_is_needed() -> None:
    blocks = plan_blocks(sweep_grid(asked(device="cpu")))
    with pytest.raises(QuestprofError, match="too short") as caught:
        plan_sweep(blocks, CPU, Settings("cpu", RULES["cpu"]), 1.0)
    assert caught.value.status == Exit.USAGE
    assert "Give about" in caught.value.fix


def test_lengths_span_the_traffic() -> None:
    """From the doubling below 3000 to the one above 30000; one above the budget, below it the two ends."""
    assert spanning(traffic(3000, 30000), 1024, 131072) == (2048, 4096, 8192, 16384, 32768)
    assert spanning(traffic(10, 50), 2048, 131072) == (32, 2048, 4096)
    assert spanning(traffic(600, 1000), 512, 131072) == (512, 1024)
    assert spanning(traffic(100, 5000), 512, 131072) == (64, 512, 1024, 2048, 4096, 8192)
    assert spanning(traffic(500_000), 2048, 131072) == (131072,)
    assert spanning(traffic(1.0, 9e5), 2048, 8192) == (32, 2048, 4096, 8192)


def test_lengths_asked_for_go_first_and_end_at_the_models_maximum() -> None:
    tiny = load_config("tiny")
    assert choose_lengths("1k,8k", "cpu", 512, traffic(3000), tiny) == (1024, 8192)
    assert choose_lengths(None, "cpu", 512, None, tiny) == (1024, 2048, 4096, 8192)
    mistral = load_config("mistral-7b-v0.3")
    assert max(choose_lengths(None, "cuda", 2048, None, mistral)) == 32768
    with pytest.raises(QuestprofError, match="covers every length"):
        choose_lengths("1k,2k", "cuda", 2048, None, None)


def test_the_middle_of_traffic_and_the_nearest_length() -> None:
    """Steps 1, 1, 1: the middle of 100, 5000, 9000 is 5000, nearest (by ratio) to 4096."""
    assert middle(traffic(9000, 100, 5000)) == 5000
    assert nearest((2048, 4096, 8192), 5000) == 4096
    assert nearest((2048, 8192), 4096) == 8192
    assert asked(traffic=traffic(9000, 100, 5000)).reference == 4096
    assert asked().reference == 32768


@pytest.mark.parametrize("text", ["1k,2k", "1k..4k", "0", "many"])
def test_one_setting_at_a_time(text: str) -> None:
    with pytest.raises(QuestprofError):
        parse_one(text, "budget")


def test_steps_are_timed_at_three_lengths_above_the_budget() -> None:
    assert step_lengths(asked(lengths=(1024, 2048, 4096, 32768, 131072))) == (2048, 32768, 131072)
    assert step_lengths(asked(lengths=(1024, 2048))) == (2048,)


def test_bytes_are_counted_short_by_a_trace_and_at_the_reference_by_hardware() -> None:
    assert bytes_asked(asked(), traced=True).lengths == (2048,)
    assert bytes_asked(asked(), traced=False).lengths == (2048, 32768)
    assert bytes_asked(asked(), traced=True).all_heads


def test_shapes_and_whole_models(tmp_path: Path) -> None:
    shape, config, why = resolve("llama-3.1-8b", "cuda", None, None)
    assert (shape.num_kv_heads, shape.kv_dtype, why) == (8, "fp16", "")
    assert config is not None
    shape, config, why = resolve("tiny", "cpu", None, None)
    assert (shape.kv_dtype, config is not None) == ("fp32", True)
    shape, config, why = resolve("qwen3-8b", "cuda", None, None)
    assert config is None
    assert "config.json" in why
    shape, config, why = resolve("llama-3.1-8b", "cuda", "bf16", None)
    assert config is None
    assert "leave --dtype out" in why
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 2}))
    shape, config, why = resolve(str(path), "cuda", None, None)
    assert shape.num_qo_heads == 8
    assert config is None
    assert why
    with pytest.raises(QuestprofError, match="no preset"):
        resolve("nothing", "cuda", None, None)


def test_steps_that_do_not_fit_are_left_out_the_reference_last() -> None:
    question = asked(device="cpu", shape_name="tiny", weights="fp32", lengths=(2048, 4096, 32768))
    blocks = plan(step_request(question, 6))
    pacer = StepPacer("cpu", 6, 16)
    longest = [block for block in blocks if max(block.seq_lens) == 32768]
    assert pacer.choose(blocks, 32768, pacer.expects(longest) + 0.01) == tuple(longest)
    assert pacer.choose(blocks, 32768, 1e6) == blocks
    assert pacer.choose(blocks, 32768, 0.0) == ()
    assert step_seconds(longest[0], "cpu", 12, 16) > step_seconds(longest[0], "cpu", 6, 16)


def test_estimates_follow_what_earlier_batches_took() -> None:
    question = asked(device="cpu", shape_name="tiny", weights="fp32", lengths=(2048,))
    blocks = plan(step_request(question, 6))
    pacer = StepPacer("cpu", 6, 16)
    before = pacer.expects(blocks)
    pacer.took(blocks, 3 * before)
    assert pacer.expects(blocks) == pytest.approx(3 * before)


def test_outputs_lie_beside_the_page_and_replace_nothing(tmp_path: Path) -> None:
    page = tmp_path / "d.html"
    paths = plan_paths(page, "decide", "cpu", force=False, resume=False)
    assert paths.profile("sweep") == tmp_path / "d-sweep.jsonl"
    (tmp_path / "d-bytes.jsonl").write_text("mine")
    with pytest.raises(QuestprofError, match="exists"):
        plan_paths(page, "decide", "cpu", force=False, resume=False)
    plan_paths(page, "decide", "cpu", force=True, resume=False)
    for arguments in (
        {"output": None, "resume": True, "force": False},
        {"output": page, "resume": True, "force": True},
        {"output": tmp_path / "d.jsonl", "resume": False, "force": False},
    ):
        with pytest.raises(QuestprofError):
            plan_paths(arguments.pop("output"), "decide", "cpu", **arguments)  # type: ignore[arg-type]


def test_blocks_are_timed_no_longer_than_all_of_them_may_take() -> None:
    """60 s, 12 of them to start: 48 s for 4 blocks and half as much again each, 8 s."""
    rule = RULES["cpu"]
    assert paced_rule(rule, 4, 60.0, 12.0).max_seconds == 8.0
    assert paced_rule(rule, 4, 600.0, 12.0) == rule
    assert paced_rule(rule, 4, 13.0, 12.0).max_seconds == 1.0
    assert paced_rule(fixed(5), 4, 13.0, 12.0) == fixed(5)


def test_steps_of_a_slow_machine_are_expected_to_be_slow_until_some_were_measured() -> None:
    blocks = plan(step_request(asked(config=load_config("llama-3.1-8b"), shape_name="llama-3.1-8b"), None))
    usual, slow = StepPacer("cuda", 20, 16), StepPacer("cuda", 20, 16, slowness=3.0)
    assert slow.expects(blocks) == pytest.approx(3 * usual.expects(blocks))
    slow.took(blocks, usual.expects(blocks) / 2)
    assert slow.expects(blocks) == pytest.approx(usual.expects(blocks) / 2)

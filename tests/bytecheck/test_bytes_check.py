"""judge.py: equal counts hold, every planted mistake fails with its cause, worked by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bytes_records import (
    BIG,
    KV,
    MIB,
    POINT,
    PROVEN,
    SELECTED,
    SUMMARY,
    chain_reads,
    ledger,
    measured,
    refused,
    tensors,
    traced,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import GQA_SHAPE, READ_1000, SHAPE, profile, quest
from questprof.bytecheck import ratio as ratios
from questprof.bytecheck.judge import judge, judge_profile, overall
from questprof.bytecheck.judgement import Judgement
from questprof.bytecheck.summary import LABELS
from questprof.bytecheck.tolerance import LAUNCH_BYTES
from questprof.counts import Calibration, StageCount, TensorCount, UnmappedProof
from questprof.errors import Exit
from questprof.model import Point
from questprof.store import read_profile

ROOT = Path(__file__).parents[2]
GQA = Point(GQA_SHAPE, 4096, token_budget=1024)
TRANSPOSED = replace(POINT, summary_layout="transposed")


def failed(record) -> tuple[Judgement, str]:
    """The judgement of a record that must fail, and all its sentences."""
    found = judge(record)
    assert found.holds is False
    assert overall([found]) is Exit.CHECK_FAILED
    assert all(sentence.startswith("Fails: ") for sentence in found.sentences)
    return found, " ".join(found.sentences)


# What equals its ledger holds.


@pytest.mark.parametrize(
    "record",
    [
        traced(),
        traced(replace(POINT, page_size=12, token_budget=1020)),
        traced(replace(POINT, seq_len=4001)),
        traced(GQA, union_ratio=2.5),
        traced(TRANSPOSED, sign_share=0.5),
        traced(Point(GQA_SHAPE, 500, 16, 128, 2, seq_lens=(500, 90)), union_ratio=1.5),
        traced(replace(POINT, token_budget=4096)),
        traced(replace(POINT, seq_len=4001, policy="quest-open")),
        measured(),
        measured(proof=PROVEN),
        measured(replace(BIG, seq_len=2048, token_budget=1024, page_size=8)),
    ],
)
def test_counts_that_are_the_ledger_hold(record):
    found = judge(record)
    assert found.holds is True
    assert found.causes == ()
    (sentence,) = found.sentences
    chain = ", quest" if "ncu" in found.sources else ""
    assert sentence.startswith(f"Holds: append, score, select, attend, dense{chain}; ")
    assert overall([found]) is Exit.OK


def test_a_trace_says_to_the_byte_and_hardware_its_worst_read():
    assert judge(traced()).sentences == (
        "Holds: append, score, select, attend, dense; K, V and summary to the byte; read ratio; "
        "unselected pages.",
    )
    # 64 MiB of summary and 96 KiB of extras: 32 KiB more are 0.05 %
    assert "the worst read is score's, +0.05 %" in judge(measured(reads={"score": 32 << 10})).sentences[0]


def test_the_ratio_is_worked_by_hand():
    """1/16 + 64/256 = 0.3125; counted (131072 + 2 x 262144) / (2 x 1048576) is the same."""
    (ratio,) = [one for one in judge(traced()).findings if one.what == "read ratio"]
    assert ratio.counted == ratio.predicted == 0.3125 == (SUMMARY + 2 * SELECTED) / (2 * KV)
    assert ratio.tolerance == 0  # K, V and a paired summary are whole sectors
    (ratio,) = [one for one in judge(traced(TRANSPOSED, sign_share=0.5)).findings if one.what == "read ratio"]
    assert ratio.counted == ratio.predicted == 1 / 32 + 64 / 256


def test_the_ratio_fails_on_its_own():
    """Every stage within its 1 % + 128 KiB, score and attend above and dense below: together 2 % and more."""
    most = {s.stage: s.read.above_bytes for s in judge(measured()).stages if s.mode == "isolated"}
    off = {"score": most["score"], "attend": most["attend"], "dense": -most["dense"]}
    found, said = failed(measured(reads=off))
    assert all(stage.holds for stage in found.stages)
    (ratio,) = [one for one in found.findings if one.holds is False]
    assert (ratio.what, ratio.cause) == ("read ratio", "unnamed")
    assert ratio.counted / ratio.predicted == pytest.approx(1.02, abs=0.01)
    assert "the read ratio is 0.12" in said
    assert "0.12500 by eq. (12)" in said


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03, 2, 100])
def test_a_wrong_formula_does_not_widen_its_own_tolerance(factor, monkeypatch):
    """Counts and ledger agree, and the formula is off: by a few percent already, with a tail page too."""
    right = ratios.formula_ratio
    monkeypatch.setattr(ratios, "formula_ratio", lambda *given: factor * right(*given))
    tail = replace(POINT, seq_len=4095)
    for record in (traced(), measured(), traced(tail), traced(GQA, union_ratio=2.5)):
        found = judge(record)
        (one,) = [each for each in found.findings if each.what == "read ratio"]
        assert one.holds is False
        assert "does not confirm" in one.sentence
        assert all(stage.holds for stage in found.stages)
        assert overall([found]) is Exit.CHECK_FAILED


def test_a_stage_that_was_not_counted_leaves_it_inconclusive():
    full = measured()
    for stage in ("score", "select", "attend", "dense"):
        found = judge(replace(full, counts=tuple(c for c in full.counts if c.stage != stage)))
        assert found.holds is None
        assert f"not counted by ncu: {stage}." in found.sentences[0]
        assert overall([found]) is Exit.INCONCLUSIVE
    lost = judge(measured(chain=False, reason="pipelined: no end after 600 s"))
    assert (lost.holds, overall([lost])) == (None, Exit.INCONCLUSIVE)
    assert lost.sentences == (
        "Inconclusive: not counted by ncu: quest in a chain (pipelined: no end after 600 s).",
    )
    assert judge(measured(chain=False)).holds is None
    few = tuple(c for c in full.counts if c.stage in ("dense", "score") and c.mode == "isolated")
    assert (
        "not counted by ncu: select, attend, quest in a chain"
        in judge(replace(full, counts=few)).sentences[0]
    )


def test_dense_alone_has_no_chain_to_lose():
    point = replace(BIG, policy="dense", token_budget=0)
    own = tuple(c for c in measured().counts if c.stage == "dense")
    record = replace(measured(), point=point, ledger=ledger(point, variant="cuda"), counts=own)
    assert judge(record).holds
    assert judge(replace(record, counts=())).holds is None


def test_the_points_of_an_h200_hold_and_bear_out_the_constants():
    """What LAUNCH_BYTES, L2_FACTOR and the threshold of writes say of the profile that they come from."""
    found = judge_profile(read_profile(ROOT / "profiles" / "h200" / "bytes.jsonl"))
    assert [one.holds for one in found] == [True] * 63
    alone = [stage for one in found for stage in one.stages if stage.mode == "isolated"]
    assert max(abs(stage.read.residual_bytes) for stage in alone) < 94_000 < LAUNCH_BYTES / 1.39
    through_l2 = {
        name: max(
            stage.x_l2 * stage.read.counted_bytes / stage.read.predicted_bytes
            for stage in alone
            if stage.stage == name
        )
        for name in ("score", "attend", "dense")
    }
    assert max(through_l2["attend"], through_l2["dense"]) < 1.02
    assert through_l2["score"] < 1 + 256 / 4096  # every warp reads its head's query beside 8 boxes of 512 B
    written = [stage for stage in alone if stage.stage in ("attend", "dense")]
    assert max(stage.write.residual_bytes for stage in written) < 458_000
    assert max(stage.write.residual_bytes / stage.read.predicted_bytes for stage in written) < 0.004


def test_a_users_kernels_that_fail_somewhere_prove_nothing():
    mine = replace(POINT, variant="mine:stages")
    lost = replace(
        traced(mine), counts=(), status="unavailable", reason="the process ended", variant="mine:stages"
    )
    assert overall([judge(traced(POINT)), judge(lost)]) is Exit.INCONCLUSIVE
    # A user's CUDA kernels, which no interpreter runs, are counted by hardware all the same.
    beside = replace(lost, point=replace(lost.point, device="cpu"))
    assert overall([judge(measured()), judge(beside)]) is Exit.OK


# Planted mistakes in a trace.


def page(n: int) -> int:
    """Bytes of K of n pages of one head: 16 tokens x 128 B."""
    return n * 2048


@pytest.mark.parametrize(
    ("changes", "unselected", "cause", "words"),
    [
        ({"attend": {"v": None}}, 0, "K without V", "V was not read"),
        ({"attend": {"v": None, "k": TensorCount(SELECTED, 0, SELECTED)}}, 0, "K without V", "V was not"),
        ({"attend": {"k": None}}, 0, "V without K", "K was not read"),
        ({"score": {"summary": None}}, 0, "summary not read", "0 B of 128 KiB"),
        ({"score": {"summary": TensorCount(512)}}, 0, "summary not read", "512 B of 128 KiB"),
        (
            {"score": {"summary": TensorCount(SUMMARY // 2)}},
            0,
            "half of the summary read",
            "min without max",
        ),
        (
            {"score": {"summary": None, "k": TensorCount(KV)}},
            0,
            "whole cache read",
            "score read 1 MiB of K and V",
        ),
        (
            {"attend": {"other": TensorCount(2 * SELECTED, 2 * SELECTED)}},
            0,
            "gather through a temporary",
            "512 KiB written",
        ),
        (
            {"attend": {"k": TensorCount(KV), "v": TensorCount(KV)}},
            2 * (KV - SELECTED),
            "whole cache read",
            "",
        ),
        (
            {"attend": {"k": TensorCount(SELECTED + page(1)), "v": TensorCount(SELECTED + page(1))}},
            2 * page(1),
            "unselected page touched",
            "4 KiB in pages that no query head selected",
        ),
        ({"attend": {"k": TensorCount(SELECTED + 32)}}, 32, "unselected page touched", "32 B in pages"),
        (
            {
                "attend": {
                    "k": TensorCount(SELECTED - page(1), 0, page(1)),
                    "v": TensorCount(SELECTED - page(1)),
                }
            },
            0,
            "duplicate ids",
            "1 of 128 pages",
        ),
        (
            {"dense": {"k": TensorCount(KV, 0, KV), "v": TensorCount(KV, 0, KV)}},
            0,
            "read twice",
            "2 MiB of K and V read again",
        ),
        ({"score": {"summary": TensorCount(SUMMARY, 0, SUMMARY // 2)}}, 0, "read twice", "64 KiB of the"),
        ({"attend": {"k": TensorCount(SELECTED - 32)}}, 0, "unnamed", "k read 262112 B, 262144 B predicted"),
        ({"select": {"other": TensorCount(4096)}}, 0, "unnamed", "other read 4096 B, 0 B predicted"),
        ({"append": {"v": None}}, 0, "unnamed", "v written 0 B, 256 B predicted"),
    ],
)
def test_a_mistake_in_a_trace_is_named(changes, unselected, cause, words):
    found, said = failed(traced(changes=changes, unselected_bytes=unselected))
    assert cause in found.causes
    stages = {stage.stage: stage for stage in found.stages}
    assert {name for name, stage in stages.items() if stage.holds is False} == set(changes)
    (stage,) = changes
    assert stages[stage].cause == cause
    assert ("cause unnamed" if cause == "unnamed" else f": {cause}") in said
    assert words in said
    assert "probably" not in said  # a trace knows


def test_a_tile_of_16_under_a_page_of_12():
    """Budget 1020 selects 85 pages; the tail page holds 4096 - 341 x 12 = 4 tokens. 84 pages of 12 and one of
    4 are 1012 valid tokens; as tiles 85 x 16 = 1360. Half of the surplus lies in pages that are read anyway.
    """
    point = replace(POINT, page_size=12, token_budget=1020)
    valid, tiled = 1012 * 256, 1360 * 256
    k = next(e.read_bytes for e in ledger(point) if (e.stage, e.tensor) == ("attend", "k"))
    assert k == valid
    over = TensorCount(valid + (tiled - valid) // 2, 0, (tiled - valid) // 2)
    found, said = failed(traced(point, {"attend": {"k": over, "v": over}}, unselected_bytes=tiled - valid))
    assert found.causes == ("tile larger than page",)
    assert "the reads are those of a tile of 16 tokens" in said


def test_a_tile_that_the_end_of_the_pool_cuts_off_is_still_a_tile():
    """As above, but one head's tile over the pool's last page lacks its 4 tokens of 128 B."""
    point = replace(POINT, page_size=12, token_budget=1020)
    valid, tiled = 1012 * 256, 1360 * 256 - 4 * 128
    over = TensorCount(valid + (tiled - valid) // 2, 0, tiled - valid - (tiled - valid) // 2)
    found, said = failed(traced(point, {"attend": {"k": over, "v": over}}, unselected_bytes=tiled - valid))
    assert found.causes == ("tile larger than page",)
    assert "a tile of 16 tokens" in said


def test_one_tile_over_the_tail_page_alone():
    """4001 tokens leave 1 in the tail page of 16: a tile of 16 reads 15 more tokens, 256 B each, of K."""
    point = replace(POINT, seq_len=4001)
    valid = (63 * 16 + 1) * 256
    over = TensorCount(valid + 15 * 256)
    found, said = failed(traced(point, {"attend": {"k": over, "v": over}}))
    assert found.causes == ("tile larger than page",)
    assert "the reads are those of a tile of 16 tokens" in said


def test_an_unselected_page_is_no_tile_over_the_tail_page():
    """Half a page valid, two heads: a tile of 16 reads 2 x 8 tokens too many, as many as one page holds."""
    point = replace(POINT, seq_len=4088)
    valid = (63 * 16 + 8) * 256
    over = TensorCount(valid + page(1))
    changes = {"attend": {"k": over, "v": over}}
    assert failed(traced(point, changes))[0].causes == ("tile larger than page",)
    found, _ = failed(traced(point, changes, unselected_bytes=2 * page(1)))
    assert found.causes == ("unselected page touched",)


def test_heads_of_a_user_kernel_may_each_read_for_themselves():
    """A group of 4: the summary three more times is the user's affair, four more is not; ours never."""
    for times, variant, holds in ((3, "mine:stages", True), (4, "mine:stages", False), (1, "triton", False)):
        record = traced(GQA, union_ratio=2.0)
        (summary,) = [e.read_bytes for e in record.ledger if (e.stage, e.tensor) == ("score", "summary")]
        record = traced(
            GQA, {"score": {"summary": TensorCount(summary, 0, times * summary)}}, union_ratio=2.0
        )
        assert judge(replace(record, point=replace(record.point, variant=variant))).holds is holds


def test_duplicate_ids_show_in_the_union_too():
    """63 of 64 pages: |union| / K = 0.984375, whatever was read."""
    found, said = failed(traced(union_ratio=63 / 64))
    assert found.causes == ("duplicate ids",)
    assert "|union| / K is 0.9844: a head selected a page twice" in said
    for record, source in ((traced(union_ratio=0.9), "trace"), (measured(union_ratio=0.9), "ncu")):
        (ids,) = [one for one in judge(record).findings if one.what == "page ids"]
        assert (ids.holds, ids.source) == (False, source)


def test_heads_of_a_group_may_read_their_common_pages_again():
    """4 heads a group over a union of 2 K: every page is read twice on average, and that is expected."""
    record = traced(GQA, union_ratio=2.0)
    (attend,) = [stage for stage in judge(record).stages if stage.stage == "attend"]
    k = next(term for term in attend.terms if term.tensor == "k")
    assert k.repeat_read_bytes == k.read.counted_bytes
    assert (attend.holds, attend.repeat_share) == (True, 0.0)
    doubled = TensorCount(k.read.counted_bytes, 0, 3 * k.read.counted_bytes)
    found, _ = failed(traced(GQA, {"attend": {"k": doubled, "v": doubled}}, union_ratio=2.0))
    assert found.causes == ("read twice",)


def test_unselected_bytes_fail_even_where_the_totals_agree():
    found, said = failed(traced(unselected_bytes=64))
    assert found.causes == ("unselected page touched",)
    assert "attend read 64 B of K and V in unselected pages" in said


def test_a_wrong_result_is_a_failure():
    _, said = failed(traced(status="wrong", reason="attend is off by 0.3"))
    assert "its output is wrong: attend is off by 0.3" in said
    assert overall([judge(refused(status="wrong"))]) is Exit.CHECK_FAILED


# What a sector adds.


def test_sectors_may_be_longer_than_a_small_tensor_but_not_more():
    """8 bytes of last_page_len are a sector of 32; 1024 page ids x 2 heads are whole sectors already."""
    for length, holds in ((32, True), (64, False)):
        record = traced(changes={"attend": {"last_page_len": TensorCount(length)}})
        assert judge(record).holds is holds


def test_looked_up_pages_may_each_lie_in_a_sector_of_their_own():
    """64 pages at least, 128 (2 heads) at most, each in a sector: but no more than the table of 256 x 4 B."""
    for read, holds in ((255, False), (256, True), (1024, True), (1024 + 32, False)):
        record = traced(changes={"attend": {"block_table": TensorCount(read)}})
        assert judge(record).holds is holds


def test_a_transposed_row_ends_in_a_sector():
    """250 pages of 2 B a row: 500 bytes are 512 in sectors, for each of 2 heads x 64 picked rows."""
    point = replace(TRANSPOSED, seq_len=4000)
    for extra, holds in ((2 * 64 * 12, True), (2 * 64 * 12 + 32, False)):
        read = 2 * 64 * 250 * 2 + extra
        record = traced(point, {"score": {"summary": TensorCount(read)}}, sign_share=0.5)
        assert judge(record).holds is holds


def test_a_short_transposed_ratio_holds_with_its_rows_in_sectors():
    """4000 tokens: the rows' 12 B more are 1536 B of 2 x 1000 KiB, which eq. (12) does not count."""
    read = 2 * 64 * 512
    point = replace(TRANSPOSED, seq_len=4000)
    found = judge(traced(point, {"score": {"summary": TensorCount(read)}}, sign_share=0.5))
    (ratio,) = [one for one in found.findings if one.what == "read ratio"]
    assert ratio.holds
    assert ratio.counted > ratio.predicted


def test_hardware_reads_the_rows_of_a_transposed_summary_in_whole_accesses():
    """65 pages of 2 B leave 2 B of a row in the second block: 62 B more for 32 heads x 128 rows, 248 KiB."""
    point = replace(BIG, seq_len=65 * 16, token_budget=1024, summary_layout="transposed")
    (score,) = [stage for stage in judge(measured(point)).stages if stage.stage == "score"]
    predicted = score.read.predicted_bytes
    assert score.read.above_bytes == round(0.01 * predicted) + 131072 + 62 * 32 * 128
    assert score.tolerance == "1 % + 128 KiB a launch + rows in whole 64 B"


def test_hardware_reads_a_whole_access_for_each_number_of_a_transposed_append():
    """32 heads x 128 dims x min and max, 2 B each in 64 B: 62 x 8192 B more. An H200 read 517852 B more."""
    point = replace(BIG, summary_layout="transposed")
    (append,) = [stage for stage in judge(measured(point)).stages if stage.stage == "append"]
    assert append.read.above_bytes == 131072 + 62 * 8192
    assert append.read.above_bytes >= 517852


def test_a_user_kernel_arranges_its_scratch_as_it_likes():
    """Up to a gather's size beyond the project's own, a quarter of K and V: 128 KiB here."""
    (planned,) = [e for e in ledger() if (e.stage, e.tensor) == ("attend", "split_partials")]
    most = SELECTED // 2 + planned.write_bytes
    for written, holds in ((4096, True), (most, True), (most + 32, False), (SELECTED, False)):
        own = {"split_partials": TensorCount(written, written), "counters": None}
        record = traced(replace(POINT, variant="mine:stages"), {"attend": own})
        record = replace(record, point=replace(record.point, variant="mine:stages"))
        assert judge(record).holds is holds


# Hardware totals.


@pytest.mark.parametrize(
    ("reads", "writes", "cause", "words"),
    [
        ({"attend": -32 * MIB}, {}, "K without V", "totals cannot tell it from V without K"),
        ({"score": -64 * MIB}, {}, "summary not read", ""),
        ({"score": -32 * MIB}, {}, "half of the summary read", ""),
        ({"attend": (1024 - 64) * MIB}, {}, "whole cache read", "all 1 GiB of K and V"),
        ({"score": (512 - 64) * MIB}, {}, "whole cache read", ""),
        ({"attend": 64 * MIB}, {"attend": 64 * MIB}, "gather through a temporary", "64 MiB written too much"),
        ({}, {"attend": 32 * MIB}, "gather through a temporary", "32 MiB written too much"),
        ({}, {"quest": 32 * MIB}, "gather through a temporary", "32 MiB written too much"),
        ({}, {"dense": 50 << 30}, "gather through a temporary", "50 GiB written too much"),
        ({}, {"score": 50 * 64 * MIB}, "gather through a temporary", "3.125 GiB written too much"),
        ({"attend": 64 * MIB}, {}, "read twice", "or a tile of 32 tokens"),
        ({"dense": 1024 * MIB}, {}, "read twice", ""),
        ({"score": 64 * MIB}, {}, "read twice", "twice the summary"),
        ({"attend": -8 * MIB}, {}, "cache hits", ""),
        ({"dense": -100 * MIB}, {}, "cache hits", ""),
        ({"attend": 2 * MIB}, {}, "unnamed", "cause unnamed"),
        ({"select": 129 << 10}, {}, "unnamed", ""),
        ({"append": 129 << 10}, {}, "unnamed", ""),
    ],
)
def test_a_mistake_in_hardware_totals_has_a_probable_cause(reads, writes, cause, words):
    found, said = failed(measured(reads=reads, writes=writes))
    ((stage, finding),) = [(s.stage, s) for s in found.stages if s.holds is False]
    assert finding.cause == cause
    assert stage in reads | writes
    assert words in said
    assert (f"probably {cause}" in said) == (cause != "unnamed")
    assert "attend (ncu, cuda)" in said or stage != "attend"


def test_a_tile_of_16_under_a_page_of_12_in_hardware_totals():
    """16 / 12 = 1.33: a third more than K and V, of which neighbouring heads read some anyway."""
    point = replace(BIG, page_size=12, token_budget=4092, seq_len=12 * 5461)
    kv = 2 * 4092 * 256 * 32
    for share, cause in ((1 / 3, "tile larger than page"), (1 / 4, "tile larger than page")):
        found, said = failed(measured(point, reads={"attend": round(share * kv)}))
        assert found.causes == (cause,)
        assert "the reads are those of a tile of 8 or 16 tokens" in said


def test_a_write_below_a_gathers_size_is_not_judged():
    """A quarter of K and V, or of the summary, and 128 KiB: 16, 256 and 16 MiB here."""
    most = {"attend": 16 * MIB, "score": 16 * MIB, "dense": 256 * MIB, "quest": 16 * MIB}
    least = {stage: size + (128 << 10) for stage, size in most.items()}
    assert judge(measured(writes={stage: size - 1 for stage, size in least.items()})).holds
    for stage, size in least.items():
        assert failed(measured(writes={stage: size}))[0].causes == ("gather through a temporary",)


@pytest.mark.parametrize("stage", ["score", "attend", "dense"])
def test_the_tolerance_of_hardware_is_one_percent_and_128_kib(stage):
    predicted = sum(e.read_bytes for e in ledger(BIG, variant="cuda") if e.stage == stage)
    most = round(0.01 * predicted) + 131072
    assert judge(measured(reads={stage: most})).holds
    failed(measured(reads={stage: most + 1}))
    (finding,) = [s for s in judge(measured()).stages if s.stage == stage]
    assert finding.tolerance == "1 % + 128 KiB a launch"
    assert finding.read.above_bytes == most


def test_small_stages_have_the_absolute_term_alone():
    for stage in ("select", "append"):
        assert judge(measured(reads={stage: 131072})).holds
        (finding,) = [s for s in judge(measured()).stages if s.stage == stage]
        assert finding.tolerance == "128 KiB a launch"
        assert finding.read.above_bytes == 131072


def test_the_l2_cache_tells_what_was_read_again():
    """Sectors of 32 B through L2: once K and V holds, twice is named although memory gave them once."""
    whole = 1024 * MIB
    for factor, holds in ((1.0, True), (1.4, True), (2.0, False)):
        metrics = {"dense": {"lts__t_sectors_srcunit_tex_op_read.sum": factor * whole / 32}}
        found = judge(measured(metrics=metrics))
        assert found.holds is holds
        (dense,) = [stage for stage in found.stages if stage.stage == "dense"]
        assert dense.x_l2 == pytest.approx(factor, rel=1e-2)
        assert dense.cause == ("" if holds else "read twice")
    assert all(stage.x_l2 is None for stage in judge(measured()).stages)


def test_a_copy_that_no_counter_sees_makes_a_stage_inconclusive():
    record = measured()
    unseen = ("attend_kernel", "copy or fill by the driver, not counted")
    counts = tuple(replace(c, kernels=unseen) if c.stage == "attend" else c for c in record.counts)
    found = judge(replace(record, counts=counts))
    assert (found.holds, overall([found])) == (None, Exit.INCONCLUSIVE)
    assert found.sentences[0].endswith("(0.00 %): copy or fill by the driver, not counted.")


def test_launches_count_for_the_tolerance():
    """Three kernels of a stage may read 128 KiB each; a chain that hides its kernels has at most three."""
    record = measured(pipelined=chain_reads())
    counts = tuple(replace(c, kernels=("a", "b", "c")) if c.stage == "select" else c for c in record.counts)
    hidden = tuple(replace(c, kernels=("range",)) if c.stage == "quest" else c for c in counts)
    above = {s.stage: s.read.above_bytes for s in judge(replace(record, counts=hidden)).stages}
    assert above["select"] == 3 * 131072
    assert above["quest"] == round(0.01 * chain_reads()) + 3 * 131072


# The proof by unmapping.


def test_the_proof_by_unmapping():
    proven = judge(measured(proof=PROVEN))
    assert "unmapped pages" in proven.sentences[0]
    assert [one.source for one in proven.findings if one.what == "unmapped pages"] == ["proof"]
    assert LABELS["proof"] == "proof on the device"
    fault = replace(PROVEN, completed=False, reason="an illegal memory access")
    found, said = failed(measured(proof=fault))
    assert found.causes == ("unselected page touched",)
    assert "did not complete with 512 MiB of unselected pages unmapped: an illegal memory access" in said
    nothing = judge(measured(proof=UnmappedProof(2 * MIB, 0, 12, True)))
    assert (nothing.holds, overall([nothing])) == (None, Exit.INCONCLUSIVE)
    assert "no granule of 2 MiB holds unselected pages alone" in nothing.sentences[0]


# Calibration, alarms, absence.


@pytest.mark.parametrize(
    ("counted", "holds"),
    [(100 * MIB, True), (101 * MIB, True), (99 * MIB, True), (101 * MIB + 1, None), (99 * MIB - 1, None)],
)
def test_a_counter_that_is_off_by_over_one_percent_proves_nothing(counted, holds):
    off = Calibration("ncu", 100 * MIB, counted)
    found = judge(measured(counter_calibration=(off,)))
    assert found.holds is holds
    assert overall([found]) is (Exit.OK if holds else Exit.INCONCLUSIVE)
    assert found.calibration[0].error == pytest.approx(counted / (100 * MIB) - 1)
    if not holds:
        assert all(stage.holds is None for stage in found.stages)
        assert found.sentences == (
            f"Inconclusive: the ncu counter is off by {counted / MIB - 100:+.2f} %, more than 1 %.",
        )


def test_a_broken_counter_excuses_no_failure_of_another_kind():
    off = Calibration("ncu", 0, 0)
    found = judge(measured(reads={"attend": -32 * MIB}, counter_calibration=(off,)))
    assert found.holds is None
    assert "read nothing of known size" in found.sentences[0]
    fault = replace(PROVEN, completed=False)
    assert judge(measured(counter_calibration=(off,), proof=fault)).holds is False


def test_what_cannot_be_is_refused_with_an_alarm():
    """1 GiB in 200 us are 5369 GB/s, above 1.02 x 4600; a hit rate above 100 %; a negative count."""
    fast = {"dense": {"gpu__time_duration.sum": 200_000.0}}
    found = judge(measured(metrics=fast), ceiling_gb_s=4600.0)
    assert (found.holds, found.refused) == (None, ("dense",))
    assert [stage.stage for stage in found.stages] == ["append", "score", "select", "attend", "quest"]
    assert "above 1.02 x the measured read ceiling of 4600 GB/s" in found.alarms[0]
    assert found.sentences[0].startswith("Refused: dense (ncu, isolated): 53")
    assert judge(measured(metrics=fast), ceiling_gb_s=5400.0).holds
    hits = {"score": {"lts__t_sector_hit_rate.pct": 100.5}}
    assert judge(measured(metrics=hits)).refused == ("score",)
    assert judge(measured(reads={"append": -(1 << 20)})).refused == ("append",)


def test_nothing_counted_is_no_verdict():
    found = judge(refused())
    assert (found.holds, found.sources) == (None, ())
    assert found.sentences == ("Nothing was counted (unavailable: no ncu).",)
    assert overall([found]) is Exit.MACHINE
    assert overall([]) is Exit.MACHINE
    assert overall([found, judge(traced())]) is Exit.OK
    assert overall([judge(traced()), judge(traced(unselected_bytes=32))]) is Exit.CHECK_FAILED


def test_a_stage_without_a_ledger_is_inconclusive():
    record = traced()
    extra = StageCount("mystery", "trace", 100, 0, tensors={"other": TensorCount(100)})
    found = judge(replace(record, counts=(*record.counts, extra)))
    assert found.holds is None
    assert (
        "mystery (trace, triton) read 100 B, 0 B predicted: the ledger has no such stage"
        in found.sentences[0]
    )


def test_counts_of_the_formula_are_no_counts():
    record = replace(refused(), counts=(StageCount("dense", "formula", 1, 1),))
    assert judge(record).sources == ()


# Reuse, gather.


def test_reuse_between_stages():
    """The chain alone reads its stages' sum; pipelined 1 MiB less."""
    isolated = chain_reads()
    found = judge(measured(pipelined=isolated - MIB))
    assert found.holds
    (reuse,) = found.reuse
    assert (reuse.isolated_bytes, reuse.saved_bytes) == (isolated, MIB)
    assert reuse.saved_share == pytest.approx(MIB / isolated)
    assert judge(measured(chain=False)).reuse == ()


def test_a_chain_may_find_what_it_wrote_in_the_cache_but_no_more():
    """Scores, page ids and partials are read from the cache at best, with 1 % + 3 x 128 KiB besides."""
    assert judge(measured(pipelined=chain_reads() - 2 * MIB)).holds
    _, said = failed(measured(pipelined=chain_reads() - 20 * MIB))
    assert "quest (ncu, cuda, pipelined)" in said


def test_a_gathered_copy_is_shown_beside_attention_in_place():
    """The copy of 2 x 256 KiB is written and read besides what attention in place moves."""
    record = traced()
    attend = next(count for count in record.counts if count.stage == "attend")
    in_place = attend.read + attend.write
    copied = StageCount("gather", "trace", attend.read + 2 * SELECTED, attend.write + 2 * SELECTED)
    record = replace(record, counts=(*record.counts, copied))
    found = judge(record)
    assert (found.holds, found.stages) == (True, judge(traced()).stages)
    (cost,) = found.gather
    assert (cost.attend_bytes, cost.gather_bytes) == (in_place, in_place + 4 * SELECTED)
    assert cost.x_attend == (in_place + 4 * SELECTED) / in_place
    timed = [quest(4096, (1.0, 1.0, us), backend=name) for name, us in (("questprof", 4.0), ("gather", 10.0))]
    (judged,) = judge_profile(profile(*timed, record))
    (cost,) = judged.gather
    assert (cost.attend_us, cost.gather_us) == (4.0, 10.0)


def test_bytes_that_went_unseen_make_a_point_inconclusive():
    found = judge(traced(status="unstable", reason="stage attend moves data in torch"))
    assert (found.holds, overall([found])) == (None, Exit.INCONCLUSIVE)
    assert found.sentences == ("Inconclusive: unstable: stage attend moves data in torch.",)


def test_a_profile_is_judged_under_its_own_ceiling():
    fast = {"dense": {"gpu__time_duration.sum": 200_000.0}}
    found = judge_profile(profile(quest(4096, (1.0, 1.0, 1.0)), traced(), measured(metrics=fast)))
    assert [one.refused for one in found] == [(), ("dense",)]  # 1000 GB/s, bytes_records.READ_1000
    assert READ_1000.samples_gb_s[1] == 1000.0


def test_a_judgement_is_plain_json():
    found = judge(measured(pipelined=chain_reads(), proof=PROVEN))
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text, type=Judgement) == found
    attend = next(s for s in msgspec.to_builtins(found)["stages"] if s["stage"] == "attend")
    assert attend["read"]["residual_bytes"] == 0
    assert attend["holds"] is True


# Properties.


@st.composite
def points(draw: st.DrawFn) -> Point:
    page_size = draw(st.sampled_from([8, 12, 16, 32]))
    lengths = tuple(draw(st.lists(st.integers(1, 3000), min_size=1, max_size=3)))
    budget = page_size * draw(st.integers(1, 40))
    return Point(
        draw(st.sampled_from([SHAPE, GQA_SHAPE])),
        max(lengths),
        page_size,
        budget,
        len(lengths),
        seq_lens=lengths,
        policy=draw(st.sampled_from(["quest", "quest-open"])),
        summary_layout=draw(st.sampled_from(["paired", "transposed"])),
    )


@settings(deadline=None, max_examples=60)
@given(points(), st.data())
def test_what_equals_its_ledger_always_holds(point, data):
    group = point.shape.group_size
    union = data.draw(st.floats(1, group)) if group > 1 else 1.0
    assert judge(traced(point, union_ratio=union)).holds
    assert judge(measured(point)).holds


@settings(deadline=None, max_examples=100)
@given(points(), st.data())
def test_any_tensor_beyond_its_tolerance_fails_with_a_cause(point, data):
    whole = traced(point)
    finding = data.draw(st.sampled_from(judge(whole).stages))
    term = data.draw(st.sampled_from([t for t in finding.terms if t.read.predicted_bytes]))
    own = tensors(whole.ledger, finding.stage, point)[term.tensor]
    side = data.draw(st.sampled_from(["above", "below"]))
    off = term.read.above_bytes + 1 if side == "above" else -term.read.below_bytes - 1
    off += data.draw(st.integers(0, 4096)) * (1 if side == "above" else -1)
    changed = replace(own, read=max(0, own.read + off))
    if changed.read - own.read + term.read.below_bytes >= 0 and side == "below":
        return  # it may be 0
    found = judge(traced(point, {finding.stage: {term.tensor: changed}}))
    assert found.holds is False
    (broken,) = [stage for stage in found.stages if stage.holds is False]
    assert broken.stage == finding.stage
    assert broken.cause


@settings(deadline=None, max_examples=60)
@given(points(), st.sampled_from(["append", "score", "select", "attend", "dense"]), st.integers(1, 1 << 30))
def test_any_stage_beyond_its_tolerance_fails_with_a_cause(point, stage, excess):
    (finding,) = [s for s in judge(measured(point)).stages if s.stage == stage]
    found = judge(measured(point, reads={stage: finding.read.above_bytes + excess}))
    assert found.holds is False
    assert next(s for s in found.stages if s.stage == stage).cause

"""display.py, summary.py, pairs.py: what a count of bytes prints."""

from __future__ import annotations

import io
import re

import pytest
from bytes_records import BIG, MIB, POINT, PROVEN, SELECTED, chain_reads, measured, refused, traced
from msgspec.structs import replace
from rich.console import Console

from profiles import profile, quest
from questprof.bytecheck.display import bytes_tables, print_bytes, summary_lines
from questprof.bytecheck.judge import judge, judge_profile
from questprof.bytecheck.pairs import pair_lines, pairs
from questprof.bytecheck.summary import failures, verdict, where
from questprof.counts import StageCount, TensorCount, UnmappedProof
from questprof.model import Shape


def printed(*records, width: int = 80, terminal: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    print_bytes(console, [judge(record) for record in records])
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def line_of(lines: list[str], word: str) -> list[str]:
    """Words of the first line that holds `word` as one of them."""
    return next(line.split() for line in lines if word in line.split())


def grid(extra: int = 0):
    """3 lengths x 2 page sizes by hardware, `extra` bytes above the ledger in score."""
    points = [replace(BIG, seq_len=n << 10, page_size=s) for n in (8, 32, 128) for s in (8, 16)]
    return [measured(point, reads={"score": extra}, pipelined=chain_reads(point) - MIB) for point in points]


def test_a_stage_a_line_worked_by_hand():
    """64 MiB of summary, beside it 8192 + 16384 + 8 B of q, block table and indptr; 64 KiB more are 0.1 %."""
    lines = printed(measured(reads={"score": 64 << 10}))
    assert "big (fp16), bytes a launch, measured: hardware counters (cuda)" in lines
    assert " ".join(line_of(lines, "score")) == "score 64.09 MiB 64.02 MiB +0.10 % +65536 512 KiB ok"
    assert line_of(lines, "ratio")[:3] == ["ratio", "0.12513", "0.12500"]
    said = " ".join(lines)  # a heading wraps at the console's width
    assert "tolerance of reads: append, select: 128 KiB a launch" in said
    assert "score, attend, dense, quest: 1 % + 128 KiB a launch" in said


def test_a_trace_is_called_counted_and_names_its_variant():
    lines = printed(traced())
    assert "toy (fp16), bytes a launch, counted: address trace (triton)" in lines
    assert "counted" in line_of(lines, "formula") or any("counted   formula" in line for line in lines)
    assert line_of(lines, "attend")[-1] == "ok"


def test_many_points_are_a_line_each():
    lines = printed(*grid(32 << 10))
    head = line_of(lines, "page")
    assert head[:6] == ["L", "page", "budget", "dense", "score", "attend"]
    assert "chain" in head
    first = line_of(lines, "8k")
    # 8k in pages of 8: 1024 x 2 x 256 B x 32 heads = 16 MiB of summary, 8192 + 4096 + 8 B beside it
    assert first[:3] == ["8k", "8", "4k"]
    assert " ".join(first).count("16.04 MiB +0.20 %") == 1
    assert first[-1] == "ok"
    assert sum(line.endswith(" ok") for line in lines) == 6


def test_a_failure_is_marked_and_explained():
    lines = printed(*grid(), measured(reads={"attend": -32 * MIB}))
    (row,) = [line for line in lines if line.startswith(" 64k")]
    assert row.endswith("K without V")
    assert "-49.96 % !" in row
    said = [line for line in lines if "Fails: attend" in line]
    assert said == [
        "64k, page 16, budget 4k: Fails: attend (ncu, cuda) read 32.05 MiB, 64.05 MiB predicted (-49.96 %): "
        "probably K without V (half of K and V; totals cannot tell it from V without K)."
    ]


def test_an_inconclusive_stage_is_marked():
    off = replace(measured().counter_calibration[0], counted_bytes=1)
    lines = printed(*[replace(record, counter_calibration=(off,)) for record in grid()])
    assert line_of(lines, "8k")[-1] == "inconclusive"
    assert " ?" in next(line for line in lines if line.lstrip().startswith("8k"))


def test_columns_only_where_something_varies():
    paired = [traced(replace(POINT, seq_len=n)) for n in (2048, 4096)]
    transposed = [
        traced(replace(POINT, seq_len=n, summary_layout="transposed"), sign_share=0.5) for n in (2048, 4096)
    ]
    assert "summary" in line_of(printed(*paired, *transposed), "page")
    longer = [*paired, traced(replace(POINT, seq_len=1024)), traced(replace(POINT, seq_len=8192))]
    assert "summary" not in line_of(printed(*longer), "page")
    assert "exact" in line_of(printed(*longer), "2k")


def test_sources_and_variants_have_tables_of_their_own():
    headings = [
        heading for heading, _ in bytes_tables([judge(traced()), judge(measured()), judge(refused())])
    ]
    assert [heading.split("\n")[0] for heading in headings] == [
        "toy (fp16), bytes a launch, counted: address trace (triton)",
        "big (fp16), bytes a launch, measured: hardware counters (cuda)",
    ]


def test_plain_text_is_not_cut_without_a_terminal():
    lines = printed(*grid(), width=40)
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) > 100  # a sentence is one line
    assert not any("\x1b" in line for line in lines)
    shown = [re.sub(r"\x1b\[\d*m", "", line) for line in printed(*grid(), width=150, terminal=True)]
    assert max(map(len, shown)) <= 150


def test_markup_in_a_name_is_text():
    shape = replace(POINT.shape, name="[red]toy[/red]")
    record = traced(replace(POINT, shape=shape), status="wrong", reason="[bold]off[/bold]")
    said = "\n".join(printed(record))
    assert "[red]toy[/red] (fp16)" in said
    assert "[bold]off[/bold]" in said


# The lines that sum up.


def test_a_grid_in_one_line():
    """The largest share is at 8k in pages of 16: 32 KiB over 8 MiB + 10 KiB."""
    (line,) = [x for x in summary_lines([judge(r) for r in grid(32 << 10)]) if "points hold" in x]
    assert line.startswith("6 of 6 points hold, measured: hardware counters (cuda): ")
    assert "score within 0.39 % or 32 KiB" in line
    assert "dense within 0.00 % or 0 B" in line


def test_failing_points_are_counted_with_their_causes_and_leave_the_shares_alone():
    records = [*grid(), measured(reads={"attend": -32 * MIB}), measured(reads={"dense": -(1 << 29)})]
    (line,) = [x for x in summary_lines([judge(r) for r in records]) if "points hold" in x]
    assert line.startswith("6 of 8 points hold")
    assert "attend within 0.00 % or 0 B" in line
    assert line.endswith("2 fail: K without V.")


def test_the_worst_residuals_are_named():
    lines = summary_lines([judge(r) for r in grid(32 << 10)])
    (line,) = [line for line in lines if line.startswith("Largest residuals")]
    assert "score +0.39 % (+32768 B) at 8k, page 16, budget 4k" in line


def test_reuse_proof_calibration_and_the_uncounted_have_their_lines():
    isolated = chain_reads()
    records = [
        measured(pipelined=isolated - MIB, proof=PROVEN),
        traced(),
        refused(),
        refused(reason="no ncu"),
    ]
    said = "\n".join(summary_lines([judge(record) for record in records]))
    share = f"{100 * MIB / isolated:.2f} %"
    assert f"a chain reads {share} to {share} less than its stages alone, most 1 MiB at 64k" in said
    assert "At 1 of 1 points attend completed with unselected pages unmapped, a proof on the device." in said
    assert "At 1 of 1 points no byte of an unselected page was read, counted: address trace." in said
    assert "Counter error over 1 streaming reads of known size: at most 0.015 %" in said  # 40960 / 2^28
    assert "Not counted: unavailable: no ncu (4k, page 16, budget 1k; 4k, page 16, budget 1k)." in said


def test_a_proof_that_was_not_prepared_is_no_attempt():
    """Two were tried, of which one failed; a third could not be prepared."""
    fault = replace(PROVEN, completed=False, reason="an illegal memory access")
    unprepared = UnmappedProof(0, 0, 0, completed=False, reason="could not be prepared: no bindings")
    said = "\n".join(summary_lines([judge(measured(proof=proof)) for proof in (PROVEN, fault, unprepared)]))
    assert "At 1 of 2 points attend completed with unselected pages unmapped" in said
    assert "At 1 point: no proof by unmapping: could not be prepared: no bindings." in said
    alone = "\n".join(summary_lines([judge(measured(proof=unprepared))]))
    assert "attend completed" not in alone


def test_the_gathered_copy_in_a_line():
    record = traced()
    attend = next(count for count in record.counts if count.stage == "attend")
    total = attend.read + attend.write
    copied = StageCount("gather", "trace", total, 2 * total)
    record = replace(record, counts=(*record.counts, copied))
    said = "\n".join(summary_lines([judge(record)]))
    assert "A gathered copy at 1 points moves 3.00x the bytes of attention in place, counted: address" in said
    timed = [quest(4096, (1.0, 1.0, us), backend=name) for name, us in (("questprof", 4.0), ("gather", 10.0))]
    said = "\n".join(summary_lines(judge_profile(profile(*timed, record))))
    assert "it takes 2.50x the time (measured: clock)." in said


def test_failures_are_cut_and_counted():
    found = [judge(traced(unselected_bytes=32)) for _ in range(5)]
    lines = failures(found, most=3)
    assert len(lines) == 4
    assert lines[-1] == "and 2 more, in the JSON and the report."


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (traced(), "ok"),
        (traced(unselected_bytes=32), "unselected page touched"),
        (traced(status="wrong"), "fails"),
        (refused(), "unavailable"),
        (measured(proof=UnmappedProof(1, 0, 0, True)), "inconclusive"),
        (measured(reads={"dense": -(1 << 40)}), "refused"),
        (
            traced(changes={"attend": {"v": None}, "score": {"summary": None}}),
            "summary not read, K without V",
        ),
    ],
)
def test_a_verdict_in_a_word(record, word):
    assert verdict(judge(record)) == word


def test_where_names_what_is_unusual():
    assert where(POINT) == "4k, page 16, budget 1k"
    odd = replace(POINT, batch_size=2, summary_layout="transposed", policy="quest-open", backend="mine")
    assert where(odd) == "4k, page 16, budget 1k, batch 2, transposed, quest-open, mine"


# Both sources.


def test_both_sources_side_by_side_a_head():
    """A trace of 2 heads beside hardware of 32: a head's summary is 4096 x 2 x 256 B = 2 MiB either way."""
    few = replace(BIG, shape=Shape("big*", 2, 2, 128), device="cpu")
    found = [judge(traced(few)), judge(measured(reads={"score": 32 << 10}))]
    (pair,) = pairs(found)
    assert (pair.trace.variant, pair.hardware.variant) == ("triton", "cuda")
    score, attend, dense = pair_lines(pair)
    assert (score.stage, attend.stage, dense.stage) == ("score", "attend", "dense")
    assert (score.trace_vectors, score.trace_residual) == (2 * MIB, 0)
    assert score.hardware_residual == 1024
    assert score.hardware_reads > 2 * MIB
    (line,) = [line for line in summary_lines(found) if line.startswith("Both")]
    assert "K, V and summary of a KV head are within 0 B of the ledger by trace (triton)" in line
    assert "all its reads within 0.05 % by hardware (cuda)" in line


def test_other_points_are_no_pair():
    assert pairs([judge(traced()), judge(measured())]) == ()
    assert pairs([judge(traced(BIG)), judge(measured(replace(BIG, page_size=8)))]) == ()
    wrong = traced(changes={"attend": {"k": TensorCount(SELECTED)}})
    assert pairs([judge(wrong)]) == ()

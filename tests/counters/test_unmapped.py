from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.counters import unmapped
from questprof.counters.unmapped import (
    Finished,
    Prepared,
    judged,
    one_group,
    place,
    selected_pages,
    spare_pages,
)
from questprof.model import Point, Shape

MIB = 1 << 20


@given(st.data())
def test_no_byte_of_a_selected_page_and_every_other_page_lies_in_unmapped_granules(data):
    num_pages = data.draw(st.integers(1, 200))
    selected = data.draw(st.sets(st.integers(0, num_pages - 1)))
    granule = data.draw(st.sampled_from([64, 1000, 4096]))
    page = data.draw(st.sampled_from([8, 64, 100, 128, 5000]))
    pool_pages = num_pages + spare_pages(page, granule) + data.draw(st.integers(0, 3))
    where = place(selected, num_pages, pool_pages, page, granule)
    assert sorted(where.order) == list(range(pool_pages))
    gone = range(where.first_granule * granule, (where.first_granule + where.num_granules) * granule)
    for logical in range(num_pages):
        start = where.order[logical] * page
        if logical in selected:
            assert not gone or start + page <= gone.start or start >= gone.stop
        else:
            assert gone.start <= start < start + page <= gone.stop
    assert where.unselected == num_pages - len(selected)
    storage = -(-pool_pages * page // granule)
    assert where.first_granule + where.num_granules <= storage or not where.num_granules


def test_pages_of_4_kib_fill_granules_of_2_mib():
    # One head of 16 tokens x 128 x 2 B: 4 KiB a page, 512 a granule. Selected 0, 2, .. 34: 18 pages in the
    # first granule; the other 22 begin with the second. A pool of 40 + 513 pages has two granules.
    assert spare_pages(4 << 10, 2 * MIB) == 513
    where = place(range(0, 36, 2), 40, 553, 4 << 10, 2 * MIB)
    assert (where.first_granule, where.num_granules, where.unselected) == (1, 1, 22)
    assert where.order[:4] == (0, 512, 1, 513)
    assert where.order[39] == 533
    assert where.order[40:42] == (18, 19)


def test_nothing_goes_where_all_is_selected():
    assert place(range(16), 16, 40, 128 << 10, 2 * MIB).num_granules == 0
    assert place(range(15), 16, 40, 128 << 10, 2 * MIB).num_granules == 2


def test_a_pool_without_spare_pages_is_refused():
    with pytest.raises(ValueError, match="16 pages of pool, 17 needed"):
        place(range(15), 16, 16, 128 << 10, 2 * MIB)


def test_the_proof_is_over_one_kv_head():
    alone = one_group(Point(Shape("test", 32, 8, 128), 1024, token_budget=64)).shape
    assert (alone.num_qo_heads, alone.num_kv_heads) == (4, 1)


def test_a_page_that_is_none_is_refused():
    with pytest.raises(ValueError, match="pages 3 to 9 of 5"):
        place([3, 9], 5, 14, 8, 64)


def test_pages_are_counted_through_all_requests():
    # Two requests of 5 and 3 pages, 2 and 1 selected by each of two heads.
    assert selected_pages([[0, 4, 1], [2, 4, 2]], [0, 2, 3], [0, 5, 8]) == {0, 2, 4, 6, 7}


def told(*lines) -> str:
    return "\n".join(["a line of a user's kernel", *(msgspec.json.encode(line).decode() for line in lines)])


PREPARED = Prepared(2 * MIB, 64 * MIB, 900, 1024)


def test_completed_needs_an_end_without_fault():
    proof = judged(told(PREPARED, Finished()), 0, 60)
    assert (proof.completed, proof.reason) == (True, "")
    assert (proof.granule_bytes, proof.unmapped_bytes, proof.unselected_pages) == (2 * MIB, 64 * MIB, 900)


def test_a_touched_page_is_told_from_other_faults():
    proof = judged(told(PREPARED, Finished("CUDA error: an illegal memory access was encountered")), 3, 60)
    assert not proof.completed
    assert proof.reason.startswith("attend touched a page that no query head selected (CUDA error")
    other = judged(told(PREPARED, Finished("results differ by 0.5, 0.001 is rounding")), 3, 60)
    assert other.reason == "results differ by 0.5, 0.001 is rounding"


def test_a_process_that_just_ended_proves_nothing():
    proof = judged(told(PREPARED) + "\nterminate called: illegal address", -6, 60)
    assert not proof.completed
    assert "touched a page" in proof.reason
    assert "status -6" in proof.reason
    assert judged(told(PREPARED), None, 60).reason.startswith("no end after 60 s")


def test_nothing_unmapped_is_no_proof():
    proof = judged(told(Prepared(2 * MIB, 0, 3, 512), Finished()), 0, 60)
    assert (proof.completed, proof.unmapped_bytes) == (False, 0)
    assert "nothing to unmap: 3 of 512 pages are unselected" in proof.reason
    unprepared = judged(told(Finished("no CUDA")), 3, 60)
    assert (unprepared.unmapped_bytes, unprepared.reason) == (0, "could not be prepared: no CUDA")
    assert judged("Traceback\nImportError: x", 1, 60).reason.endswith("ImportError: x")


def test_prove_runs_the_child_and_tells_what_it_cannot(tmp_path):
    # There is no virtual memory on the CPU: the real child says so and nothing is unmapped.
    point = Point(Shape("test", 2, 2, 64, kv_dtype="fp32"), 64, token_budget=32, device="cpu")
    proof = unmapped.prove(point, timeout_s=120)
    assert not proof.completed
    assert proof.unmapped_bytes == 0
    assert proof.reason == "could not be prepared: only memory of a CUDA device can be unmapped, not of cpu"


def test_judging_imports_no_torch():
    import subprocess

    code = "import sys, questprof.counters.unmapped, questprof.counters.ncu; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

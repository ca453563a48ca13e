"""The child's flow on the CPU: a pool that loses granules by having them filled with NaN."""

from __future__ import annotations

import msgspec
import pytest
from questprof_kernels.paged_cache import DTYPES, PagePool

from questprof.counters import unmapped_worker
from questprof.counters.unmapped import Finished, Prepared, Task
from questprof.model import Point, Shape

SHAPE = Shape("test", 4, 2, 64, kv_dtype="fp32")
PAGES_A_GRANULE = 4


class PoisonedPool(PagePool):
    """Granules of four pages, which `unmap` fills with NaN."""

    @property
    def granule_bytes(self) -> int:
        return PAGES_A_GRANULE * self.page_bytes

    def unmap(self, first: int, count: int) -> None:
        gone = slice(first * PAGES_A_GRANULE, (first + count) * PAGES_A_GRANULE)
        self.k[gone] = self.v[gone] = float("nan")


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    def pool(point: Point) -> PoisonedPool:
        shape = point.shape
        return PoisonedPool(
            sum(point.num_pages) + PAGES_A_GRANULE + 1,
            shape.num_kv_heads,
            point.page_size,
            shape.head_dim,
            DTYPES[shape.kv_dtype],
            summary_layout=point.summary_layout,
        )

    monkeypatch.setattr(unmapped_worker, "_mapped_pool", pool)


def ran(capsys, kernels: str = "", **options) -> tuple[Prepared, str]:
    point = Point(SHAPE, **{"seq_len": 1000, "token_budget": 64, "device": "cpu", **options})
    fault = unmapped_worker.run(Task(point, kernels))
    (line,) = capsys.readouterr().out.splitlines()
    return msgspec.json.decode(line, type=Prepared), fault


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_attention_over_selected_pages_alone_completes(capsys, layout):
    prepared, fault = ran(capsys, summary_layout=layout)
    assert fault == ""
    # 63 pages; 4 heads select at most 4 each: at least 47 are unselected, in at least 12 granules of 4.
    assert prepared.num_pages == 63
    assert prepared.unselected_pages >= 47
    assert prepared.unmapped_bytes >= 2 * 12 * prepared.granule_bytes


def test_ragged_requests_complete(capsys):
    prepared, fault = ran(capsys, seq_lens=(1000, 300, 0), token_budgets=(64, 32, 16))
    assert (fault, prepared.num_pages) == ("", 63 + 19)


class TouchesOne:
    """A stage set that reads, beside the selected pages, the first head's keys of every full page."""

    @staticmethod
    def attend(q, cache, page_ids, select_indptr, out, lse, scratch):
        from questprof_kernels import cpu

        cpu.attend(q, cache, page_ids, select_indptr, out, lse, scratch)
        full = list(cache.physical_pages(0))[:-1]
        out += 0 * cache.pool.k[full, 0].sum()


def test_a_touched_page_is_found(capsys):
    prepared, fault = ran(capsys, "test_unmapped_worker:TouchesOne")
    assert prepared.unmapped_bytes > 0
    assert fault.startswith("results differ by nan")


def test_all_pages_selected_leave_nothing_to_unmap(capsys):
    prepared, fault = ran(capsys, token_budget=1000)
    assert (prepared.unmapped_bytes, prepared.unselected_pages, fault) == (0, 0, "")


def test_a_task_that_cannot_run_ends_with_its_reason(tmp_path, monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(unmapped_worker.os, "_exit", ended.append)
    monkeypatch.setattr("sys.argv", ["worker", str(tmp_path / "task.json")])
    task = Task(Point(SHAPE, 100, token_budget=64, device="cpu"), "no_such_module:stages")
    (tmp_path / "task.json").write_bytes(msgspec.json.encode(task))
    unmapped_worker.main()
    (line,) = capsys.readouterr().out.splitlines()
    assert "no_such_module" in msgspec.json.decode(line, type=Finished).fault
    assert ended == [unmapped_worker.TOUCHED]

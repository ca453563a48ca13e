"""Streaming reads of a given size, as a GPU times them (here in the interpreter)."""

import pytest
from questprof_kernels import streaming

from profiles import CPU
from questprof import ceilings
from questprof.ceilings import CpuReader, sized_readers


def test_every_reader_walks_buffers_that_exceed_three_caches() -> None:
    """4000 bytes over a cache of 3000: three buffers, 12000 bytes, are more than 9000; two are not."""
    readers = sized_readers(4000, 3000, "cpu")
    assert [reader.name for reader in readers] == [reader.name for reader in streaming.READERS]
    for reader in readers:
        assert reader.num_bytes == 4000
        assert len(reader.launches) == 3
        starts = {launch.args[0].data_ptr() for launch in reader.launches}  # type: ignore[attr-defined]
        assert len(starts) == 3
        for launch in reader.launches:
            launch()


def test_sizes_are_rounded_up_to_what_a_load_takes() -> None:
    (first, *_) = sized_readers(4001, 0, "cpu")
    assert (first.num_bytes, len(first.launches)) == (4016, 1)
    first.launches[0]()


def test_nothing_to_read_and_no_room_to_read_it() -> None:
    assert sized_readers(0, 1 << 20, "cpu") == []
    assert sized_readers(1 << 50, 0, "cpu") == []


def test_a_bounded_time_ends_the_reads_of_a_cpu_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read takes 2 s of a clock of our own, a reader two of them: 7 s are enough for two readers."""
    now = [100.0]
    monkeypatch.setattr(ceilings.time, "perf_counter", lambda: now[0])

    def read() -> None:
        now[0] += 2.0

    def measured(limit_s: float) -> list[tuple[str, int]]:
        readers = [CpuReader(name, read, 1 << 30) for name in ("a", "b", "c")]
        monkeypatch.setattr(ceilings, "cpu_readers", lambda environment: readers)
        found, best = ceilings.measure_cpu(CPU, limit_s)
        assert best.name in {one.name for one in found}
        return [(one.name, len(one.samples_gb_s)) for one in found]

    assert measured(0.0) == [("a", 1)]
    assert measured(7.0) == [("a", 1), ("b", 1)]
    assert measured(15.0) == [("a", 2), ("b", 2), ("c", 1)]
    assert measured(float("inf")) == [("a", 5), ("b", 5), ("c", 5)]

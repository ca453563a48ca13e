"""Streaming reads of a given size, as a GPU times them (here in the interpreter)."""

from questprof_kernels import streaming

from questprof.ceilings import sized_readers


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

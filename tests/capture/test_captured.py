from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file
from traces import HEADER, layer_of, pre_rope, write_trace

from questprof.capture import captured
from questprof.capture.captured import Captured, LayerCapture
from questprof.capture.header import CaptureHeader
from questprof.capture.writer import CaptureWriter, remove_stale_parts
from questprof.errors import Exit, QuestprofError


def _arrays(layer: LayerCapture) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(layer).items() if value is not None}


def _assert_equal(found: LayerCapture, expected: LayerCapture) -> None:
    assert _arrays(found).keys() == _arrays(expected).keys()
    for name, array in _arrays(expected).items():
        assert _arrays(found)[name].dtype == np.float32
        np.testing.assert_array_equal(_arrays(found)[name], array)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "trace.safetensors"
    write_trace(path)
    return path


@pytest.mark.parametrize("header", [HEADER, pre_rope()], ids=["after", "before-and-after"])
def test_layers_come_back_as_they_were_written(tmp_path: Path, header: CaptureHeader) -> None:
    path = tmp_path / "new" / "trace.safetensors"
    written = write_trace(path, header)
    trace = Captured.open(path)
    assert replace(trace.header, layers=(), sha256=()) == header
    assert trace.header.layers == (0, 1, 2)
    for number in (2, 0, 1):
        _assert_equal(trace.layer(number), written[number])
    assert [p.name for p in path.parent.iterdir()] == ["trace.safetensors"]


@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    num_tokens=st.integers(1, 9),
    stored=st.sets(st.integers(0, 11), min_size=1),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_shape_and_any_set_of_layers_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    kv_heads: int,
    group: int,
    head_dim: int,
    num_tokens: int,
    stored: set[int],
    data: st.DataObject,
) -> None:
    queries = data.draw(st.sets(st.integers(0, num_tokens - 1), min_size=1))
    header = replace(
        HEADER,
        num_layers=12,
        num_tokens=num_tokens,
        num_qo_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        query_positions=tuple(sorted(queries)),
        evidence=(),
        segments=(),
        text="Größe 漢\n\"'\\",
    )
    path = tmp_path_factory.mktemp("shape") / "trace.safetensors"
    written = write_trace(path, header, layers=tuple(sorted(stored)))
    trace = Captured.open(path)
    assert trace.header.text == header.text
    for number, layer in written.items():
        _assert_equal(trace.layer(number), layer)


def test_safetensors_reads_the_file(intact: Path) -> None:
    tensors = load_file(intact)
    assert set(tensors) == {f"layers.{n}.{name}" for n in range(3) for name in "qkv"}
    for number in range(3):
        for name, array in _arrays(layer_of(HEADER, number)).items():
            np.testing.assert_array_equal(tensors[f"layers.{number}.{name}"], array)


def test_digests_are_those_of_the_tensors(intact: Path) -> None:
    header = Captured.open(intact).header
    expected = [
        hashlib.sha256(array.tobytes()).hexdigest()
        for number in range(3)
        for array in _arrays(layer_of(HEADER, number)).values()
    ]
    assert list(header.sha256) == expected


def test_a_layer_that_was_left_out_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    write_trace(path, layers=(0, 2))
    trace = Captured.open(path)
    with pytest.raises(QuestprofError, match="no layer 1: its attention does not see all tokens"):
        trace.layer(1)
    with pytest.raises(QuestprofError, match="no layer 3: the model has layers 0 to 2"):
        trace.layer(3)


def _read_all(path: Path) -> tuple[CaptureHeader, list[LayerCapture]]:
    trace = Captured.open(path)
    return trace.header, [trace.layer(number) for number in trace.header.layers]


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_altered_byte_is_found(intact: Path, data: st.DataObject) -> None:
    content = bytearray(intact.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    damaged = intact.with_name("damaged.safetensors")
    damaged.write_bytes(content)
    with pytest.raises(QuestprofError, match=r"altered|cut short|no trace"):
        _read_all(damaged)


def test_an_altered_header_is_said_to_be_one(intact: Path) -> None:
    content = intact.read_bytes()
    assert content.count(b'\\"num_tokens\\":7') == 1
    edited = intact.with_name("edited.safetensors")
    edited.write_bytes(content.replace(b'\\"num_tokens\\":7', b'\\"num_tokens\\":8'))
    with pytest.raises(QuestprofError, match="its header has another SHA-256"):
        Captured.open(edited)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_prefix_is_refused_on_opening(intact: Path, data: st.DataObject) -> None:
    content = intact.read_bytes()
    cut = intact.with_name("cut.safetensors")
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(QuestprofError, match=r"cut short|no trace"):
        Captured.open(cut)


def test_added_bytes_are_found(intact: Path) -> None:
    longer = intact.with_name("longer.safetensors")
    longer.write_bytes(intact.read_bytes() + b"\0\0")
    with pytest.raises(QuestprofError, match="2 bytes more"):
        Captured.open(longer)


def test_an_altered_layer_leaves_the_others_readable(intact: Path) -> None:
    content = bytearray(intact.read_bytes())
    content[-1] ^= 1
    damaged = intact.with_name("last.safetensors")
    damaged.write_bytes(content)
    trace = Captured.open(damaged)
    _assert_equal(trace.layer(0), layer_of(HEADER, 0))
    with pytest.raises(QuestprofError, match=r"layers\.2\.v has another SHA-256"):
        trace.layer(2)


def _rewritten(path: Path, header: CaptureHeader, tensors: dict[str, np.ndarray]) -> Path:
    """A file by the safetensors package with the metadata that questprof would write for `header`."""
    capture = json.dumps(json.loads(captured.file_header(header)[8:])["__metadata__"])
    save_file(tensors, path, metadata=json.loads(capture))
    return path


def test_tensors_of_another_model_are_refused(intact: Path) -> None:
    header = Captured.open(intact).header
    other = {name: np.zeros((*array.shape[:2], 8), np.float32) for name, array in load_file(intact).items()}
    path = _rewritten(intact.with_name("other.safetensors"), header, other)
    with pytest.raises(QuestprofError, match=r"layers\.0\.q has the shape \[2, 4, 8\].*asks for \[2, 4, 3\]"):
        Captured.open(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"query_positions": (2, 7)}, "query_positions has 7, but there are 7 tokens"),
        ({"query_positions": (6, 2)}, "do not ascend"),
        ({"query_positions": ()}, "no query positions"),
        ({"evidence": (("late", 6, 7),)}, "late is 6:7, the trace's tokens are 0:6"),
        ({"segments": (("back", 3, 2),)}, "back is 3:2"),
        ({"num_kv_heads": 3}, "4 query heads do not share 3 KV heads"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"softmax_scale": -1.0}, "softmax_scale is -1"),
        ({"dtype": "fp16"}, "dtype is fp16"),
        ({"layers": (0, 1, 3)}, "layers has 3, but there are 3 layers"),
        ({"sha256": ("0",)}, "1 digests for 3 layers"),
        ({"layers": (), "sha256": ()}, "holds no layer"),
        ({"generated": (1,) * 7}, "none is the text's"),
    ],
)
def test_headers_that_cannot_be_are_refused(intact: Path, change: dict[str, object], why: str) -> None:
    header = replace(Captured.open(intact).header, **change)
    path = _rewritten(intact.with_name("impossible.safetensors"), header, load_file(intact))
    with pytest.raises(QuestprofError, match=why):
        Captured.open(path)


def test_more_layers_than_the_header_has_room_for_are_refused_at_once(intact: Path) -> None:
    """Counted, not listed: 10^15 layers are more than any memory holds."""
    content = intact.read_bytes()
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    metadata = table["__metadata__"]
    capture = metadata["questprof_capture"].replace('"num_layers":3', f'"num_layers":{10**15}')
    assert capture != metadata["questprof_capture"]
    metadata.update(questprof_capture=capture, questprof_sha256=hashlib.sha256(capture.encode()).hexdigest())
    text = json.dumps(table).encode()
    path = intact.with_name("endless.safetensors")
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(QuestprofError, match="its list of tensors is not the one that was written"):
        Captured.open(path)


def test_a_newer_format_asks_for_a_newer_questprof(intact: Path) -> None:
    header = replace(Captured.open(intact).header, format_version=2)
    path = _rewritten(intact.with_name("newer.safetensors"), header, load_file(intact))
    with pytest.raises(QuestprofError, match=r"format version 2.*Update the checkout"):
        Captured.open(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "weights.safetensors"
    save_file({"weight": np.zeros(3, np.float32)}, foreign)
    with pytest.raises(QuestprofError, match="no header of questprof capture"):
        Captured.open(foreign)
    text = tmp_path / "text"
    text.write_text("In the beginning")
    with pytest.raises(QuestprofError, match="does not begin like a safetensors file"):
        Captured.open(text)
    with pytest.raises(QuestprofError, match="cannot read"):
        Captured.open(tmp_path / "absent")
    with pytest.raises(QuestprofError, match="cannot read"):
        Captured.open(tmp_path)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    path.write_text("precious")
    with pytest.raises(QuestprofError, match="exists"):
        CaptureWriter(path, HEADER)
    assert path.read_text() == "precious"
    write_trace(path, force=True)
    assert Captured.open(path).header.layers == (0, 1, 2)


def _write_one_and_stop(path: Path) -> None:
    with CaptureWriter(path, HEADER, force=True) as writer:
        writer.write(0, layer_of(HEADER, 0))
        raise KeyboardInterrupt


def test_an_interrupted_capture_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        _write_one_and_stop(path)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.safetensors"]
    assert path.read_text() == "old"


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Only parts of this trace whose process is gone and whose lock is free."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        "stale": f".trace.{ended.pid}.part",
        "running": f".trace.{os.getppid()}.part",
        "another": f".other.{ended.pid}.part",
        "longer": f".trace.x.{ended.pid}.part",
        "locked": ".trace.4194399.part",
    }
    for name in names.values():
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / names["locked"]).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_trace(tmp_path / "trace")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"trace", *names.values()} - {names["stale"]}
    write_trace(tmp_path / "again" / "trace")
    remove_stale_parts(tmp_path / "trace")
    assert not (tmp_path / names["locked"]).exists()


def _write_both(path: Path, number: int, layer: LayerCapture) -> None:
    with CaptureWriter(path, HEADER) as writer:
        writer.write(1, layer_of(HEADER, 1))
        writer.write(number, layer)


@pytest.mark.parametrize(
    ("number", "layer", "why"),
    [
        (0, layer_of(HEADER, 0), "layer 0 after"),
        (3, layer_of(HEADER, 3), "layer 3 after"),
        (2, layer_of(replace(HEADER, head_dim=4), 0), r"layers\.2\.q is float32 \(2, 4, 4\)"),
        (
            2,
            layer_of(HEADER, 0).__class__(**{**vars(layer_of(HEADER, 0)), "k": np.zeros((7, 2, 3))}),
            "float64",
        ),
    ],
)
def test_the_writer_refuses_what_does_not_fit(
    tmp_path: Path, number: int, layer: LayerCapture, why: str
) -> None:
    path = tmp_path / "trace.safetensors"
    with pytest.raises(ValueError, match=why):
        _write_both(path, number, layer)
    assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite_are_said(tmp_path: Path) -> None:
    layer = LayerCapture(**{**vars(layer_of(HEADER, 0)), "v": np.full((7, 2, 3), np.nan, np.float32)})
    with pytest.raises(QuestprofError, match=r"layers\.2\.v has values that are not finite"):
        _write_both(tmp_path / "trace", 2, layer)
    assert not list(tmp_path.iterdir())


def test_a_missing_pre_rope_tensor_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="q_pre_rope is missing"),
        CaptureWriter(tmp_path / "trace", pre_rope()) as writer,
    ):
        writer.write(0, layer_of(HEADER, 0))


def _write_to_full_disk(path: Path, header: CaptureHeader) -> None:
    """/dev/full takes nothing: a real ENOSPC."""
    with CaptureWriter(path, header) as writer:
        writer._file.close()
        writer._file = Path("/dev/full").open("wb")  # noqa: SIM115
        writer.write(0, layer_of(header, 0))


@pytest.mark.parametrize("num_tokens", [7, 70_000], ids=["on-closing", "on-writing"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, num_tokens: int) -> None:
    """A small layer waits in the file's buffer, a large one does not."""
    header = replace(HEADER, num_tokens=num_tokens)
    with pytest.raises(QuestprofError, match="to its end: No space left on device") as raised:
        _write_to_full_disk(tmp_path / "trace.safetensors", header)
    assert raised.value.status == Exit.MACHINE
    assert not list(tmp_path.iterdir())


def test_room_is_checked_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="no room") as raised:
        CaptureWriter(tmp_path / "trace", replace(HEADER, num_tokens=10**12))
    assert raised.value.status == Exit.MACHINE
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="cannot write"):
        CaptureWriter(tmp_path, HEADER, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(QuestprofError, match="cannot write"):
        CaptureWriter(tmp_path / "file" / "trace", HEADER)


def test_writing_and_reading_hold_one_layer(tmp_path: Path) -> None:
    header = replace(HEADER, num_tokens=2000, num_layers=12)
    layer = layer_of(header, 0)
    tracemalloc.start()
    with CaptureWriter(tmp_path / "trace", header) as writer:
        for number in range(12):
            writer.write(number, layer)
    trace = Captured.open(tmp_path / "trace")
    for number in range(12):
        assert trace.layer(number).k.shape == (2000, 2, 3)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3 * header.layer_bytes

"""Profiles on disk: nothing lost, nothing altered unseen."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import CPU
from questprof.errors import UPDATE, Exit, QuestprofError
from questprof.model import SCHEMA_VERSION, Ceiling, Check, Header, Point, Record, Shape, SingleSteps
from questprof.store import (
    ProfileWriter,
    read_profile,
    seal,
    unseal,
)

SHAPE = Shape(name="tiny", num_qo_heads=2, num_kv_heads=2, head_dim=64)
HEADER = Header(SCHEMA_VERSION, CPU, "questprof sweep", "2026-01-01T00:00:00+00:00")


def _record(length: int, **changes: object) -> Record:
    point = Point(shape=SHAPE, seq_len=length, token_budget=1024, device="cpu")
    checks = (Check("attend", "after", 0.5, 1.0),)
    fields: dict[str, object] = {"times_us": {"quest": (1.5, 2.5)}, "checks": checks, **changes}
    return Record("sweep", point, point.point_id, CPU.env_id, "ok", **fields)  # type: ignore[arg-type]


def _write(path: Path, *lengths: int) -> None:
    with ProfileWriter(path) as writer:
        writer.begin(HEADER)
        for length in lengths:
            writer.append(_record(length))


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    _write(path, 2048, 4096)
    profile = read_profile(path)
    assert profile.header == HEADER
    assert profile.records == (_record(2048), _record(4096))
    assert profile.warnings == ()


def test_existing_output_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    _write(path, 2048)
    before = path.read_bytes()
    with pytest.raises(QuestprofError, match="exists"):
        ProfileWriter(path)
    assert path.read_bytes() == before
    with ProfileWriter(path, force=True) as writer:
        writer.begin(HEADER)
    assert read_profile(path).records == ()


@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_a_warning(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "p.jsonl"
    _write(path, 2048, 4096)
    data = path.read_bytes()
    last = len(data) - data[:-1].rfind(b"\n") - 1
    path.write_bytes(data[: -min(cut, last - 1)])
    profile = read_profile(path)
    assert profile.records == (_record(2048),)
    assert "torn" in profile.warnings[0]


def test_resume_cuts_the_torn_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    _write(path, 2048, 4096)
    path.write_bytes(path.read_bytes()[:-20])
    with ProfileWriter(path, resume=True) as writer:
        assert writer.kept is not None
        assert writer.kept.records == (_record(2048),)
        assert writer.begin(HEADER) == HEADER
        writer.append(_record(8192))
    profile = read_profile(path)
    assert [record.point.seq_len for record in profile.records] == [2048, 8192]
    assert profile.warnings == ()


def test_resume_in_another_environment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    _write(path, 2048)
    before = path.read_bytes()
    other = msgspec.structs.replace(HEADER, environment=msgspec.structs.replace(CPU, device_name="another"))
    with (
        ProfileWriter(path, resume=True) as writer,
        pytest.raises(QuestprofError, match="another environment") as caught,
    ):
        writer.begin(other)
    assert "device_name: 'Toy CPU' -> 'another'" in caught.value.why
    assert path.read_bytes() == before


@pytest.mark.parametrize("number", [2, 3])
def test_a_corrupt_line_is_named(tmp_path: Path, number: int) -> None:
    path = tmp_path / "p.jsonl"
    _write(path, 2048, 4096, 8192)
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = lines[number - 1].replace(b"1.5", b"1.4")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(QuestprofError, match=f"line {number} is corrupt") as caught:
        read_profile(path)
    assert "--skip-corrupt" in caught.value.fix
    assert caught.value.status == Exit.USAGE
    kept = read_profile(path, skip_corrupt=True)
    assert len(kept.records) == 2
    assert f"line {number}" in kept.warnings[0]


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_altered_byte_is_found(position: int, value: int) -> None:
    line = seal(_record(2048)).rstrip(b"\n")
    position %= len(line)
    altered = line[:position] + bytes([value]) + line[position + 1 :]
    if altered == line:
        assert unseal(altered)
    else:
        with pytest.raises(ValueError, match="crc32"):
            unseal(altered)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(seal(msgspec.structs.replace(HEADER, schema_version=SCHEMA_VERSION + 1)))
    with pytest.raises(QuestprofError, match=f"schema version {SCHEMA_VERSION + 1}"):
        read_profile(path)


@pytest.mark.parametrize("content", [b"", b"no json\n", b"{}\n", b'{"schema_version":1}\n', b"\x00\xff\n"])
def test_files_that_are_no_profile(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(QuestprofError, match="no questprof profile"):
        read_profile(path)


def test_the_fix_for_a_newer_schema_works_without_a_package_index() -> None:
    """questprof is on none: what brings a newer one is its checkout."""
    assert "git pull && pip install -e ." in UPDATE
    assert "--upgrade" not in UPDATE


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_second_profile_in_a_file_is_named(tmp_path: Path, skip_corrupt: bool) -> None:
    """Header and 2 records are 3 lines, so that the second header is line 4."""
    one, joined = tmp_path / "p.jsonl", tmp_path / "joined.jsonl"
    _write(one, 2048, 4096)
    joined.write_bytes(one.read_bytes() * 2)
    with pytest.raises(QuestprofError, match="a second profile begins there") as caught:
        read_profile(joined, skip_corrupt=skip_corrupt)
    assert caught.value.what == f"{joined}, line 4"
    assert "head -n 3 and tail -n +4" in caught.value.fix


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no.jsonl", tmp_path):
        with pytest.raises(QuestprofError, match="cannot read"):
            read_profile(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_only_finite_numbers_are_stored(value: float) -> None:
    with pytest.raises(ValueError, match=r"times_us\.quest\[1\]"):
        seal(_record(2048, times_us={"quest": (1.0, value)}))


def test_a_killed_writer_loses_at_most_its_line(tmp_path: Path) -> None:
    """A child appends for ever and is killed; every whole line it wrote can be read."""
    path = tmp_path / "p.jsonl"
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from test_store import HEADER, _record\nfrom questprof.store import ProfileWriter\n"
        "writer = ProfileWriter(Path(sys.argv[1])); writer.begin(HEADER)\n"
        "length = 1024\n"
        "while True:\n    writer.append(_record(length)); print(length, flush=True); length += 1\n"
    )
    command = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        written = [int(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGKILL)
    lengths = [record.point.seq_len for record in read_profile(path).records]
    assert lengths[:20] == written


def test_ids_do_not_depend_on_default_fields() -> None:
    point = Point(shape=SHAPE, seq_len=2048, token_budget=1024)
    assert point.point_id == msgspec.structs.replace(point, seed=0, page_order="shuffled").point_id
    assert point.point_id != msgspec.structs.replace(point, seed=1).point_id


@pytest.mark.parametrize("options", [{"resume": True}, {"force": True}])
def test_two_writers_of_one_profile(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "p.jsonl"
    with ProfileWriter(path) as first:
        first.begin(HEADER)
        first.append(_record(2048))
        before = path.read_bytes()
        with pytest.raises(QuestprofError, match="another questprof is writing it"):
            ProfileWriter(path, **options)
        first.append(_record(4096))
    assert path.read_bytes().startswith(before)
    assert len(read_profile(path).records) == 2


def test_a_refused_start_leaves_the_old_profile(tmp_path: Path) -> None:
    """--force empties the file only when there is a header to put there."""
    path = tmp_path / "p.jsonl"
    _write(path, 2048)
    before = path.read_bytes()
    with ProfileWriter(path, force=True):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"point_id": "0123456789abcdef"},
        {"point": Point(shape=msgspec.structs.replace(SHAPE, num_kv_heads=0), seq_len=2048)},
        {"point": Point(shape=msgspec.structs.replace(SHAPE, kv_dtype="fp3"), seq_len=2048)},
    ],
)
def test_records_that_cannot_be_are_corrupt(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "p.jsonl"
    record = msgspec.structs.replace(_record(2048), **changes)
    if "point" in changes:
        record = msgspec.structs.replace(record, point_id=record.point.point_id)
    path.write_bytes(seal(HEADER) + seal(record))
    with pytest.raises(QuestprofError, match="line 2 is corrupt"):
        read_profile(path)


def test_a_run_that_fails_before_its_header_leaves_no_file(tmp_path):
    path = tmp_path / "p.jsonl"
    with pytest.raises(KeyboardInterrupt), ProfileWriter(path):
        raise KeyboardInterrupt
    assert not path.exists()
    with ProfileWriter(path) as writer:
        writer.begin(HEADER)
    with pytest.raises(KeyboardInterrupt), ProfileWriter(path, force=True):  # the old one is not gone yet
        raise KeyboardInterrupt
    assert read_profile(path).header == HEADER


IMPOSSIBLE = (-5.0, 0.0, 5e-324, 1e300)


def _sealed(path: Path, *records: Record, header: Header = HEADER) -> Path:
    path.write_bytes(seal(header) + b"".join(map(seal, records)))
    return path


@pytest.mark.parametrize("us", IMPOSSIBLE)
@pytest.mark.parametrize("where", ["times", "single steps", "calibration"])
def test_a_sample_that_no_clock_reads_is_a_corrupt_line(tmp_path: Path, us: float, where: str) -> None:
    """Every command reads here: none shows, exports or judges what the file says."""
    changes: dict[str, dict[str, object]] = {
        "times": {"times_us": {"quest": (1.5, us, 2.5)}},
        "single steps": {"single_steps": {"quest": SingleSteps((1.5, us), 1, 1, "cold")}},
        "calibration": {"calibration": (Ceiling("read", 1, (10.0, us)),)},
    }
    path = _sealed(tmp_path / "odd.jsonl", _record(2048), _record(4096, **changes[where]), _record(8192))
    with pytest.raises(QuestprofError, match="line 3 is corrupt") as caught:
        read_profile(path)
    assert f"Expected `float` {'<=' if us > 1 else '>='} " in caught.value.why
    kept = read_profile(path, skip_corrupt=True)
    assert [record.point.seq_len for record in kept.records] == [2048, 8192]
    assert "line 3 skipped" in kept.warnings[0]


@pytest.mark.parametrize("gb_s", IMPOSSIBLE)
def test_a_ceiling_that_no_clock_reads_is_refused(tmp_path: Path, gb_s: float) -> None:
    header = replace(HEADER, ceilings=(Ceiling("read", 1 << 30, (10.0, gb_s)),))
    with pytest.raises(QuestprofError) as caught:
        read_profile(_sealed(tmp_path / "odd.jsonl", _record(2048), header=header))
    assert (
        "$.ceilings[0].samples_gb_s" in caught.value.why or "$.ceilings[...].samples_gb_s" in caught.value.why
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": -5},
        {"seq_len": 0},
        {"seq_len": 2**41},
        {"batch_size": 0},
        {"page_size": -16},
        {"token_budget": -1},
        {"seq_lens": (4, -1)},
        {"token_budgets": (2**41,)},
    ],
    ids=str,
)
def test_a_length_that_no_machine_holds_is_a_corrupt_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    odd = _record(4096)
    odd = replace(odd, point=replace(odd.point, **changes))
    path = _sealed(tmp_path / "odd.jsonl", _record(2048), odd, _record(8192))
    with pytest.raises(QuestprofError, match="line 3 is corrupt"):
        read_profile(path)
    assert [record.point.seq_len for record in read_profile(path, skip_corrupt=True).records] == [2048, 8192]


def test_samples_at_the_ends_of_a_clock_are_read(tmp_path: Path) -> None:
    ends = _record(2048, times_us={"quest": (1e-9, 1e15)})
    assert read_profile(_sealed(tmp_path / "ends.jsonl", ends)).records == (ends,)


def test_times_that_nobody_checked_are_left_out(tmp_path: Path) -> None:
    """Whatever status the file claims; a record of another kind is checked otherwise, or not at all."""
    bare, step = _record(2048, checks=()), _record(4096, checks=())
    step = replace(step, kind="amdahl")
    refused = _record(8192, checks=(), times_us={})
    early = _record(512, checks=(Check("attend", "before", 0.5, 1.0),))
    (alone,) = read_profile(_sealed(tmp_path / "early.jsonl", early)).records
    assert (alone.status, alone.times_us) == ("unavailable", {})
    found = read_profile(_sealed(tmp_path / "bare.jsonl", bare, step, refused, _record(1024)))
    assert found.records[1:] == (step, refused, _record(1024))
    assert (found.records[0].status, found.records[0].times_us) == ("unavailable", {})
    assert "not checked" in found.records[0].reason
    assert "1 of 4 records holds times and no check" in found.warnings[0]

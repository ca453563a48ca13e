"""Going on with a profile: other options are refused, what is retried goes in whole blocks."""

import hashlib
import json
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles import SHAPE, dense, profile, quest
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Profile, Record
from questprof.store import ProfileWriter, read_profile, seal, unseal
from questprof.sweep import resuming

COMMAND = "questprof sweep --lengths 1k --samples=5 --append -o p.jsonl"


def test_what_measures_is_read_off_a_command_line() -> None:
    assert resuming.measuring_options(COMMAND) == (("--append", ""), ("--samples", "5"))
    spelt = "questprof sweep --kernel a=m:s --kernel b=m:t --samples 5 --append --resume"
    assert dict(resuming.measuring_options(spelt)).keys() == {"--append", "--samples", "--kernel"}


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        ("--append --samples 5 --resume", ""),
        ("--append --samples=5 --lengths 1k --json", ""),
        ("--append --samples 6", "--samples"),
        ("--samples 5", "--append"),
        ("--append", "--samples"),
        ("--append --samples 5 --energy", "--energy"),
        ("--append --samples 5 --preset quick", "--preset"),
        ("--append --samples 5 --precision 1", "--precision"),
    ],
)
def test_a_profile_is_gone_on_with_as_it_was_begun(more: str, differs: str) -> None:
    kept = profile(command=COMMAND)
    if not differs:
        resuming.check_options(kept, f"questprof sweep {more}")
        return
    with pytest.raises(QuestprofError, match=f"{differs} would differ") as caught:
        resuming.check_options(kept, f"questprof sweep {more}")
    assert COMMAND in caught.value.fix


def _grid() -> tuple[Profile, list[Block]]:
    """Two blocks of a dense and a Quest point; the Quest point at 2k is wrong."""
    records = [
        dense(1024, 4.0),
        quest(1024, (1.0, 1.0, 1.0), budget=256),
        dense(2048, 8.0),
        quest(2048, None, budget=256, status="wrong", reason="bad"),
    ]
    assert records[0].point.shape == SHAPE
    points = [record.point for record in records]
    return profile(*records), [Block(tuple(points[:2])), Block(tuple(points[2:]))]


def _write(path: Path, made: Profile) -> None:
    path.write_bytes(seal(made.header) + b"".join(map(seal, made.records)))


def test_a_retry_leaves_out_the_whole_block_of_a_wrong_point(tmp_path: Path) -> None:
    made, blocks = _grid()
    path = tmp_path / "p.jsonl"
    _write(path, made)
    (said,) = resuming.prepare(path, blocks, skip_corrupt=False, retry=True)
    assert "2 records" in said
    assert read_profile(path).records == made.records[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["p.jsonl"]
    assert resuming.prepare(path, blocks, skip_corrupt=False, retry=True) == []


def test_without_retry_nothing_is_rewritten(tmp_path: Path) -> None:
    made, blocks = _grid()
    path = tmp_path / "p.jsonl"
    _write(path, made)
    before = path.stat()
    assert resuming.prepare(path, blocks, skip_corrupt=False, retry=False) == []
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_corrupt_line_goes_and_its_point_is_missing(tmp_path: Path) -> None:
    made, blocks = _grid()
    path = tmp_path / "p.jsonl"
    lines = [seal(made.header), *map(seal, made.records)]
    lines[2] = lines[2].replace(b'"point_id"', b'"paint_id"')
    path.write_bytes(b"".join(lines))
    with pytest.raises(QuestprofError, match="line 3 is corrupt"):
        resuming.prepare(path, blocks, skip_corrupt=False, retry=False)
    (said,) = resuming.prepare(path, blocks, skip_corrupt=True, retry=False)
    assert "line 3 skipped" in said
    assert read_profile(path).records == (made.records[0], *made.records[2:])


def test_a_profile_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    made, blocks = _grid()
    path = tmp_path / "p.jsonl"
    _write(path, made)
    empty = tmp_path / "empty.jsonl"
    with ProfileWriter(path, resume=True), ProfileWriter(empty):
        with pytest.raises(QuestprofError, match="another questprof"):
            resuming.prepare(path, blocks, skip_corrupt=False, retry=True)
        with pytest.raises(QuestprofError, match="another questprof"):
            resuming.drop_a_start_without_header(empty)
    assert read_profile(path).records == made.records


def test_a_start_without_a_whole_header_is_no_profile_but_no_loss(tmp_path: Path) -> None:
    made, _ = _grid()
    line = seal(made.header)
    path = tmp_path / "p.jsonl"
    for size in (0, 1, 5, len(line) // 2, len(line) - 1):
        path.write_bytes(line[:size])
        resuming.drop_a_start_without_header(path)
        assert not path.exists()
    for other in (b"mine", b"{}", line, line + b"half a rec"):
        path.write_bytes(other)
        resuming.drop_a_start_without_header(path)
        assert path.read_bytes() == other
    resuming.drop_a_start_without_header(tmp_path / "none.jsonl")


def test_points_of_another_grid_are_refused(tmp_path: Path) -> None:
    made, blocks = _grid()
    resuming.check_grid(made, tmp_path, blocks)
    with pytest.raises(QuestprofError, match="do not ask for"):
        resuming.check_grid(made, tmp_path, blocks[:1])
    assert replace(made, records=()).records == ()


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("questprof sweep --samples 5", "Repeat its own command and options and add --resume"),
        ("questprof recall t.safetensors", "questprof recall has no --resume"),
        ("questprof ci --kernel m:s", "questprof ci has no --resume"),
    ],
)
def test_the_advice_fits_what_wrote_the_profile(command: str, advice: str, tmp_path: Path) -> None:
    made, blocks = _grid()
    kept = replace(made, header=replace(made.header, command=command))
    with pytest.raises(QuestprofError, match="points that these options do not ask for") as caught:
        resuming.check_grid(kept, tmp_path, blocks[:1])
    assert advice in caught.value.fix
    assert caught.value.fix.endswith(f"it was started by: {command}")


def test_a_profile_that_wrote_defaults_out_is_gone_on_with(tmp_path: Path) -> None:
    """Its ids are of JSON with `backend` and `policy`; the same points typed today are the ones it holds.

    What was there stays as it was, byte by byte, and a point that is written now has today's id.
    """
    made, blocks = _grid()
    path = tmp_path / "p.jsonl"
    lines = [_as_before(record) for record in made.records[:2]]
    path.write_bytes(seal(made.header) + b"".join(lines))
    before = path.read_bytes()
    typed = [
        Block(
            tuple(
                replace(p, backend="".join(list(p.backend)), policy="".join(list(p.policy)))
                for p in block.points
            )
        )
        for block in blocks
    ]
    resuming.check_grid(read_profile(path), path, typed)
    assert resuming.prepare(path, typed, skip_corrupt=False, retry=False) == []
    with ProfileWriter(path, resume=True) as writer:
        writer.begin(made.header)
        assert writer.kept is not None
        assert {r.point_id for r in writer.kept.records} == {p.point_id for p in typed[0].points}
        writer.append(made.records[2])
    assert path.read_bytes() == before + seal(made.records[2])
    assert read_profile(path).records == made.records[:3]


def _as_before(record: Record) -> bytes:
    told = json.loads(unseal(seal(record).rstrip(b"\n")))
    told["point"] |= {"backend": record.point.backend, "policy": record.point.policy}
    point = json.dumps(told["point"], sort_keys=True, separators=(",", ":")).encode()
    told["point_id"] = hashlib.sha256(point).hexdigest()[:16]
    assert told["point_id"] != record.point_id
    body = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    return body[:-1] + b',"crc32":%d}\n' % zlib.crc32(body)

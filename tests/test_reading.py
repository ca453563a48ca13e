"""Profiles read as one: what keeps them apart is named, by file and by field."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles import GPU, dense, profile
from questprof.commands.reading import read_as_one
from questprof.errors import Exit, QuestprofError
from questprof.model import Environment
from questprof.store import seal

OTHER = replace(GPU, commit="fedcba9", versions={"torch": "2.13.0"}, memory_bytes=1)
"""Another commit, without Triton; the size of the memory is none of the environment."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles of 4k, of 4k again and of 8k tokens in one environment, and of 8k in another."""

    def write(name: str, seq_len: int, us: float, env: Environment = GPU) -> None:
        made = profile(replace(dense(seq_len, us), env_id=env.env_id), env=env)
        (tmp_path / name).write_bytes(b"".join([seal(made.header), *map(seal, made.records)]))

    write("one.jsonl", 4096, 9.0)
    write("again.jsonl", 4096, 9.1)
    write("longer.jsonl", 8192, 18.0)
    write("other.jsonl", 8192, 18.0, OTHER)
    return tmp_path


def _refused(folder: Path, *names: str) -> str:
    with pytest.raises(QuestprofError) as caught:
        read_as_one([folder / name for name in names], None, "hold a point twice")
    assert caught.value.status == Exit.USAGE
    return caught.value.why


DIFFERENT = "of different environments (triton: 3.9.0 -> none, commit: 0123abc -> fedcba9)"


def test_the_versions_and_the_commit_that_differ_are_named(folder: Path) -> None:
    assert _refused(folder, "one.jsonl", "other.jsonl") == f"one.jsonl and other.jsonl are {DIFFERENT}"


def test_of_one_environment_the_other_reason_is_given_alone(folder: Path) -> None:
    assert _refused(folder, "one.jsonl", "again.jsonl") == "one.jsonl and again.jsonl hold a point twice"


def test_of_several_each_is_told_why(folder: Path) -> None:
    assert _refused(folder, "one.jsonl", "again.jsonl", "other.jsonl").split("; ") == [
        "one.jsonl and again.jsonl hold a point twice",
        f"one.jsonl and other.jsonl are {DIFFERENT}",
    ]


def test_disjoint_points_of_one_environment_are_one(folder: Path) -> None:
    one = read_as_one([folder / "one.jsonl", folder / "longer.jsonl"], None, "hold a point twice")
    assert [record.point.seq_len for record in one.records] == [4096, 8192]

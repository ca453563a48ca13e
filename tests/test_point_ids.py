"""An id is of what a point says: not of how its values came to be, nor of when its file was written."""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
import pkgutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import questprof
from profiles import dense, profile, quest
from questprof.compare.pairs import across
from questprof.decode.records import DecodeSetup
from questprof.errors import QuestprofError
from questprof.model import Environment, Point, Shape
from questprof.store import read_profile, seal
from questprof.structs import ByValue, Struct, canonical_json, defaults_by_value

KEPT = Path(__file__).parents[1] / "profiles"
CHOICES: dict[str, tuple[str, ...]] = {
    "policy": ("quest", "dense", "fixed"),
    "summary_layout": ("paired", "transposed"),
    "backend": ("questprof", "sdpa", "base"),
    "device": ("cuda", "cpu"),
    "data": ("independent", "shared", "ramp"),
    "page_order": ("shuffled", "sequential"),
    "variant": ("", "cuda"),
}
WORDS = {name: st.sampled_from(values) for name, values in CHOICES.items()}
NUMBERS = {
    "seq_len": st.integers(1, 1 << 20),
    "page_size": st.sampled_from([16, 32, 300]),
    "token_budget": st.sampled_from([0, 1024]),
    "batch_size": st.sampled_from([1, 8]),
    "pool_bytes": st.sampled_from([0, 1 << 30]),
    "seed": st.sampled_from([0, 7]),
    "seq_lens": st.sampled_from([(), (512, 1024)]),
    "token_budgets": st.sampled_from([(), (256, 512)]),
    "policy_params": st.dictionaries(
        st.sampled_from(["trace", "top"]), st.sampled_from(["x", 0, 3, 3.0, 2.5, True, 1e300]), max_size=2
    ),
}
SHAPES = st.builds(
    Shape,
    name=st.sampled_from(["toy", "llama-2-7b"]),
    num_qo_heads=st.just(4),
    num_kv_heads=st.just(2),
    head_dim=st.just(64),
    kv_dtype=st.sampled_from(["fp16", "bf16"]),
    summary_dtype=st.sampled_from(["", "fp16", "int8"]),
    num_layers=st.sampled_from([32, 1000]),
)
DECODES = st.none() | st.builds(
    DecodeSetup,
    model=st.just("m"),
    weight_format=st.just("fp16"),
    dense_layers=st.sampled_from([0, 2]),
    dense_backend=st.sampled_from(["questprof", "sdpa"]),
)
POINTS = st.builds(Point, shape=SHAPES, decode=DECODES, **WORDS, **NUMBERS)


def _remade(value: Any) -> Any:
    """An equal value of new objects: texts put together letter by letter, numbers from their digits."""
    if isinstance(value, str):
        return "".join(list(value))
    if isinstance(value, int):
        return int(str(value))
    if isinstance(value, tuple):
        return tuple(map(_remade, value))
    if isinstance(value, dict):
        return {_remade(key): _remade(item) for key, item in reversed(value.items())}
    if isinstance(value, Struct):
        return type(value)(**{name: _remade(getattr(value, name)) for name in value.__struct_fields__})
    return value


def _decoded(point: Point) -> Point:
    """The point read from JSON in which every field is written out, defaults too."""
    return msgspec.json.decode(json.dumps(_written_out(point)), type=Point)


def _written_out(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: _written_out(getattr(value, name)) for name in value.__struct_fields__}
    return value


def test_every_field_of_a_point_is_drawn() -> None:
    assert {"shape", "decode", *WORDS, *NUMBERS} == set(Point.__struct_fields__)


@given(POINTS)
def test_equal_points_have_equal_ids(point: Point) -> None:
    ways = {
        "new objects": _remade(point),
        "read from JSON": _decoded(point),
        "copied": pickle.loads(pickle.dumps(point)),
        "replaced": replace(point, **{name: _remade(getattr(point, name)) for name in WORDS}),
    }
    for way, other in ways.items():
        assert other == point, way
        assert canonical_json(other) == canonical_json(point), way
        assert other.point_id == point.point_id, way


@given(POINTS, POINTS)
def test_other_points_have_other_ids(one: Point, other: Point) -> None:
    assert (one == other) == (one.point_id == other.point_id)


@given(POINTS)
def test_no_default_is_written(point: Point) -> None:
    """Worked out field by field, beside msgspec's own way."""
    written = json.loads(canonical_json(_remade(point)))
    defaults = {f.name: f.default for f in msgspec.structs.fields(Point)} | {"policy_params": {}}
    told = {name for name in Point.__struct_fields__ if getattr(point, name) != defaults[name]}
    assert set(written) == told


def _structs(base: type[Struct] = Struct) -> Iterator[type[Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _structs(kind)


def test_no_struct_has_a_default_that_is_told_by_its_object_alone() -> None:
    """A new kind of default would bring two ids for one value back."""
    for module in pkgutil.walk_packages(questprof.__path__, "questprof."):
        if not module.name.endswith(("__main__", "_child", "_worker", "_cuda", "fa3", "flashinfer")):
            importlib.import_module(module.name)
    seen = {kind.__name__ for kind in _structs()}
    assert {"Point", "Shape", "DecodeSetup", "Environment", "CaptureHeader", "StageCount"} <= seen
    for kind in _structs():
        for field in msgspec.structs.fields(kind):
            plain = field.default is msgspec.NODEFAULT or field.default in (None, ())
            assert plain or isinstance(field.default, str | int | float), (kind, field.name)
        assert issubclass(kind, ByValue) or not defaults_by_value(kind), kind


def test_equal_numbers_of_a_policy_are_one() -> None:
    made = [Point(Shape("toy", 2, 2, 64), 1024, policy_params={"top": top}) for top in (1, 1.0, True)]
    assert made[0] == made[1] == made[2]
    assert len({point.point_id for point in made}) == 1
    assert Point(made[0].shape, 1024, policy_params={"top": 1.5}).point_id != made[0].point_id


def test_an_environment_is_told_by_its_values() -> None:
    one = Environment("cuda", "GPU", 4, 1, 1, "3.11", "Linux", {"torch": "2.13"})
    assert _remade(one).env_id == one.env_id
    assert replace(one, driver="").env_id == one.env_id != replace(one, driver="580").env_id


def _as_written_before(line: bytes, **defaults: str) -> bytes:
    """A sealed line whose point has `defaults` written out, and the id of that JSON."""
    record = json.loads(line)
    del record["crc32"]
    record["point"] = defaults | record["point"]
    point = json.dumps(record["point"], sort_keys=True, separators=(",", ":")).encode()
    record["point_id"] = hashlib.sha256(point).hexdigest()[:16]
    body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return body[:-1] + b',"crc32":%d}\n' % zlib.crc32(body)


@pytest.mark.parametrize(
    "defaults",
    [{}, {"backend": "questprof"}, {"policy": "quest"}, {"policy": "quest", "backend": "questprof"}],
)
def test_an_id_over_written_defaults_is_replaced_on_reading(tmp_path: Path, defaults: dict[str, str]) -> None:
    found = profile(dense(8192, 10.0), quest(8192, (1.0, 1.0, 1.0)))
    lines = [_as_written_before(seal(record), **defaults) for record in found.records]
    path = tmp_path / "old.jsonl"
    path.write_bytes(seal(found.header) + b"".join(lines))
    before = path.read_bytes()
    assert read_profile(path).records == found.records
    assert path.read_bytes() == before
    assert (json.loads(lines[1])["point_id"] == found.records[1].point_id) == (not defaults)


def test_an_id_of_another_point_is_refused(tmp_path: Path) -> None:
    found = profile(dense(8192, 10.0))
    wrong = replace(found.records[0], point_id=quest(4096, None).point_id)
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(seal(found.header) + seal(wrong))
    with pytest.raises(QuestprofError, match="line 2 is corrupt") as caught:
        read_profile(path)
    assert "is not that of its point" in caught.value.why


@pytest.mark.parametrize("path", sorted(KEPT.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_kept_profiles_load_with_the_ids_of_their_points(path: Path) -> None:
    found = read_profile(path)
    assert found.records
    assert found.warnings == ()
    for record in found.records:
        assert record.point_id == record.point.point_id == _remade(record.point).point_id


def test_runs_that_wrote_defaults_and_that_did_not_share_their_points() -> None:
    """kernels.jsonl writes `backend` out, roofline.jsonl does not: 3 lengths, dense and quest."""
    kernels, roofline = (read_profile(KEPT / "h200" / f"{name}.jsonl") for name in ("kernels", "roofline"))
    shared = across(kernels, roofline).pairs
    lengths = sorted((pair.base.point.seq_len, pair.base.point.policy) for pair in shared)
    assert lengths == [(k * 1024, policy) for k in (8, 32, 128) for policy in ("dense", "quest")]

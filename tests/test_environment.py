"""What this machine is: measured or unknown, never guessed."""

import msgspec
import pytest

from profiles import CPU
from questprof import environment
from questprof.errors import Exit, QuestprofError


def test_capture_of_this_cpu() -> None:
    captured = environment.capture("cpu")
    assert captured.device == "cpu"
    assert captured.num_workers >= 1
    assert captured.memory_bytes > 1 << 28
    assert {"questprof", "torch", "numba"} <= set(captured.versions)
    assert captured.env_id == environment.capture("cpu").env_id


def test_env_id_covers_all_but_the_memory() -> None:
    assert msgspec.structs.replace(CPU, memory_bytes=1).env_id == CPU.env_id
    changes: list[dict[str, object]] = [
        {"device_name": "other"},
        {"num_workers": 7},
        {"driver": "1"},
        {"commit": "abc"},
        {"versions": {"torch": "0"}},
        {"last_level_cache_bytes": 3},
    ]
    ids = {msgspec.structs.replace(CPU, **change).env_id for change in changes}
    assert len(ids | {CPU.env_id}) == len(changes) + 1


def test_devices() -> None:
    assert environment.resolve_device("cpu") == "cpu"
    assert environment.resolve_device("auto") in ("cpu", "cuda")
    with pytest.raises(QuestprofError) as caught:
        environment.resolve_device("tpu")
    assert caught.value.status == Exit.USAGE


def test_available_memory_is_at_most_all_of_it() -> None:
    assert 0 < environment.available_bytes("cpu") <= environment.capture("cpu").memory_bytes

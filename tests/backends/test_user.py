"""Stage sets of the user's own become backends; what cannot be one is refused with its fix."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from questprof import backends
from questprof.backends import Backend, user
from questprof.errors import QuestprofError
from questprof.model import Point, Shape

POINT = Point(shape=Shape("tiny", 2, 1, 64, kv_dtype="fp32"), seq_len=64, token_budget=32, device="cpu")


def mine(*_: Any) -> None:
    """A stage."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module `my_kernels`, and an empty registry."""
    found = ModuleType("my_kernels")
    monkeypatch.setitem(sys.modules, "my_kernels", found)
    monkeypatch.setattr(user, "_registered", {})
    return found


def set_as(kind: str, **stages: Any) -> Any:
    """The same stages as a mapping, an object or a module."""
    if kind == "mapping":
        return stages
    if kind == "object":
        return SimpleNamespace(**stages)
    made = ModuleType("made")
    vars(made).update(stages)
    return made


@pytest.mark.parametrize("kind", ["mapping", "object", "module"])
def test_given_stages_run_and_the_others_stay_the_projects(kind: str, module: ModuleType) -> None:
    module.stages = set_as(kind, attend=mine, scratch_floats={"attend": lambda *_: 7})
    assert user.register("mine=my_kernels:stages") == "mine"
    assert user.registered() == ("mine",)
    loaded, own = backends.load("mine", "cpu"), backends.load("questprof", "cpu")
    assert loaded.name == "mine"
    assert loaded.variant(POINT) == "my_kernels:stages"
    assert loaded.stages["attend"] is mine
    assert loaded.stages["score"] is own.stages["score"]
    assert loaded.scratch_floats["attend"](None, None, None) == 7
    assert loaded.scratch_floats["dense"] is own.scratch_floats["dense"]


def test_a_dotted_attribute_and_a_variant_of_its_own(module: ModuleType) -> None:
    module.sets = SimpleNamespace(best=SimpleNamespace(score=mine, variant="v2"))
    assert user.stage_set("my_kernels:sets.best").variant == "my_kernels:sets.best v2"


def fused_base() -> Backend:
    stages = {"select": print, "attend": print, "select_attend": print}
    return replace(backends.load("questprof", "cpu"), stages=stages, fuses=lambda *_: False)


@pytest.mark.parametrize("half", ["select", "attend"])
def test_half_of_a_fused_stage_replaces_the_projects_fused_one(half: str, module: ModuleType) -> None:
    module.stages = {half: mine}
    assert "select_attend" not in user.over(fused_base(), user.stage_set("my_kernels:stages")).stages


def test_a_fused_stage_of_the_users_always_runs(module: ModuleType) -> None:
    module.stages = {"attend": mine, "select_attend": mine}
    over = user.over(fused_base(), user.stage_set("my_kernels:stages"))
    assert over.stages["select_attend"] is mine
    assert over.fuses(None, None, None, 1)  # type: ignore[arg-type]


def test_other_stages_leave_the_fused_one(module: ModuleType) -> None:
    module.stages = {"score": mine}
    over = user.over(fused_base(), user.stage_set("my_kernels:stages"))
    assert "select_attend" in over.stages
    assert not over.fuses(None, None, None, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("my_kernels:stages", "no name stands before a ="),
        ("a b=my_kernels:stages", "no name stands before a ="),
        ("questprof=my_kernels:stages", "a backend of the project has this name"),
        ("mine=my_kernels", "it is not MODULE:ATTRIBUTE"),
        ("mine=:stages", "it is not MODULE:ATTRIBUTE"),
        ("mine=no_such_module:stages", "there is no module no_such_module"),
        ("mine=my_kernels:missing", "my_kernels has no missing"),
        ("mine=my_kernels:empty", "it holds no stage that can be called"),
        ("mine=my_kernels:number", "it holds no stage that can be called"),
        ("mine=my_kernels:broken", "its score cannot be called"),
        ("mine=my_kernels:misspelt", "'atend' is no stage"),
    ],
)
def test_what_is_no_stage_set_is_refused(spec: str, said: str, module: ModuleType) -> None:
    module.stages, module.empty, module.number = {"score": mine}, {}, 3
    module.broken, module.misspelt = {"score": 3}, {"score": mine, "atend": mine}
    with pytest.raises(QuestprofError) as caught:
        user.register(spec)
    assert caught.value.why == said
    assert caught.value.fix
    assert user.registered() == ()


def test_a_name_stands_for_one_set(module: ModuleType) -> None:
    module.first, module.second = {"score": mine}, {"score": mine}
    for _ in range(2):
        user.register("mine=my_kernels:first")
    with pytest.raises(QuestprofError, match="mine already stands for my_kernels:first"):
        user.register("mine=my_kernels:second")


def test_an_unknown_backend_names_the_registered_ones(module: ModuleType) -> None:
    module.stages = {"score": mine}
    user.register("mine=my_kernels:stages")
    with pytest.raises(QuestprofError, match=r"questprof, .*mine"):
        backends.load("yours", "cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [("1 / 0\n", "ZeroDivisionError"), ("import no_such_thing\n", "No module named 'no_such_thing'")],
)
def test_a_module_that_fails_is_not_said_to_be_missing(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(QuestprofError, match=f"importing failing ended in .*{said}"):
        user.register("mine=failing:stages")


def test_the_working_directory_is_searched(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("def score(*_): ...\nimport types\nstages = {'score': score}\n")
    code = (
        "import sys; sys.path.remove('') if '' in sys.path else None;"
        "from questprof.backends import user; print(user.register('mine=here:stages'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "mine", done.stderr

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
from questprof.backends.user_launch import behind
from questprof.backends.user_memory import AsksTooMuchError, asked_bytes
from questprof.errors import Exit, QuestprofError
from questprof.model import Point, Shape

POINT = Point(shape=Shape("tiny", 2, 1, 64, kv_dtype="fp32"), seq_len=64, token_budget=32, device="cpu")


def mine(*_: Any) -> None:
    """A stage."""


def fused(*_: Any, most_selected: int) -> None:
    """Select and attend at once."""


def asking(q: Any, cache: Any, out: Any, budget: int) -> None:
    """A decode that wants what there is none of."""


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
    assert loaded.stages["attend"].__wrapped__ is mine  # type: ignore[attr-defined]
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
    module.stages = {"attend": mine, "select_attend": fused}
    over = user.over(fused_base(), user.stage_set("my_kernels:stages"))
    assert over.stages["select_attend"].__wrapped__ is fused  # type: ignore[attr-defined]
    assert over.fuses(None, None, None, 1)  # type: ignore[arg-type]


def test_other_stages_leave_the_fused_one(module: ModuleType) -> None:
    module.stages = {"score": mine}
    over = user.over(fused_base(), user.stage_set("my_kernels:stages"))
    assert "select_attend" in over.stages
    assert not over.fuses(None, None, None, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("=my_kernels:stages", "'' is no name"),
        ("a b=my_kernels:stages", "'a b' is no name"),
        ("1st.py:stages", "'1st' is no name"),
        ("questprof=my_kernels:stages", "a backend of the project has the name questprof"),
        ("/tmp:stages", "/tmp is no .py file and no module's name"),
        ("../w/page.html:stages", "../w/page.html is no .py file and no module's name"),
        ("mine=my kernels:stages", "my kernels is no .py file and no module's name"),
        ("mine=my_kernels", "it is not MODULE:OBJECT"),
        ("mine=:stages", "it is not MODULE:OBJECT"),
        ("mine=no_such_file.py:stages", "there is no file no_such_file.py"),
        ("mine=my_kernels:both", "it brings both decode and score, which decode does as well"),
        ("mine=my_kernels:unprepared", "its prepare cannot be called"),
        ("mine=my_kernels:asking", "its decode asks for 'budget', which nothing gives"),
        ("mine=my_kernels:short", "its score takes (q, scores), and is called as score(q, cache, scores)"),
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
    module.both, module.unprepared = {"score": mine, "decode": mine}, {"score": mine, "prepare": 3}
    module.asking, module.short = asking, {"score": lambda q, scores: None}
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


def test_a_name_is_given_once() -> None:
    """Twice the same is a typing error: one of them was to be another, and nothing would be compared."""
    with pytest.raises(QuestprofError, match="new is given twice"):
        user.named(["new=my_kernels:first", "new=my_kernels:first"])
    assert user.named(["a=m:x", "b=m:x"]) == {"a": "m:x", "b": "m:x"}


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


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1024], "is a list, not a mapping"),
        (1024, "is a int, not a mapping"),
        ({"attend": 1024}, "has 'attend', which is no stage with a function"),
        ({"atend": lambda *_: 1}, "has 'atend', which is no stage"),
    ],
)
def test_scratch_floats_are_functions_by_stage(given: Any, why: str, module: ModuleType) -> None:
    module.stages = set_as("mapping", attend=mine, scratch_floats=given)
    with pytest.raises(QuestprofError) as caught:
        user.stage_set("my_kernels:stages")
    assert why in caught.value.why
    assert "lambda q, cache, page_ids" in caught.value.fix


def test_a_set_without_a_name_has_that_of_its_module(module: ModuleType) -> None:
    module.stages = {"score": mine}
    assert user.register("my_kernels:stages") == "my_kernels"
    assert user.source_of("my_kernels") == "my_kernels:stages"
    assert user.split("folder/a_kernel.py:stages.fast") == ("a_kernel", "folder/a_kernel.py:stages.fast")


def decode(q: Any, cache: Any, out: Any, page_ids: Any, take_tail: bool, extra: int = 3) -> None:
    """A decode that wants two of what is offered."""


def test_a_function_is_a_decode_and_names_what_it_wants(module: ModuleType) -> None:
    module.decode = decode
    stages = user.stage_set("my_kernels:decode")
    assert list(stages.stages) == ["decode"]
    assert stages.asks == ("page_ids", "take_tail")


def score(q: Any, cache: Any, scores: Any) -> None:
    """A function named like a stage."""


def test_a_function_named_like_a_stage_is_that_stage(module: ModuleType) -> None:
    module.best = score
    assert list(user.stage_set("my_kernels:best").stages) == ["score"]


def test_no_time_is_taken_of_the_interpreter(module: ModuleType) -> None:
    module.stages = {"score": mine}
    user.register("my_kernels:stages")
    user.refuse_interpreted("my_kernels")
    module.kernel = type("InterpretedFunction", (), {})()
    with pytest.raises(QuestprofError, match="whose time is no kernel's") as caught:
        user.refuse_interpreted("my_kernels")
    assert caught.value.status == Exit.MACHINE


def test_a_missing_object_names_those_that_are_there(module: ModuleType) -> None:
    module.sys, module.stages, module._hidden = sys, {"score": mine}, 1
    with pytest.raises(QuestprofError) as caught:
        user.stage_set("my_kernels:stage")
    assert caught.value.fix == "It has stages."


def test_a_missing_object_names_nothing_imported_and_says_that_there_are_more(module: ModuleType) -> None:
    """`Path` and `getcwd` come from elsewhere; of ten stages of its own eight are named."""
    exec("from pathlib import Path\nfrom typing import Any, Final\nfrom os import getcwd\n", vars(module))
    for number in range(10):
        exec(f"def stages_{number}(): ...", vars(module))
    with pytest.raises(QuestprofError) as caught:
        user.stage_set("my_kernels:stage")
    names = ", ".join(f"stages_{number}" for number in range(8))
    assert caught.value.fix == f"It has {names}, ...."


@pytest.mark.parametrize("name", ["page.html", "notes.txt"])
def test_a_file_that_is_no_module_is_not_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("x")
    with pytest.raises(QuestprofError, match=f"{name} is no .py file"):
        user.register(f"mine={name}:stages")


def test_a_file_whose_import_fails_is_told_by_a_command_that_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "fails at import.py"
    file.write_text("1 / 0\n")
    with pytest.raises(QuestprofError, match="ZeroDivisionError") as caught:
        user.register(f"mine={file}:stages")
    assert caught.value.fix == f"Make `python '{file}'` work first."


def test_a_missing_file_is_written_by_a_command_that_can(tmp_path: Path, module: ModuleType) -> None:
    for file, offered in (("mine.py", True), ("no_folder/mine.py", False), ("my-kernel.py", False)):
        with pytest.raises(QuestprofError, match="there is no file") as caught:
            user.register(f"mine={tmp_path / file}:stages")
        assert ("questprof init-kernel" in caught.value.fix) == offered


def test_a_name_that_a_file_cannot_give_is_asked_for() -> None:
    with pytest.raises(QuestprofError, match="'1st' is no name") as caught:
        user.split("1st.py:stages")
    assert caught.value.fix == "Give it a name that begins with a letter: mine=1st.py:stages"


def test_a_file_is_imported_with_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("def score(q, cache, scores): ...\n")
    (tmp_path / "a_file.py").write_text("import beside_it\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert list(user.stage_set(f"{tmp_path}/a_file.py:beside_it").stages) == ["score"]


def test_a_file_named_like_another_module_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "json.py").write_text("stages = {}\n")
    with pytest.raises(QuestprofError, match="a module named json is there already"):
        user.stage_set(f"{tmp_path}/json.py:stages")


def test_a_syntax_error_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unclosed.py").write_text("a = 1\nb = (\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(QuestprofError, match=r"SyntaxError: .*unclosed.py:2\)"):
        user.stage_set(f"{tmp_path}/unclosed.py:stages")


def raising(q: Any, cache: Any, scores: Any) -> None:
    raise KeyError("no such thing")


def test_what_a_stage_raises_names_its_file_and_the_call(module: ModuleType) -> None:
    module.stages = {"score": raising}
    line = raising.__code__.co_firstlineno + 1
    with pytest.raises(QuestprofError) as caught:
        user.stage_set("my_kernels:stages").stages["score"](1, 2, 3)
    assert caught.value.what == "stage score of my_kernels:stages"
    assert caught.value.why == f"it raised KeyError: 'no such thing' (test_user.py:{line})"
    assert "score(q, cache, scores)" in caught.value.fix
    assert caught.value.status == Exit.CHECK_FAILED


def leaving(*_: Any) -> None:
    sys.exit(0)


def test_a_kernel_that_ends_the_process_is_an_error_with_its_line(module: ModuleType) -> None:
    """In a stage, in prepare and in scratch_floats: no sweep ends with the status of its kernel."""
    line = leaving.__code__.co_firstlineno + 1
    module.stages = {"score": leaving, "attend": mine_attend, "prepare": leaving,
                     "scratch_floats": {"attend": leaving}}  # fmt: skip
    found = user.stage_set("my_kernels:stages")
    assert found.prepare is not None
    for name, call in (
        ("score", lambda: found.stages["score"](1, 2, 3)),
        ("prepare", lambda: found.prepare(1)),  # type: ignore[misc]
        ("scratch_floats", lambda: found.scratch_floats["attend"](1, 2, 3)),
    ):
        with pytest.raises(
            QuestprofError, match=rf"it raised SystemExit: 0 \(test_user.py:{line}\)"
        ) as caught:
            call()
        assert caught.value.what == f"stage {name} of my_kernels:stages"
        assert "take out what ends the process" in caught.value.fix
        assert caught.value.status == Exit.CHECK_FAILED


def mine_attend(q: Any, cache: Any, page_ids: Any, select_indptr: Any, out: Any, lse: Any, s: Any) -> None:
    pass


def test_an_interrupt_goes_through_a_kernel(module: ModuleType) -> None:
    def interrupted(q: Any, cache: Any, scores: Any) -> None:
        raise KeyboardInterrupt

    module.stages = {"score": interrupted}
    with pytest.raises(KeyboardInterrupt):
        user.stage_set("my_kernels:stages").stages["score"](1, 2, 3)


def test_a_variant_is_one_line_that_steers_nothing(module: ModuleType) -> None:
    module.stages = {"score": mine, "variant": "v2\n\x1b[31m fast"}
    assert user.stage_set("my_kernels:stages").variant == "my_kernels:stages v2 ?[31m fast"
    module.stages = {"score": mine, "variant": 3}
    with pytest.raises(QuestprofError, match="its variant is 3, not a string"):
        user.stage_set("my_kernels:stages")


def test_want_of_memory_stays_what_it_is(module: ModuleType) -> None:
    def hungry(*_: Any) -> None:
        raise MemoryError

    module.stages = {"score": hungry}
    with pytest.raises(MemoryError):
        user.stage_set("my_kernels:stages").stages["score"]()


REFUSALS = (
    (
        RuntimeError,
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12",
    ),
    (MemoryError, "Unable to allocate {} bytes for an array"),
)


@pytest.mark.parametrize(("kind", "says"), REFUSALS)
def test_more_than_all_memory_at_once_is_the_kernels_fault(
    kind: type[Exception], says: str, module: ModuleType
) -> None:
    asked = 1 << 30

    def hungry(q: Any, cache: Any, scores: Any) -> None:
        raise kind(says.format(asked))

    module.stages = {"score": hungry}
    score = user.stage_set("my_kernels:stages").stages["score"]
    with pytest.raises(kind):  # this machine has as much: others may hold it
        score(1, 2, 3)
    asked = 1 << 62
    line = hungry.__code__.co_firstlineno + 1
    with pytest.raises(
        AsksTooMuchError, match=rf"it raised {kind.__name__}: .*\(test_user.py:{line}\)"
    ) as caught:
        score(1, 2, 3)
    assert caught.value.source == "my_kernels:stages"
    assert caught.value.status == Exit.CHECK_FAILED


@pytest.mark.parametrize(
    ("says", "num_bytes"),
    [
        ("CUDA out of memory. Tried to allocate 4.50 GiB. GPU 0 has", 9 << 29),
        ("Unable to allocate 8.00 EiB for an array with shape", 8 << 60),
        ("you tried to allocate 12 bytes. Error", 12),
        ("CUDA out of memory.", 0),
    ],
)
def test_what_a_refused_allocation_asked_for(says: str, num_bytes: int) -> None:
    assert asked_bytes(MemoryError(says)) == num_bytes


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (-1, "it returned -1, a negative number"),
        (2.5, "it returned a float, not a whole number"),
        (None, "it returned a NoneType"),
        (10**15, "it returned 1000000000000000: more scratch than the memory holds"),
    ],
)
def test_scratch_floats_return_a_count_that_memory_holds(returned: Any, why: str, module: ModuleType) -> None:
    module.stages = {"attend": mine_attend, "scratch_floats": {"attend": lambda *_: returned}}
    count = user.stage_set("my_kernels:stages").scratch_floats["attend"]
    with pytest.raises(QuestprofError, match=why) as caught:
        count(None, None, None)
    assert caught.value.what == "stage scratch_floats of my_kernels:stages"
    assert caught.value.status == Exit.CHECK_FAILED


def test_only_dense_may_return_its_output(module: ModuleType) -> None:
    import torch

    out = torch.zeros(2, 3)
    module.stages = {
        "dense": lambda q, cache, out, lse, scratch: q,
        "score": lambda q, cache, scores: scores,
        "append_kv": lambda *_: torch.ones(2),
    }
    stages = user.stage_set("my_kernels:stages").stages
    returned = torch.ones(2, 3)
    assert stages["dense"](returned, None, out, None, None) is None, "an argument is no result"
    module.stages["dense"] = lambda *_: returned
    assert user.stage_set("my_kernels:stages").stages["dense"](1, None, out, None, None) is returned
    assert stages["score"](1, 2, out) is None
    with pytest.raises(QuestprofError, match=r"returned float32 \[2\], which nobody reads"):
        stages["append_kv"](1, 2, 3, 4)
    module.stages["dense"] = lambda *_: returned.double()
    with pytest.raises(
        QuestprofError, match=r"returned float64 \[2, 3\], and its output is float32"
    ) as wrong:
        user.stage_set("my_kernels:stages").stages["dense"](1, None, out, None, None)
    assert "or return the output, float32 [2, 3]" in wrong.value.fix


def test_its_own_stages_read_what_prepare_made(module: ModuleType) -> None:
    module.stages = {"prepare": lambda cache: [cache], "attend": mine, "append": mine, "dense": mine}
    loaded = user.over(fused_base(), user.stage_set("my_kernels:stages"))
    assert loaded.contexts is not None
    cache: Any = object()
    assert loaded.contexts(cache) == {"attend": [cache], "dense": [cache]}
    assert loaded.prepare(cache, None) == [cache]  # type: ignore[arg-type]
    assert loaded.caches_held == 2


def test_the_error_behind_the_end_of_a_capture_is_found() -> None:
    refusal = QuestprofError("stage", "why", "fix")

    def leave_a_capture() -> None:
        try:
            raise refusal
        finally:
            raise RuntimeError("capture_end failed")

    with pytest.raises(RuntimeError) as caught:
        leave_a_capture()
    assert behind(caught.value) is refusal
    assert behind(RuntimeError("another")) is None


def test_bytes_are_counted_for_stages_over_the_paged_cache_alone(module: ModuleType) -> None:
    module.decode = decode
    module.copied = {"prepare": mine, "attend": mine}
    module.stages = {"attend": mine}
    assert list(user.countable("my_kernels:stages").stages) == ["attend"]
    with pytest.raises(QuestprofError, match="a fused decode"):
        user.countable("my_kernels:decode")
    with pytest.raises(QuestprofError, match=r"a layout of its own \(prepare\)"):
        user.countable("my_kernels:copied")

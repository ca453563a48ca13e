"""Stages of the user's own: `[NAME=]MODULE:OBJECT` becomes a backend like any other; see docs/kernels.md.

The object is a mapping stage -> launcher, anything with functions named like stages (a module, an object), or
a function: the stage it is named like, else a fused decode. The stages it lacks are the project's. Beside
stages it may hold `prepare(cache)`, whose result its own stages get in place of the cache, `scratch_floats`,
which maps stages to the fp32 numbers of scratch that they need, and `variant`, which is added to the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from questprof.backends import _LOADERS, Backend, user_module
from questprof.backends import load as load_backend
from questprof.backends.user_launch import ARGUMENTS, DECODE, asked_for, clean, refuse_other_arguments
from questprof.backends.user_memory import checked_floats
from questprof.backends.user_module import FORM
from questprof.errors import Exit, QuestprofError
from questprof.printable import printable

STAGES = tuple(ARGUMENTS)
"""What a stage set may hold; signatures as the project's own launchers have them."""
FUSED_HALVES = ("select", "attend")
"""Stages that the project's fused one would run instead of the user's."""
IN_DECODE = ("score", "select", "attend", "select_attend")
"""Stages that a decode does all at once."""
WRITERS = ("append", "append_kv")
"""Stages that write the cache itself, whatever `prepare` made of it."""
OTHERS = ("prepare", "scratch_floats", "variant")


@dataclass(frozen=True)
class StageSet:
    """The stages that a user gives, and where they come from."""

    source: str
    """`MODULE:OBJECT`."""
    stages: Mapping[str, Callable[..., Any]]
    scratch_floats: Mapping[str, Callable[..., int]]
    variant: str
    """`source`, and the set's own `variant` behind it."""
    prepare: Callable[..., Any] | None = None
    asks: tuple[str, ...] = ()
    """What its decode wants beside q, cache and out."""

    @property
    def readers(self) -> tuple[str, ...]:
        """Its stages that get what `prepare` made in place of the cache."""
        return tuple(stage for stage in self.stages if stage not in WRITERS)

    def contexts(self, cache: Any) -> dict[str, Any]:
        """What its stages read in place of `cache`, by stage; none without a `prepare`."""
        return dict.fromkeys(self.readers, self.prepare(cache)) if self.prepare else {}


_registered: dict[str, StageSet] = {}


def register(spec: str) -> str:
    """The name of `[NAME=]MODULE:OBJECT`, under which `backends.load` gives the backend from now on.

    Without a NAME it is the module's. Imports the module, from the working directory too. Raises
    QuestprofError for a spec of another form, a name that is taken, and whatever `stage_set` refuses.
    """
    sources = {name: stages.source for name, stages in _registered.items()}
    name, source = _named(spec, sources)
    _registered[name] = _registered.get(name) or stage_set(source)
    return name


def register_all(specs: Sequence[str]) -> tuple[str, ...]:
    """The names of `specs`, all of them registered; QuestprofError as `named` and `register` raise it."""
    named(specs)
    return tuple(register(spec) for spec in specs)


def named(specs: Iterable[str]) -> dict[str, str]:
    """`MODULE:OBJECT` by name, of every one of `specs`; nothing is imported.

    QuestprofError for a spec of another form, and for a name that is taken, by the project or among them.
    """
    sources: dict[str, str] = {}
    for spec in specs:
        name, source = _named(spec, sources)
        if name in sources:
            why = f"{name} is given twice"
            raise QuestprofError(f"kernels {spec!r}", why, "Give every stage set a name of its own: NAME=...")
        sources[name] = source
    return sources


def _named(spec: str, taken: Mapping[str, str]) -> tuple[str, str]:
    """(name, `MODULE:OBJECT`) of `spec`; QuestprofError where its name stands for something else already."""
    name, source = split(spec)
    if name in _LOADERS:
        why = f"a backend of the project has the name {name}"
        raise QuestprofError(f"kernels {spec!r}", why, f"Take another name than {', '.join(_LOADERS)}.")
    if taken.get(name, source) != source:
        why = f"{name} already stands for {taken[name]}"
        raise QuestprofError(f"kernels {spec!r}", why, "Give every stage set a name of its own: NAME=...")
    return name, source


def split(spec: str) -> tuple[str, str]:
    """(name, `MODULE:OBJECT`) of `[NAME=]MODULE:OBJECT`; nothing is imported."""
    name, equals, source = spec.rpartition("=")
    if not equals:
        name = re.sub(r"[^\w.-]", "-", user_module.module_name(source))
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        fix = FORM if equals else f"Give it a name that begins with a letter: mine={source}"
        raise QuestprofError(f"kernels {spec!r}", f"{name!r} is no name", fix)
    user_module.split(source)
    return name, source


def registered() -> tuple[str, ...]:
    """The names that stage sets were registered under, in that order."""
    return tuple(_registered)


def source_of(name: str) -> str:
    """The `MODULE:OBJECT` registered as `name`; KeyError for another name."""
    return _registered[name].source


def gives(name: str, stage: str) -> bool:
    """Whether the set registered as `name` brings `stage` itself; KeyError for another name."""
    return stage in _registered[name].stages


def refuse_interpreted(name: str) -> None:
    """QuestprofError when the set registered as `name` lies in a module whose Triton kernels are interpreted.

    What the interpreter takes says nothing of a kernel.
    """
    source = source_of(name)
    if user_module.is_interpreted(source):
        raise QuestprofError(
            f"kernels {source!r}",
            "its Triton kernels run in the interpreter, whose time is no kernel's",
            "Unset TRITON_INTERPRET and time them on a GPU; --check-only takes them here.",
            Exit.MACHINE,
        )


def load(name: str, device: str) -> Backend:
    """The registered backend `name` over the project's own stages on `device`; KeyError for another name."""
    return replace(over(load_backend("questprof", device), _registered[name]), name=name)


def over(base: Backend, stages: StageSet) -> Backend:
    """`base` with the user's stages in place of its own; `variant` names where they come from.

    The base's fused stage goes when the user gives one of its halves, or a `prepare` that it cannot read; the
    user's own always runs. Without a `dense` of the user's the base's stays.
    """
    merged = {**base.stages, **stages.stages}
    own_fused = "select_attend" in stages.stages
    if not own_fused and any(half in stages.stages for half in FUSED_HALVES):
        merged.pop("select_attend", None)
    changed = replace(
        base,
        variant=lambda _: stages.variant,
        stages=merged,
        scratch_floats={**base.scratch_floats, **stages.scratch_floats},
        contexts=stages.contexts if stages.prepare else None,
        asks=stages.asks,
    )
    if stages.prepare and "dense" in stages.stages:
        changed = replace(changed, prepare=lambda cache, _: stages.contexts(cache)["dense"])
    return replace(changed, fuses=lambda *_: True) if own_fused else changed


def stage_set(source: str) -> StageSet:
    """The stages of `MODULE:OBJECT`; QuestprofError without such a module, object, or any stage.

    Refused too: a misspelt stage, one that cannot be called as the interface calls it, a fused decode beside
    the stages it replaces, and a variant that is no string.
    """
    found = user_module.found(source)
    if isinstance(found, Mapping):
        _refuse_unknown(source, found)
        given: Callable[[str, Any], Any] = found.get
    else:

        def given(name: str, default: Any) -> Any:
            return getattr(found, name, default)

    stages = {name: given(name, None) for name in STAGES if given(name, None) is not None}
    if not stages and callable(found) and not isinstance(found, type):
        name = getattr(found, "__name__", DECODE)
        stages = {name if name in STAGES else DECODE: found}
    _refuse_broken(source, stages)
    prepare = given("prepare", None)
    if prepare is not None and not callable(prepare):
        raise QuestprofError(f"kernels {source!r}", "its prepare cannot be called", "Define prepare(cache).")
    own = given("variant", "") or ""
    if not isinstance(own, str):
        why = f"its variant is {printable(repr(own))}, not a string"
        raise QuestprofError(f"kernels {source!r}", why, "Write variant = 'v2', or leave it out.")
    own = " ".join(printable(own).split())
    return StageSet(
        source,
        {name: clean(source, name, launcher) for name, launcher in stages.items()},
        _scratch_floats(source, given("scratch_floats", None)),
        f"{source} {own}".strip(),
        clean_value(source, "prepare", prepare) if prepare else None,
        asked_for(source, stages[DECODE]) if DECODE in stages else (),
    )


def countable(source: str) -> StageSet:
    """As `stage_set`, for what counts bytes stage by stage: QuestprofError for a decode or a `prepare`."""
    stages = stage_set(source)
    if DECODE in stages.stages or stages.prepare:
        what = "a fused decode" if DECODE in stages.stages else "a layout of its own (prepare)"
        raise QuestprofError(
            f"kernels {source!r}",
            f"bytes are counted tensor by tensor in score, select and attend, and it brings {what}",
            "Count a set of stages over the paged cache; sweep and --check-only take this one.",
        )
    return stages


def clean_value(source: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` (prepare, scratch_floats), whose errors name their file and line, and what it returns."""
    box: list[Any] = []

    def made(*arguments: Any) -> None:
        box[:] = [function(*arguments)]

    checked = clean(source, name, made)

    def launch(*arguments: Any) -> Any:
        checked(*arguments)
        return box.pop()

    return launch


def _refuse_broken(source: str, stages: Mapping[str, Any]) -> None:
    """QuestprofError for no stage at all, one that is no function, and stages that exclude each other."""
    broken = [name for name, launcher in stages.items() if not callable(launcher)]
    if broken or not stages:
        why = f"its {broken[0]} cannot be called" if broken else "it holds no stage that can be called"
        raise QuestprofError(f"kernels {source!r}", why, f"Name functions like stages: {', '.join(STAGES)}.")
    both = [name for name in IN_DECODE if DECODE in stages and name in stages]
    if both:
        why = f"it brings both {DECODE} and {both[0]}, which decode does as well"
        fix = "Put the fused decode and the stages in two objects, and name each with --kernel."
        raise QuestprofError(f"kernels {source!r}", why, fix)
    for name, launcher in stages.items():
        refuse_other_arguments(source, name, launcher)


def _scratch_floats(source: str, found: Any) -> dict[str, Callable[..., int]]:
    """A user's `scratch_floats`, by stage; QuestprofError for anything but functions by stage."""
    why = ""
    if found is not None and not isinstance(found, Mapping):
        why = f"its scratch_floats is a {type(found).__name__}, not a mapping from stages to functions"
    elif broken := [
        name for name, count in (found or {}).items() if name not in STAGES or not callable(count)
    ]:
        why = f"its scratch_floats has {broken[0]!r}, which is no stage with a function"
    if why:
        fix = "Write scratch_floats = {'attend': lambda q, cache, page_ids: 1024}."
        raise QuestprofError(f"kernels {source!r}", why, fix)
    return {name: _counted(source, count) for name, count in (found or {}).items()}


def _counted(source: str, function: Callable[..., Any]) -> Callable[..., int]:
    """`function` of a scratch_floats, refused where it returns no count that memory holds."""
    made = clean_value(source, "scratch_floats", function)

    def count(*arguments: Any) -> int:
        on_gpu = bool(arguments) and getattr(arguments[0], "is_cuda", False)
        return checked_floats(source, made(*arguments), on_gpu=on_gpu)

    return count


def _refuse_unknown(source: str, found: Mapping[Any, Any]) -> None:
    """QuestprofError for a name in a mapping that is no stage: a misspelt one would run the project's."""
    unknown = [name for name in found if name not in (*STAGES, *OTHERS)]
    if unknown:
        fix = f"Stages are {', '.join(STAGES)}; beside them may stand {', '.join(OTHERS)}."
        raise QuestprofError(f"kernels {source!r}", f"{unknown[0]!r} is no stage", fix)

"""Stages of the user's own: `NAME=MODULE:ATTRIBUTE` becomes a backend like any other.

The attribute is a mapping stage -> launcher, or anything with functions named like stages (a module, an
object); the stages it lacks are the project's. An optional `scratch_floats` maps `attend` and `dense` to the
fp32 numbers of scratch that their launchers need, an optional `variant` is added to the name of the variant.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from questprof.backends import _LOADERS, Backend
from questprof.backends import load as load_backend
from questprof.errors import QuestprofError

STAGES = ("append", "append_kv", "score", "select", "attend", "dense", "select_attend")
"""What a stage set may hold; signatures as the project's own launchers have them."""
FUSED_HALVES = ("select", "attend")
"""Stages that the project's fused one would run instead of the user's."""
FORM = "Write NAME=MODULE:ATTRIBUTE, as in mine=my_kernels:stages."


@dataclass(frozen=True)
class StageSet:
    """The stages that a user gives, and where they come from."""

    source: str
    """`MODULE:ATTRIBUTE`."""
    stages: Mapping[str, Callable[..., Any]]
    scratch_floats: Mapping[str, Callable[..., int]]
    variant: str
    """`source`, and the set's own `variant` behind it."""


_registered: dict[str, StageSet] = {}


def register(spec: str) -> str:
    """The NAME of `NAME=MODULE:ATTRIBUTE`, under which `backends.load` gives the backend from now on.

    Imports the module, from the working directory too. Raises QuestprofError for a spec of another form, a
    name that is taken, and whatever `stage_set` refuses.
    """
    name, equals, source = spec.partition("=")
    if not (equals and re.fullmatch(r"[A-Za-z][\w.-]*", name)):
        raise QuestprofError(f"kernels {spec!r}", "no name stands before a =", FORM)
    if name in _LOADERS:
        why = "a backend of the project has this name"
        raise QuestprofError(f"kernels {spec!r}", why, f"Take another name than {', '.join(_LOADERS)}.")
    taken = _registered.get(name)
    if taken and taken.source != source:
        why = f"{name} already stands for {taken.source}"
        raise QuestprofError(f"kernels {spec!r}", why, "Give every stage set a name of its own.")
    _registered[name] = taken or stage_set(source)
    return name


def registered() -> tuple[str, ...]:
    """The names that stage sets were registered under, in that order."""
    return tuple(_registered)


def gives(name: str, stage: str) -> bool:
    """Whether the set registered as `name` brings `stage` itself; KeyError for another name."""
    return stage in _registered[name].stages


def load(name: str, device: str) -> Backend:
    """The registered backend `name` over the project's own stages on `device`; KeyError for another name."""
    return replace(over(load_backend("questprof", device), _registered[name]), name=name)


def over(base: Backend, stages: StageSet) -> Backend:
    """`base` with the user's stages in place of its own; `variant` names where they come from.

    The base's fused stage goes when the user gives one of its halves; the user's own always runs.
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
    )
    return replace(changed, fuses=lambda *_: True) if own_fused else changed


def stage_set(source: str) -> StageSet:
    """The stages of `MODULE:ATTRIBUTE`; QuestprofError without such a module, attribute, or any stage."""
    found = _attribute(source)
    if isinstance(found, Mapping):
        _refuse_unknown(source, found)
        given: Callable[[str, Any], Any] = found.get
    else:

        def given(name: str, default: Any) -> Any:
            return getattr(found, name, default)

    stages = {name: given(name, None) for name in STAGES if given(name, None) is not None}
    broken = [name for name, launcher in stages.items() if not callable(launcher)]
    if broken or not stages:
        why = f"its {broken[0]} cannot be called" if broken else "it holds no stage that can be called"
        raise QuestprofError(f"kernels {source!r}", why, f"Name functions like stages: {', '.join(STAGES)}.")
    own = given("variant", "")
    variant = f"{source} {own}" if isinstance(own, str) and own else source
    return StageSet(source, stages, dict(given("scratch_floats", None) or {}), variant)


def _attribute(source: str) -> Any:
    """What `MODULE:ATTRIBUTE` names; the attribute may be dotted."""
    module_name, colon, attribute = source.partition(":")
    if not (module_name and colon and attribute):
        raise QuestprofError(f"kernels {source!r}", "it is not MODULE:ATTRIBUTE", FORM)
    found: Any = _module(source, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in vars(found) if not name.startswith("_")] if _has_vars(found) else []
            raise QuestprofError(
                f"kernels {source!r}",
                f"{module_name} has no {attribute}",
                f"It has {', '.join(public[:8])}." if public else f"Define {attribute} in {module_name}.",
            )
        found = getattr(found, part)
    return found


def _has_vars(value: Any) -> bool:
    return hasattr(value, "__dict__")


def _module(source: str, name: str) -> Any:
    """The module `name`, looked for in the working directory first, as `python -m` does."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            fix = f"Run where {error.name} can be imported from: here, or on PYTHONPATH."
            raise QuestprofError(f"kernels {source!r}", f"there is no module {error.name}", fix) from error
        raise _broken(source, name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(source, name, error) from error


def _broken(source: str, module: str, error: BaseException) -> QuestprofError:
    reason = f"importing {module} ended in {type(error).__name__}: {error}"
    return QuestprofError(f"kernels {source!r}", reason, f"Make `python -c 'import {module}'` work first.")


def _refuse_unknown(source: str, found: Mapping[Any, Any]) -> None:
    """QuestprofError for a name in a mapping that is no stage: a misspelt one would run the project's."""
    unknown = [name for name in found if name not in (*STAGES, "scratch_floats", "variant")]
    if unknown:
        fix = f"Stages are {', '.join(STAGES)}."
        raise QuestprofError(f"kernels {source!r}", f"{unknown[0]!r} is no stage", fix)

"""The stages of the interface by their arguments, and a user's launchers behind clean errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from questprof.backends.user_memory import AsksTooMuchError, beyond_all, out_of_memory
from questprof.backends.user_module import first_line, where
from questprof.errors import Exit, QuestprofError

_APPEND = ("cache", "keys", "values", "new_indptr")
_SELECT = ("scores", "cache", "select_indptr", "page_ids", "take_tail")
DECODE: Final = "decode"
"""Score, select and attend in one launch."""
ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "append": _APPEND,
    "append_kv": _APPEND,
    "score": ("q", "cache", "scores"),
    "select": _SELECT,
    "attend": ("q", "cache", "page_ids", "select_indptr", "out", "lse", "scratch"),
    "dense": ("q", "cache", "out", "lse", "scratch"),
    "select_attend": (*_SELECT, "q", "out", "lse", "scratch", "most_selected"),
    DECODE: ("q", "cache", "out"),
}
"""What every stage is called with, in this order; `most_selected` by its name."""
_BESIDE: Final = {"prepare": ("cache",), "scratch_floats": ("q", "cache", "page_ids")}
OFFERED: Final = ("page_ids", "select_indptr", "num_selected", "take_tail", "lse", "scratch")
"""What a decode may have beside its three: whichever of these its parameters name, by name."""


def call_of(stage: str) -> str:
    """`score(q, cache, scores)`: how a stage is called."""
    names = ", ".join(ARGUMENTS.get(stage) or _BESIDE[stage])
    return f"{stage}({names.replace('most_selected', '*, most_selected')})"


def asked_for(source: str, launcher: Callable[..., Any]) -> tuple[str, ...]:
    """The names of OFFERED that a decode's parameters name; QuestprofError for one that is not offered."""
    parameters = _parameters(launcher) or []
    named = [p for p in parameters[3:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for one in named:
        if one.name not in OFFERED and one.default is one.empty:
            raise QuestprofError(
                f"kernels {source!r}",
                f"its decode asks for {one.name!r}, which nothing gives",
                f"Beside q, cache and out a decode may ask for {', '.join(OFFERED)}.",
            )
    return tuple(one.name for one in named if one.name in OFFERED)


def refuse_other_arguments(source: str, stage: str, launcher: Callable[..., Any]) -> None:
    """QuestprofError for a launcher that cannot be called as its stage is."""
    parameters = _parameters(launcher)
    if parameters is None:
        return
    names = ARGUMENTS[stage]
    positional = [name for name in names if name != "most_selected"]
    by_name: dict[str, Any] = dict.fromkeys(set(names) - set(positional))
    if stage == DECODE:
        by_name = dict.fromkeys(asked_for(source, launcher))
    try:
        inspect.Signature(parameters).bind(*positional, **by_name)
    except TypeError:
        own = ", ".join(str(parameter).partition(":")[0] for parameter in parameters)
        why = f"its {stage} takes ({own}), and is called as {call_of(stage)}"
        raise QuestprofError(f"kernels {source!r}", why, f"Define {call_of(stage)}.") from None


def _parameters(launcher: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Its parameters, in order; None for what has no signature (builtins)."""
    try:
        return list(inspect.signature(launcher).parameters.values())
    except (ValueError, TypeError):
        return None


def clean(source: str, stage: str, launcher: Callable[..., Any]) -> Callable[..., Any]:
    """`launcher`, whose errors name their file and line, and whose return value cannot get lost.

    QuestprofError with status 1 for whatever it raises but want of memory that the machine has, and for a
    returned value that is none of its arguments; only `dense` may return its output, of the shape and dtype
    of `out`.
    """

    @wraps(launcher)
    def launch(*arguments: Any, **options: Any) -> Any:
        try:
            returned = launcher(*arguments, **options)
        except (QuestprofError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too: a kernel ends no sweep with its own status
            if out_of_memory(error) and not beyond_all(error):
                raise
            raise raised(source, stage, error) from error
        if returned is None or any(returned is given for given in (*arguments, *options.values())):
            return None
        return _returned(source, stage, returned, arguments)

    return launch


def raised(source: str, stage: str, error: BaseException) -> QuestprofError:
    """What `stage` of `source` raised, with its file and line, and what to do about it."""
    reason = first_line(error)
    fix = f"It is called as {call_of(stage)}: docs/kernels.md has shapes and dtypes."
    if isinstance(error, SystemExit):
        fix = "A kernel returns, or raises an error of its own: take out what ends the process."
    elif "active drivers" in reason or "active driver" in reason:
        fix = "Triton compiles for a GPU alone: --check-only runs it here in the interpreter."
    elif "captur" in reason:
        fix = "A CUDA graph holds it: no .item(), .cpu() or synchronize; make what it needs in prepare."
    elif out_of_memory(error):
        fix = "Allocate less."
    why = f"it raised {type(error).__name__}: {reason}{where(error)}"
    if beyond := beyond_all(error):
        return AsksTooMuchError(source, stage, why, *beyond)
    return QuestprofError(f"stage {stage} of {source}", why, fix, Exit.CHECK_FAILED)


def _returned(source: str, stage: str, returned: Any, arguments: tuple[Any, ...]) -> Any:
    """The output that `dense` returned instead of writing it; QuestprofError for anything else."""
    import torch

    fix = "Write into the tensors it is given, and return nothing."
    what = f"a {type(returned).__name__}"
    if isinstance(returned, torch.Tensor):
        what = f"{str(returned.dtype).removeprefix('torch.')} {list(returned.shape)}"
        if stage == "dense":
            out = arguments[2]
            if (returned.shape, returned.dtype) == (out.shape, out.dtype):
                return returned
            wanted = f"{str(out.dtype).removeprefix('torch.')} {list(out.shape)}"
            why = f"it returned {what}, and its output is {wanted}"
            fix = f"Write into out and return nothing, or return the output, {wanted}."
            raise QuestprofError(f"stage {stage} of {source}", why, fix, Exit.CHECK_FAILED)
    why = f"it returned {what}, which nobody reads"
    raise QuestprofError(f"stage {stage} of {source}", why, fix, Exit.CHECK_FAILED)


def behind(error: BaseException | None) -> QuestprofError | None:
    """The QuestprofError that `error` came in the way of: leaving a capture raises an error of its own."""
    while error is not None and not isinstance(error, QuestprofError):
        error = error.__cause__ or error.__context__
    return error

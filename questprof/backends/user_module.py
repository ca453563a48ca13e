"""What a user's `MODULE:OBJECT` names, imported; and which of their lines an error comes from.

MODULE is a module's name or a file (`my_kernel.py`). Whatever importing it ends in is a QuestprofError.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from questprof.errors import QuestprofError
from questprof.printable import printable

FORM = "Write [NAME=]MODULE:OBJECT, as in mine=my_kernel:stages or my_kernel.py:decode."
MOST_NAMES = 8
"""Names of a module that a message lists."""


def split(source: str) -> tuple[str, str]:
    """(module or file, object) of `MODULE:OBJECT`; QuestprofError for another form."""
    module, colon, attribute = source.rpartition(":")
    if not (module and colon and attribute):
        raise QuestprofError(f"kernels {source!r}", "it is not MODULE:OBJECT", FORM)
    if not module.endswith(".py") and not _names_a_module(module):
        raise QuestprofError(f"kernels {source!r}", f"{module} is no .py file and no module's name", FORM)
    return module, attribute


def _names_a_module(text: str) -> bool:
    """Whether `text` may be imported: names with dots between, and no file such as `page.html`."""
    return bool(re.fullmatch(r"[\w-]+(\.[\w-]+)*", text)) and not ("." in text and Path(text).is_file())


def module_name(source: str) -> str:
    """The last word of the module's name: `my_kernel` of `kernels/my_kernel.py:stages`."""
    module, _ = split(source)
    return Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]


def is_interpreted(source: str) -> bool:
    """Whether the imported module of `MODULE:OBJECT` holds Triton kernels that the interpreter would run."""
    name, _ = split(source)
    module = sys.modules.get(Path(name).stem if name.endswith(".py") else name)
    return (
        any(type(one).__name__ == "InterpretedFunction" for one in vars(module).values()) if module else False
    )


def found(source: str) -> Any:
    """The object of `MODULE:OBJECT`, which may be dotted; QuestprofError without one."""
    name, attribute = split(source)
    value: Any = _module(source, name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise _missing(source, value, name, attribute)
        value = getattr(value, part)
    return value


def _missing(source: str, value: Any, module: str, attribute: str) -> QuestprofError:
    every = getattr(value, "__dict__", {}).items()
    own = [name for name, one in every if not (name.startswith("_") or _imported(value, name, one))]
    some = own[:MOST_NAMES] + ["..."] * (len(own) > MOST_NAMES)
    fix = f"It has {', '.join(some)}." if own else f"Define {attribute} in {module}."
    return QuestprofError(f"kernels {source!r}", f"{module} has no {attribute}", fix)


def _imported(holder: Any, name: str, one: Any) -> bool:
    """Whether `one` stands in the module `holder` because it imports it."""
    if isinstance(one, ModuleType) or name == "TYPE_CHECKING":
        return True
    if not isinstance(holder, ModuleType):
        return False
    if type(one).__module__ in ("typing", "__future__"):
        return True
    defined = getattr(one, "__qualname__", None) is not None
    return defined and getattr(one, "__module__", None) not in (None, holder.__name__)


def _module(source: str, name: str) -> Any:
    """The module `name`, looked for in the working directory first, as `python -m` does."""
    if name.endswith(".py"):
        return _file(source, Path(name))
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            fix = f"Run where {error.name} can be imported from (here, or on PYTHONPATH), or name its file."
            raise QuestprofError(f"kernels {source!r}", f"there is no module {error.name}", fix) from error
        raise _broken(source, name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(source, name, error) from error


def _file(source: str, path: Path) -> Any:
    """The module in the file `path`, whose folder is searched for what it imports."""
    if not path.is_file():
        fix = "Name a file that is there."
        if path.parent.is_dir() and path.stem.isidentifier():
            fix = f"Write one with `questprof init-kernel {path}`, or name a file that is there."
        raise QuestprofError(f"kernels {source!r}", f"there is no file {path}", fix)
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    try:
        module = import_module(path.stem)
    except (Exception, SystemExit) as error:
        raise _broken(source, path.stem, error, f"python {shlex.quote(str(path))}") from error
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        fix = "Give the file another name."
        raise QuestprofError(f"kernels {source!r}", f"a module named {path.stem} is there already", fix)
    return module


def _broken(source: str, module: str, error: BaseException, command: str = "") -> QuestprofError:
    """The error for a module whose import ends in `error`, as `command` shows it too."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    at = f" ({Path(error.filename).name}:{line})" if isinstance(error, SyntaxError) and error.filename else ""
    reason = f"importing {module} ended in {type(error).__name__}: {first_line(error)}{at or where(error)}"
    command = command or f"python -c 'import {module}'"
    return QuestprofError(f"kernels {source!r}", reason, f"Make `{command}` work first.")


def first_line(error: BaseException) -> str:
    """The first line of what `error` says, without control characters."""
    return printable((str(error).strip().splitlines() or ["no message"])[0])


def where(error: BaseException) -> str:
    """` (my_kernel.py:12)`: the last line of a file outside any installation; '' where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not Path(frame.filename).is_relative_to(Path(__file__).parents[1])
        and not Path(frame.filename).is_relative_to(Path(sys.base_prefix))
        and not frame.filename.startswith("<")
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""

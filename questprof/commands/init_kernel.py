"""`questprof init-kernel`: a kernel of one's own to start from, which passes its check as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from questprof.commands import options
from questprof.errors import QuestprofError
from questprof.files import cannot_write

TEMPLATE = Path(__file__).parents[1] / "backends" / "example.py"
MARK = "  # type: ignore[no-untyped-def]"


def init_kernel(
    file: Annotated[Path, typer.Argument(help="The Python file to write, as in my_kernel.py.")],
    force: options.FORCE = False,
) -> None:
    """Write a working kernel of one's own to FILE: Quest in plain torch, to check, time and replace."""
    write_kernel(file, force=force)
    print(f"{file}\nnow: questprof sweep --kernel {file}:kernel --check-only")


def shadowed(file: Path) -> str:
    """The installed module that `file` would hide from whoever imports it; '' where there is none."""
    import sys
    from importlib.util import find_spec

    if file.stem in sys.stdlib_module_names:
        return f"Python's own module {file.stem}"
    try:
        spec = find_spec(file.stem)
    except (ImportError, ValueError):
        return ""
    own = {file.resolve().parent, Path.cwd().resolve()}
    if spec is None or (spec.origin and Path(spec.origin).resolve().parent in own):
        return ""
    return f"the installed module {file.stem}"


def write_kernel(file: Path, *, force: bool = False) -> None:
    """Write the example to `file`; QuestprofError when it is there without `force`, or no module's name."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        why = "a kernel is a Python module, which this cannot name"
        raise QuestprofError(f"cannot write {file}", why, "Name a file like my_kernel.py.")
    if taken := shadowed(file):
        why = f"it would stand in the way of {taken}, which has the same name"
        raise QuestprofError(f"cannot write {file}", why, "Name a file like my_kernel.py.")
    text = TEMPLATE.read_text(encoding="utf-8").replace("my_kernel.py", str(file)).replace(MARK, "")
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError as error:
        raise QuestprofError(f"cannot write {file}", "it is there", "Add --force to replace it.") from error
    except OSError as error:
        raise cannot_write(file, error) from error

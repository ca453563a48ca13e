"""A program of its own: whether `PACKAGE ATTRIBUTE` can be imported, as one line of JSON on stdout.

Apart, as torch's: a broken install may raise, hang or take the process down.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from questprof.printable import printable


def error_of(package: str, attribute: str) -> str:
    """Why `package`, or its `attribute`, cannot be imported, and from which file; '' where it can."""
    try:
        module = import_module(package)
        getattr(module, attribute)
    except (Exception, SystemExit) as error:
        said = printable((str(error).splitlines() or [""])[0])
        return f"{type(error).__name__}: {said}"
    return ""


if __name__ == "__main__":
    print("\n" + json.dumps({"error": error_of(*sys.argv[1:3])}))

"""Triton 3.6's interpreter beside numpy 2.4 and later.

It turns a tensor into a loop bound by `int` of an array with one axis and one element, which numpy refuses
from 2.4 on. Triton 3.7 squeezes the array first; importing this module does the same for 3.6. A process that
interprets imports it before its first launch; it changes nothing in one that compiles.
"""

from __future__ import annotations

from typing import Any

import triton


def _mend() -> None:
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def mended(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended


if triton.knobs.runtime.interpret and triton.__version__.startswith("3.6."):
    _mend()

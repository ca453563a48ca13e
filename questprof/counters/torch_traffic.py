"""Torch operations that move data inside a launch: an address trace sees kernels, not these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

NO_TRAFFIC = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_"})
"""Operations that give storage or a view of it, beside those whose results alias an argument."""


class TorchTraffic(TorchDispatchMode):
    """While entered, notes which torch operations read or write the data of tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The operations seen, in the order of their first use."""
        return tuple(self._names)

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = function.overloadpacket.__name__
        if name not in NO_TRAFFIC and not function.is_view and not _onto_itself(name, args):
            self._names[name] = None
        return function(*args, **(kwargs or {}))


def _onto_itself(name: str, args: Sequence[Any]) -> bool:
    """Whether this is a copy of bytes to where they lie, as the interpreter's after a launch on the CPU."""
    return name == "copy_" and bool(args[0].data_ptr() == args[1].data_ptr())

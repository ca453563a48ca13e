"""Recording what Triton's interpreter loads, stores and does atomically, while a launch runs in it.

Every memory operation of the interpreter ends in one of four methods of its builder (unmasked, atomic,
block-pointer and descriptor accesses go through the masked load and store), which are wrapped here for the
time of a launch. An atomic reads and writes its sectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from questprof.counters.sectors import SectorLog

Builder = Any
"""Triton's interpreter builder: no part of Triton is typed."""


@contextmanager
def recording(log: SectorLog) -> Iterator[list[str]]:
    """Record every access of the launches inside in `log`; gives the list that the kernels' names go to.

    RuntimeError where Triton compiles instead of interpreting (TRITON_INTERPRET was not set in time).
    """
    import triton

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("an address trace needs TRITON_INTERPRET=1 before triton is imported")
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    wrapped = _wrapped(builder, log)
    with lean() as kernels:
        for name, method in wrapped.items():
            setattr(builder, name, method)  # on the object: the class keeps its own
        try:
            yield kernels
        finally:
            for name in wrapped:
                delattr(builder, name)


@contextmanager
def lean() -> Iterator[list[str]]:
    """The interpreter at half its cost and with the same results; the list names the kernels launched.

    It makes Triton's language interpretable once per function of a launch, not in every call of it, and
    leaves out the asserts against integer overflow, as compiled kernels do.
    """
    from triton.runtime import interpreter

    builder, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    options, call, patch = builder.options, executor.__call__, interpreter._patch_lang
    kernels: list[str] = []
    patched: set[Any] = set()

    def patch_once(function: Any) -> Any:
        if function in patched:
            return None  # to a call inside a kernel, which does not look at it
        patched.add(function)
        return patch(function)

    def named_call(self: Any, *arguments: Any, **kwargs: Any) -> Any:
        kernels.append(self.fn.__name__)
        patched.clear()  # a launch takes back at its end what it patched
        return call(self, *arguments, **kwargs)

    builder.options = dataclasses.replace(options, sanitize_overflow=False)
    executor.__call__, interpreter._patch_lang = named_call, patch_once
    try:
        yield kernels
    finally:
        builder.options, executor.__call__, interpreter._patch_lang = options, call, patch


def _wrapped(builder: Builder, log: SectorLog) -> dict[str, Callable[..., Any]]:
    """The four methods of `builder`, each recording before it does its work."""
    load, store = builder.create_masked_load, builder.create_masked_store
    exchange, modify = builder.create_atomic_cas, builder.create_atomic_rmw

    def masked_load(pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        log.record("read", pointers.data, _lanes_on(mask), _element_bytes(pointers))
        return load(pointers, mask, *rest, **options)

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        log.record("write", pointers.data, _lanes_on(mask), _element_bytes(pointers))
        return store(pointers, value, mask, *rest, **options)

    def atomic_cas(pointers: Any, *rest: Any, **options: Any) -> Any:
        log.record("read", pointers.data, None, _element_bytes(pointers))
        log.record("write", pointers.data, None, _element_bytes(pointers))
        return exchange(pointers, *rest, **options)

    def atomic_rmw(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        log.record("read", pointers.data, _lanes_on(mask), _element_bytes(pointers))
        log.record("write", pointers.data, _lanes_on(mask), _element_bytes(pointers))
        return modify(operation, pointers, value, mask, *rest, **options)

    return {
        "create_masked_load": masked_load,
        "create_masked_store": masked_store,
        "create_atomic_cas": atomic_cas,
        "create_atomic_rmw": atomic_rmw,
    }


def _lanes_on(mask: Any) -> npt.NDArray[np.bool_]:
    """Which lanes take part; a descriptor's mask is the array itself in Triton 3.6, its data a memoryview."""
    return np.asarray(mask.data)


def _element_bytes(pointers: Any) -> int:
    """Bytes of what each lane points to; a bool takes one."""
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)

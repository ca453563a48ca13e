"""The kernels that a launch puts on a stream, told by recording it into a CUDA graph that never runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from questprof.counters.ncu_plan import NOT_COUNTED


def kernel_names(launch: Callable[[], None]) -> tuple[str, ...] | None:
    """Mangled names of the kernels of one `launch`, '' for one without a name, in no certain order.

    A copy or fill by the driver is NOT_COUNTED. None where nothing can be recorded: no GPU or no
    `cuda-bindings` is there, or the launch waits for the device.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return None
    graph = _recorded(launch)
    if graph is None:
        return None
    from cuda.bindings import driver

    try:
        return tuple(name for node in _nodes(graph) if (name := _name(node)) is not None)
    finally:
        driver.cuGraphDestroy(graph)


def _recorded(launch: Callable[[], None]) -> Any:
    """The graph of one launch on a stream of its own; None where the launch cannot be recorded."""
    import torch
    from cuda.bindings import driver

    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED  # a launch may allocate
    failed = False
    with torch.cuda.stream(stream):
        (begun,) = driver.cuStreamBeginCapture(stream.cuda_stream, mode)
        if int(begun):
            return None
        try:
            launch()
        except Exception:  # waiting is not allowed here; whatever else it is, the real launch tells
            failed = True
        ended, graph = driver.cuStreamEndCapture(stream.cuda_stream)
    return None if failed or int(ended) else graph


def _nodes(graph: Any) -> list[Any]:
    from cuda.bindings import driver
    from questprof_kernels.cuda_module import checked

    _, count = checked(driver.cuGraphGetNodes(graph))
    nodes, _ = checked(driver.cuGraphGetNodes(graph, count))
    return list(nodes[:count])


def _name(node: Any) -> str | None:
    """A kernel's name; NOT_COUNTED for a copy or fill; None for what moves nothing."""
    from cuda.bindings import driver
    from questprof_kernels.cuda_module import checked

    types = driver.CUgraphNodeType
    kind = checked(driver.cuGraphNodeGetType(node))
    if kind in (types.CU_GRAPH_NODE_TYPE_MEMCPY, types.CU_GRAPH_NODE_TYPE_MEMSET):
        return NOT_COUNTED
    if kind != types.CU_GRAPH_NODE_TYPE_KERNEL:
        return None
    parameters = checked(driver.cuGraphKernelNodeGetParams(node))
    for ask, handle in ((driver.cuFuncGetName, parameters.func), (driver.cuKernelGetName, parameters.kern)):
        if handle is not None and int(handle):
            result, name = ask(handle)
            if not int(result) and name:
                return name.decode() if isinstance(name, bytes) else str(name)
    return ""

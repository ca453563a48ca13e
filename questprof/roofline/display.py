"""What `roofline` shows in a terminal: bandwidth by size, rates, launches, every stage under its roofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from questprof.roofline.curve import Served, Size
from questprof.roofline.finding import Roofline, cache_sentence
from questprof.roofline.placing import Line, Placed
from questprof.terminal import plain_table, print_table
from questprof.units import format_bytes, format_us

SOURCES = (
    "GB/s, TFLOP/s, us: measured, clock, medians. FLOP/B: modelled, operations of the stage over bytes of "
    "eq. (12) (memory) or of the whole ledger (cache). ncu: measured, counter. Vendor figures enter nothing. "
    "Bound by: the roof that alone needs half of the measured time or more, with its share; under: the "
    "nearest roof where none needs as much, so that something else takes most of it."
)
ROOF_NAMES = {
    "cuda": {"memory": "DRAM", "cache": "L2", "compute": "compute", "launch": "launch"},
    "cpu": {"memory": "memory", "cache": "cache", "compute": "compute", "launch": "call"},
}


def print_roofline(console: Console, found: Roofline, device: str) -> None:
    """Print everything; what does not exist is left out, its reason is among the notes."""
    if found.sizes:
        print_table(console, bandwidth_table(found, device), _bandwidth_heading(device))
    console.print(cache_sentence(found, device), highlight=False)
    for line in _memory_sentences(found):
        console.print(line, highlight=False)
    if found.rates:
        print_table(console, rate_table(found), "arithmetic")
    for one in found.overheads:
        console.print(f"{one.name}: {format_us(one.stat.median)} us", highlight=False)
    if found.lines:
        print_table(console, stage_table(found.lines, device), "stages under the roofs")
    console.print(SOURCES, highlight=False, soft_wrap=True)


def _bandwidth_heading(device: str) -> str:
    over = "L2 and DRAM" if device == "cuda" else "caches and memory"
    return f"bandwidth by working set, repeated passes (hot in every cache that holds it): {over}, GB/s"


def _memory_sentences(found: Roofline) -> Iterable[str]:
    """The memory roof with what is printed elsewhere beside it."""
    if not found.memory_gb_s:
        return
    text = f"memory roof {found.memory_gb_s:.4g} GB/s (largest streaming read)"
    if found.cache_gb_s:
        text += f", cache roof {found.cache_gb_s:.4g} GB/s"
    yield text
    if found.vendor:
        share = f"{found.memory_gb_s / found.vendor.gb_s:.0%}"
        yield f"vendor: {found.vendor.gb_s:.4g} GB/s, of which {share} is reached ({found.vendor.source})"
    if found.bus_gb_s:
        yield f"derived from NVML, bus width x memory clock: {found.bus_gb_s:.4g} GB/s"


def bandwidth_table(found: Roofline, device: str) -> Table:
    """A row a working set: read and copy, with shares of the vendor's figure where memory serves all."""
    table = plain_table("working set", "read", "from", "of vendor", "copy", "from", "of vendor", "reader")
    by_size: dict[int, dict[str, Size]] = {}
    for one in found.sizes:
        by_size.setdefault(one.working_set_bytes, {})[one.operation] = one
    for size, pair in sorted(by_size.items()):
        read, copy = pair.get("read"), pair.get("copy")
        cells = [cell for one in (read, copy) for cell in _bandwidth(one, ROOF_NAMES[device])]
        table.add_row(format_bytes(size), *cells, read.name if read else "-")
    return table


def _bandwidth(one: Size | None, names: Mapping[str, str]) -> list[str]:
    if one is None:
        return ["-", "-", "-"]
    return [f"{one.stat.median:.4g}", served_text(one.served, names), _share(one.x_vendor)]


def served_text(served: Served, names: Mapping[str, str]) -> str:
    """`L2`, `L2 and DRAM`, `DRAM` or `unknown`."""
    return names.get(served, "unknown" if served == "unknown" else f"{names['cache']} and {names['memory']}")


def rate_table(found: Roofline) -> Table:
    """A row a measured rate of arithmetic."""
    table = plain_table("dtype", "TFLOP/s", "vendor", "of vendor", "by", "what")
    for rate in found.rates:
        told = f"{rate.vendor_tflop_s:.4g}" if rate.vendor_tflop_s else "-"
        what = f"{rate.name}, {rate.size}"
        table.add_row(rate.dtype, f"{rate.stat.median:.4g}", told, _share(rate.x_vendor), rate.unit, what)
    return table


def stage_table(lines: Sequence[Line], device: str) -> Table:
    """A row a stage and point."""
    names = ROOF_NAMES[device]
    memory, cache = names["memory"], names["cache"]
    counted = any(line.at("memory", "ncu") for line in lines)
    heads = ["point", "stage", "kernels", "us", f"{memory}\nFLOP/B", "GB/s", "of roof"]
    heads += ["FLOP/B\nby ncu", "GB/s\nby ncu"] * counted
    heads += [f"{cache}\nFLOP/B", "GB/s", "GFLOP/s", "nearest roof\n(reached)"]
    table = plain_table(*heads)
    for line in lines:
        first, second, ncu = line.at("memory"), line.at("cache"), line.at("memory", "ncu")
        cells = [line.where, line.stage, line.kernels, format_us(line.us.median)]
        cells += [*_place(first), _share(line.memory_share)]
        cells += _place(ncu) if counted else []
        flops = f"{line.flops / line.us.median / 1e3:.4g}" if line.flops and not line.alarm else "-"
        near = "impossible" if line.alarm else line.roof_text(names) or "-"
        table.add_row(*cells, *_place(second), flops, near)
    return table


def _place(place: Placed | None) -> list[str]:
    if place is None:
        return ["-", "-"]
    return [f"{place.intensity:.3g}" if place.intensity else "-", f"{place.gb_s:.4g}"]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"

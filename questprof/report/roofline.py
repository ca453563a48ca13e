"""The roofline section: stages under the measured roofs, bandwidth by working set, rates and launches."""

from __future__ import annotations

from typing import Any

from questprof.model import Profile
from questprof.report.roofline_figure import curve_figure, roofline_figure
from questprof.report.section import Block
from questprof.roofline.display import ROOF_NAMES, served_text
from questprof.roofline.finding import Roofline, cache_sentence, roofline
from questprof.roofline.placing import Line, Placed
from questprof.units import format_bytes, format_us


def build(profile: Profile, prefix: str) -> Block | None:
    """The section, or None for a profile whose run did not measure the roofs."""
    if profile.header.roofs is None:
        return None
    found, device = roofline(profile), profile.header.environment.device
    names = ROOF_NAMES[device]
    context = {
        "id": prefix,
        "names": names,
        "figure": roofline_figure(found, names),
        "curve": curve_figure(found, names),
        "stages": [_stage(line, names) for line in found.lines],
        "counted": any(line.at("memory", "ncu") for line in found.lines),
        "sizes": _sizes(found, names),
        "rates": _rates(found),
        "launches": [
            {
                "name": one.name,
                "us": format_us(one.stat.median),
                "spread": _spread(one.stat.p10, one.stat.p90),
            }
            for one in found.overheads
        ],
        "facts": _facts(found, device, names),
        "alarms": found.alarms,
        "notes": found.notes,
    }
    return Block("roofline.html", context, num_figures=bool(context["figure"]) + bool(context["curve"]))


def _stage(line: Line, names: dict[str, str]) -> dict[str, Any]:
    first, second, counted = line.at("memory"), line.at("cache"), line.at("memory", "ncu")
    return {
        "where": line.where,
        "stage": line.stage,
        "kernels": line.kernels,
        "us": format_us(line.us.median),
        "memory": [*_place(first), _share(line.memory_share)],
        "counted": _place(counted),
        "cache": _place(second),
        "gflop_s": _number(line.flops / line.us.median / 1e3 if not line.alarm else None),
        "roof": line.roof_text(names) or "–",
        "alarm": line.alarm,
    }


def _place(place: Placed | None) -> list[str]:
    return [_number(place.intensity), _number(place.gb_s)] if place else ["–", "–"]


def _sizes(found: Roofline, names: dict[str, str]) -> list[dict[str, str]]:
    return [
        {
            "operation": one.operation,
            "size": format_bytes(one.working_set_bytes),
            "served": served_text(one.served, names),
            "gb_s": _number(one.stat.median),
            "spread": _spread(one.stat.p10, one.stat.p90),
            "x_memory": _share(one.x_memory),
            "x_vendor": _share(one.x_vendor),
            "name": one.name,
        }
        for one in found.sizes
    ]


def _rates(found: Roofline) -> list[dict[str, str]]:
    return [
        {
            "dtype": one.dtype,
            "tflop_s": _number(one.stat.median),
            "spread": _spread(one.stat.p10, one.stat.p90),
            "vendor": _number(one.vendor_tflop_s),
            "x_vendor": _share(one.x_vendor),
            "unit": one.unit,
            "what": f"{one.name}, {one.size}",
        }
        for one in found.rates
    ]


def _facts(found: Roofline, device: str, names: dict[str, str]) -> list[tuple[str, str]]:
    """Label and sentence; what does not exist is left out."""
    facts = [("Last-level cache", cache_sentence(found, device))]
    if found.memory_gb_s:
        facts.append(
            (f"{names['memory']} roof", f"{found.memory_gb_s:.4g} GB/s, measured: largest streaming read")
        )
    if found.cache_gb_s:
        facts.append(
            (
                f"{names['cache']} roof",
                f"{found.cache_gb_s:.4g} GB/s, measured: fastest read within the cache",
            )
        )
    if found.vendor:
        facts.append(("Vendor's bandwidth", f"{found.vendor.gb_s:.4g} GB/s ({found.vendor.source})"))
    if found.bus_gb_s:
        facts.append(("Derived from NVML", f"{found.bus_gb_s:.4g} GB/s: bus width x memory clock x 2"))
    return facts


def _number(value: float | None) -> str:
    return f"{value:.4g}" if value else "–"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _spread(low: float, high: float) -> str:
    return f"{low:.4g}–{high:.4g}"

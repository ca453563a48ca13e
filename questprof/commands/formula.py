"""`questprof formula`: equations (1)-(15) and the byte ledger, with no device at all."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from questprof.commands import options
from questprof.streams import print_json


def formula(
    length: Annotated[str, typer.Option("--length", "--lengths", help="Tokens in the cache (L).")] = "32k",
    page_size: Annotated[int, typer.Option("--page-size", "--page-sizes", help="Tokens a page (S).")] = 16,
    budget: Annotated[str, typer.Option("--budget", "--budgets", help="Token budget (B).")] = "2048",
    shape: options.ONE_SHAPE = None,
    heads: options.HEADS = None,
    kv_heads: options.KV_HEADS = None,
    head_dim: options.HEAD_DIM = None,
    layers: options.LAYERS = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=1 << 20, help="Requests of this length.")] = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="KV dtype.")] = "fp16",
    summary_dtype: options.SUMMARY_DTYPE = "",
    summary_layout: Annotated[
        str, typer.Option("--summary-layout", "--summary-layouts", help="Summary layout: paired, transposed.")
    ] = "paired",
    tile: Annotated[
        int | None,
        typer.Option("--physical-tile", "--tile", help="Tokens the kernel reads at least of a page."),
    ] = None,
    last_page_len: Annotated[
        int | None, typer.Option("--last-page-len", help="Valid tokens of a partial last page.")
    ] = None,
    union_ratio: Annotated[
        float | None, typer.Option("--union-ratio", help="|union of a group's pages| / K, 1 to group size.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Put the numbers into the equations.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="All fifteen equations.")] = False,
    json: options.JSON = False,
) -> None:
    """Bytes and read ratio by equations (9)-(12), itemised; the numbers are modelled, not measured."""
    from questprof import formula as formulas
    from questprof.units import parse_count

    if list_:
        equations = formulas.equation_list()
        print_json(equations) if json else _print_list(equations)
        return
    sizes = _sizes(shape, heads, kv_heads, head_dim, layers, dtype)
    document = formulas.formula(
        length=parse_count(length, "length"),
        budget=parse_count(budget, "budget"),
        page_size=page_size,
        batch=batch,
        dtype=dtype,
        summary_dtype=summary_dtype or None,
        physical_tile=tile,
        last_page_len=last_page_len,
        union_ratio=union_ratio,
        summary_layout=summary_layout,
        **sizes,
    )
    if json:
        print_json(document)
    else:
        print("\n".join(formulas.explain(document) if explain else _brief(document)))


def _sizes(
    shape: str | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    layers: int | None,
    dtype: str,
) -> dict[str, Any]:
    """Heads, head_dim and layers: of the shape with its overrides, or one KV head and one layer."""
    from questprof.grid import resolve_shape

    if shape is None:
        kv = kv_heads or heads or 1
        return {
            "heads": heads or kv,
            "kv_heads": kv,
            "head_dim": head_dim or 128,
            "layers": layers or 1,
        }
    found = resolve_shape(
        shape, kv_dtype=dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=layers
    )
    return {
        "heads": found.num_qo_heads,
        "kv_heads": found.num_kv_heads,
        "head_dim": found.head_dim,
        "layers": found.num_layers,
    }


def _brief(document: dict[str, Any]) -> list[str]:
    """The figures of equations (9)-(12), one a line, and what a reader must know beside them."""
    from questprof.units import format_bytes

    paired = document["summary_layout"] == "paired"
    names = {
        "dense_bytes": "dense read, eq. (9)",
        "index_bytes": "index read, eq. (10)" if paired else "index read, transposed",
        "selected_bytes": "selected read, eq. (11)",
        "quest_bytes": "Quest read, (10) + (11)",
        "resident_cache_bytes": "resident cache",
        "resident_summary_bytes": "resident summary",
    }
    lines = [f"{label:<24} {format_bytes(document[name])}" for name, label in names.items()]
    ratio = "read ratio rho, eq. (12)" if paired else "read ratio rho"
    lines.append(f"{ratio:<24} {document['rho']:.6g}")
    lines.append(f"{'pages, selected':<24} {document['num_pages']}, {document['num_selected']}")
    return [*lines, *document["messages"], "Modelled, not measured; --explain shows the arithmetic."]


def _print_list(equations: list[dict[str, Any]]) -> None:
    width = max(len(e["name"]) for e in equations)
    for e in equations:
        print(f"({e['number']:>2}) {e['name']:<{width}}  {e['summary']}  [{e['section']}]")

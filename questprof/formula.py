"""What `questprof formula` computes: equations (9)-(12) and the byte ledger of one uniform batch.

`formula` gives a JSON-able document, `explain` its lines for people, `equation_list` the fifteen equations.
Every figure is modelled. Imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import Any, cast, get_args

import msgspec
from questprof_kernels.plan import ceil_div

from questprof.counts import Entry
from questprof.equations import EQUATIONS, picked_row_share, transposed_read_ratio
from questprof.errors import QuestprofError
from questprof.ledger import counted_bytes, entries, planned_tile, resident_bytes, stage_bytes
from questprof.model import Point, Shape, SummaryLayout
from questprof.units import KERNEL_DTYPES, count, dtype_bytes, format_bytes

Document = dict[str, Any]


def formula(
    *,
    length: int,
    budget: int,
    page_size: int = 16,
    heads: int | None = None,
    kv_heads: int = 1,
    head_dim: int = 128,
    dtype: str = "fp16",
    summary_dtype: str | None = None,
    physical_tile: int | None = None,
    last_page_len: int | None = None,
    union_ratio: float | None = None,
    layers: int = 1,
    batch: int = 1,
    num_workers: int = 132,
    summary_layout: str = "paired",
) -> Document:
    """The document for `batch` requests of `length` tokens and a budget of `budget` tokens each.

    `heads` query heads (default: `kv_heads`). `last_page_len` cuts the last page to that many valid tokens.
    `union_ratio` is |union of a group's pages| / K (default: heads / kv_heads, the most). `physical_tile`
    as in the ledger. `num_workers` plans the attention splits. Bytes in the document, those of its
    `entries` included, are sums over KV heads, layers and the batch.

    `rho` is the read ratio of equation (12) in pages, c/S + |union|/P: c is the summary's bytes an element
    over the cache's, S the page size in whole tiles. Over a transposed summary c counts the rows alone that
    the signs of q pick, `row_share` of them. `byte_ratio` is quest_bytes / dense_bytes; the empty
    slots of a partial last page are all that parts the two. Raises QuestprofError for values that cannot
    be. Paper §3.5, article §2.
    """
    seq_len = _valid_tokens(length, page_size, last_page_len)
    layout = _layout(summary_layout)
    query_heads = kv_heads if heads is None else heads
    name = f"{count(query_heads, 'query head')}, {count(kv_heads, 'KV head')}, head_dim {head_dim}"
    shape = Shape(name, query_heads, kv_heads, head_dim, dtype, summary_dtype or "", layers)
    point = Point(
        shape=shape,
        seq_len=seq_len,
        page_size=page_size,
        token_budget=budget,
        batch_size=batch,
        summary_layout=layout,
    )
    ledger = entries(point, num_workers, union_ratio, physical_tile)
    document = {
        "source": "formula",
        **_sizes(point),
        "physical_tile": physical_tile or planned_tile(point, num_workers),
        "union_ratio": float(shape.group_size if union_ratio is None else union_ratio),
        "union_ratio_given": union_ratio is not None,
        "num_workers": num_workers,
    }
    document |= _ratio(document) | _bytes(point, ledger)
    document["byte_ratio"] = document["quest_bytes"] / document["dense_bytes"]
    document["messages"] = _messages(document)
    return document


def explain(document: Document) -> list[str]:
    """The lines for people of a `formula` document: each figure with its name, equation and numbers."""
    d = document
    pages, selected, size, tile = d["num_pages"], d["num_selected"], d["page_size"], d["physical_tile"]
    heads = "" if d["num_kv_heads"] == 1 else f" x {d['num_kv_heads']} KV heads"
    layers = "" if d["num_layers"] == 1 else f" x {d['num_layers']} layers"
    times = heads + layers + ("" if d["batch_size"] == 1 else f" x {d['batch_size']} requests")
    vector = f"2 x {d['vector_bytes']} B x"
    lines = [
        f"{count(d['seq_len'], 'token')} in {count(pages, 'page')} of {size}; "
        f"token budget {d['token_budget']}: {count(selected, 'page')} a query head "
        "(modelled, nothing measured)",
        f"dense read 2ML, eq. (9): {vector} {_tokens(d, pages)}{times} = {_amount(d['dense_bytes'])}",
        f"{_index_name(d)}: 2 x {d['summary_vector_bytes']} B x {pages}{times}{_share_factor(d)} "
        f"= {_amount(d['index_bytes'])}",
        f"selected read 2MKS, eq. (11): {vector} {_tokens(d, d['union_pages'])}{times} "
        f"= {_amount(d['selected_bytes'])}",
        f"Quest read, (10) + (11): {d['index_bytes']} + {d['selected_bytes']} = {_amount(d['quest_bytes'])}",
        f"{_ratio_name(d)}: {_ratio_terms(d)} = {d['rho']:.6g}",
    ]
    if d["last_page_len"] != size:
        lines.append(
            f"read ratio in bytes: {d['quest_bytes']} / {d['dense_bytes']} = {d['byte_ratio']:.6g} "
            f"(the last page holds {d['last_page_len']} of {count(size, 'token')})"
        )
    if tile > 1:
        lines.append(
            f"physical tile {tile}: a page of {size} reads {count(ceil_div(size, tile) * tile, 'token')}"
        )
    lines += [
        _beside(stage, d["entries"]) for stage in d["stage_bytes"] if stage not in ("append_kv", "quest")
    ]
    share = d["resident_summary_bytes"] / d["resident_cache_bytes"]
    lines.append(
        f"resident: cache {_amount(d['resident_cache_bytes'])}, "
        f"summary {_amount(d['resident_summary_bytes'])}, {100 * share:.4g} % of it"
    )
    return [*lines, *d["messages"]]


def equation_list() -> list[dict[str, Any]]:
    """Number, name, section and summary of all fifteen equations, JSON-able, for `formula --list`."""
    return [
        {"number": e.number, "name": e.name, "section": e.section, "summary": e.summary} for e in EQUATIONS
    ]


def _valid_tokens(length: int, page_size: int, last_page_len: int | None) -> int:
    """Tokens of the request: `length`, its last page cut to `last_page_len` when that is given."""
    if page_size < 1:
        why = "a page holds at least one token"
        raise QuestprofError(f"page size {page_size}", why, "Give tokens a page, for example 16.")
    if length < 1:
        raise QuestprofError(f"length {length}", "there is no token to attend to", "Give at least 1 token.")
    if last_page_len is None:
        return length
    if not 1 <= last_page_len <= page_size:
        tokens = "1 token" if page_size == 1 else f"1..{page_size} tokens"
        why = f"the last page of {count(page_size, 'slot')} holds {tokens}"
        raise QuestprofError(
            f"last page length {last_page_len}", why, "Leave it out for what the length leaves."
        )
    left = length % page_size
    if left and left != last_page_len:
        why = f"length {length} leaves {count(left, 'token')} on the last page"
        fix = "Leave it out, or give a length that is a multiple of the page size, which it then cuts."
        raise QuestprofError(f"last page length {last_page_len}", why, fix)
    return (length - 1) // page_size * page_size + last_page_len


def _layout(name: str) -> SummaryLayout:
    """The summary layout called `name`; QuestprofError when there is none."""
    for layout in get_args(SummaryLayout):
        if name == layout:
            return cast(SummaryLayout, layout)
    why = "it is none of " + ", ".join(get_args(SummaryLayout))
    raise QuestprofError(f"summary layout {name!r}", why, "Give one of them.")


def _sizes(point: Point) -> Document:
    """What was asked for, in the words of the data model, and M of cache and summary."""
    shape = point.shape
    return {
        "seq_len": point.seq_len,
        "page_size": point.page_size,
        "token_budget": point.token_budget,
        "num_pages": point.num_pages[0],
        "num_selected": point.num_selected[0],
        "last_page_len": (point.seq_len - 1) % point.page_size + 1,
        "batch_size": point.batch_size,
        "num_qo_heads": shape.num_qo_heads,
        "num_kv_heads": shape.num_kv_heads,
        "group_size": shape.group_size,
        "head_dim": shape.head_dim,
        "kv_dtype": shape.kv_dtype,
        "summary_dtype": shape.effective_summary_dtype,
        "num_layers": shape.num_layers,
        "summary_layout": point.summary_layout,
        "row_share": 1.0 if point.summary_layout == "paired" else picked_row_share(shape.group_size),
        "vector_bytes": shape.head_dim * dtype_bytes(shape.kv_dtype),
        "summary_vector_bytes": shape.head_dim * dtype_bytes(shape.effective_summary_dtype),
    }


def _ratio(d: Document) -> Document:
    """|union| in pages and equation (12) over whole pages."""
    union_pages = min(d["union_ratio"] * d["num_selected"], d["num_pages"])
    page_tokens = ceil_div(d["page_size"], d["physical_tile"]) * d["physical_tile"]
    elements = d["summary_vector_bytes"] / d["vector_bytes"]
    return {
        "union_pages": union_pages,
        "rho": transposed_read_ratio(page_tokens, union_pages, d["num_pages"], d["row_share"], elements),
    }


def _bytes(point: Point, ledger: tuple[Entry, ...]) -> Document:
    """The ledger's bytes times the layers: what (12) counts, all stages, all entries; what stays resident."""
    layers = point.shape.num_layers
    scaled = [
        msgspec.structs.replace(e, read_bytes=layers * e.read_bytes, write_bytes=layers * e.write_bytes)
        for e in ledger
    ]
    counted, resident = counted_bytes(scaled), resident_bytes(point)
    return {
        "dense_bytes": counted["dense"],
        "index_bytes": counted["score"],
        "selected_bytes": counted["attend"],
        "quest_bytes": counted["quest"],
        "resident_cache_bytes": resident.cache_bytes,
        "resident_summary_bytes": resident.summary_bytes,
        "stage_bytes": msgspec.to_builtins(stage_bytes(scaled)),
        "entries": msgspec.to_builtins(scaled),
    }


def _messages(d: Document) -> list[str]:
    """What a reader must know beside the figures."""
    size, budget, rho = d["page_size"], d["token_budget"], d["rho"]
    found: list[str] = []
    if budget >= d["seq_len"]:
        whole = "the one token" if d["seq_len"] == 1 else f"all {d['seq_len']} tokens"
        found.append(
            f"The token budget of {budget} covers {whole}: Quest reads every page and the "
            f"summary on top, rho = {_ratio_terms(d)} = {rho:.6g}, and costs more than dense."
        )
    elif rho >= 1:
        found.append(f"Quest reads no less than dense here: rho = {rho:.6g}.")
    if budget % size and budget < d["seq_len"]:
        tokens = d["num_selected"] * size
        found.append(
            f"A token budget of {budget} is {count(d['num_selected'], 'whole page')} of {size}: "
            f"{count(tokens, 'token')}."
        )
    if d["group_size"] > 1:
        known = "as given" if d["union_ratio_given"] else "the most; a measured one may be lower"
        found.append(
            f"{d['group_size']} query heads share a KV head, which reads the union of their pages: "
            f"|union| / K = {d['union_ratio']:g} ({known}), "
            f"{d['union_pages']:g} of {count(d['num_pages'], 'page')}."
        )
    if d["summary_layout"] == "transposed" and d["group_size"] > 1:
        found.append(
            f"The signs of {d['group_size']} query heads, if independent, pick {d['row_share']:g} of the min "
            "and max rows of a transposed summary; one head a KV head picks half."
        )
    if d["summary_dtype"] != d["kv_dtype"] and d["summary_vector_bytes"] <= d["vector_bytes"]:
        found.append(
            f"A {d['summary_dtype']} summary cannot hold every {d['kv_dtype']} key: round min down and max "
            "up, or widen the box, eq. (15)."
        )
    if d["kv_dtype"] not in KERNEL_DTYPES:
        found.append(f"The kernels take {', '.join(KERNEL_DTYPES)} today; {d['kv_dtype']} is formula alone.")
    return found


def _tokens(d: Document, pages: float) -> str:
    """The tokens of `pages` pages that hold the last one, as the arithmetic that gives them."""
    size, tile, last = d["page_size"], d["physical_tile"], d["last_page_len"]
    full = ceil_div(size, tile) * tile
    if last == size:
        return f"{pages:g} x {full}" if pages != d["num_pages"] or tile > 1 else f"{d['seq_len']}"
    return f"({pages - 1:g} x {full} + {ceil_div(last, tile) * tile})"


def _index_name(d: Document) -> str:
    """What the index read is called, with its formula."""
    if d["summary_layout"] == "paired":
        return "index read 2MP, eq. (10)"
    return "index read, transposed, 2MP of eq. (10) x the rows that the signs of q pick"


def _share_factor(d: Document) -> str:
    """The share of a transposed summary's rows, as a factor."""
    return "" if d["summary_layout"] == "paired" else f" x {d['row_share']:g}"


def _ratio_name(d: Document) -> str:
    """What the read ratio is called, with its formula: T for S where a page is no whole number of tiles."""
    whole = d["page_size"] % d["physical_tile"] == 0
    size, tiles = ("S", "") if whole else ("T", ", T tokens a page in whole tiles")
    if d["summary_layout"] == "paired":
        return f"read ratio 1/{size} + K/P, eq. (12){tiles}"
    term = f"1/(2{size})" if d["group_size"] == 1 else f"(1 - 2^-{d['group_size']})/{size}"
    return f"read ratio {term} + K/P, eq. (12) over a transposed summary (ours){tiles}"


def _ratio_terms(d: Document) -> str:
    """The two terms of equation (12) with their numbers."""
    page_tokens = ceil_div(d["page_size"], d["physical_tile"]) * d["physical_tile"]
    elements = d["row_share"] * d["summary_vector_bytes"] / d["vector_bytes"]
    return f"{elements:g}/{page_tokens} + {d['union_pages']:g}/{d['num_pages']}"


def _beside(stage: str, listed: list[Document]) -> str:
    """One line of what `stage` moves beside the bytes of equation (12), largest first."""
    rest = [e for e in listed if e["stage"] == stage and not e["in_eq12"]]
    rest.sort(key=lambda e: -e["read_bytes"] - e["write_bytes"])
    parts = [
        f"{e['tensor']} {' + '.join(f'{format_bytes(count)} {verb}' for verb, count in moved)}"
        for e in rest
        if (moved := [(v, c) for v, c in (("read", e["read_bytes"]), ("written", e["write_bytes"])) if c])
    ]
    return f"beside eq. (12), {stage}: {', '.join(parts)}"


def _amount(num_bytes: int) -> str:
    """Bytes exactly and in binary units."""
    return f"{num_bytes} B ({format_bytes(num_bytes)})"

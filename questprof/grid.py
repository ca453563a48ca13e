"""From `2k..128k` to the blocks of points a sweep walks.

A `Block` is every point that shares one cache (shape, batch, length, page size, summary layout, page order,
keys): its candidates are timed interleaved, so that dense and Quest see the same minutes of the machine. The
dense baselines are therefore measured in every block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from msgspec.structs import replace

from questprof.errors import QuestprofError
from questprof.model import Data, PageOrder, Point, Shape, SummaryLayout, shape_presets, validate_shape
from questprof.units import dtype_bytes, format_count, parse_count

MAX_PAGE_SIZE = 128

CHOICES: dict[str, tuple[str, ...]] = {
    "backend": ("questprof", "triton", "sdpa", "sdpa-cudnn", "flashinfer", "flashinfer-tc", "fa3", "gather"),
    "policy": ("quest", "quest-open"),
    "summary layout": get_args(SummaryLayout),
    "data": get_args(Data),
    "page order": get_args(PageOrder),
}
QUEST_BACKENDS = ("questprof", "triton", "gather")
"""Backends with the Quest stages; the others, and a user's beside them, are dense baselines."""
BORROWED_DENSE = ("gather",)
"""Quest backends whose `dense` is another's, so that they are no baseline."""
WHOLE = 0
"""A budget of the whole length, whatever the length: what Quest costs where it saves nothing."""

NORMAL_DATA: tuple[Data, ...] = ("independent", "shared")
"""Data sets over the same standard normal keys, which differ in their queries alone."""
DEFAULT_POOL_BYTES = 100 << 30


@dataclass(frozen=True)
class Grid:
    """What `sweep` was asked for."""

    shapes: tuple[Shape, ...]
    lengths: tuple[int, ...]
    page_sizes: tuple[int, ...]
    budgets: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    device: Literal["cpu", "cuda"]
    policies: tuple[str, ...] = ("quest",)
    backends: tuple[str, ...] = ("questprof", "sdpa")
    kernels: tuple[str, ...] = ()
    """Names of the user's stage sets: Quest backends beside those of `backends`."""
    kernels_with_dense: tuple[str, ...] = ()
    """Those of them that bring a `dense` of their own, and so are baselines too."""
    seed: int = 0
    summary_layouts: tuple[SummaryLayout, ...] = ()
    """None: each shape's `default_layout`."""
    data: tuple[Data, ...] = NORMAL_DATA
    """Without groups `shared` is `independent`: a query head is alone with its KV head."""
    page_orders: tuple[PageOrder, ...] = ("shuffled",)
    pool_bytes: int = DEFAULT_POOL_BYTES
    extras: tuple[str, ...] = ()
    """`append`, `select`: those stages are timed in other states too, see `extras.py`."""

    @property
    def quests(self) -> tuple[str, ...]:
        """Backends whose Quest stages are timed."""
        return (*(name for name in self.backends if name in QUEST_BACKENDS), *self.kernels)

    @property
    def baselines(self) -> tuple[str, ...]:
        """Backends whose dense attention is timed."""
        return (*(name for name in self.backends if name not in BORROWED_DENSE), *self.kernels_with_dense)


@dataclass(frozen=True)
class Block:
    """Points over one cache, baselines first."""

    points: tuple[Point, ...]
    extras: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the points share, in words; the usual is left out."""
        p = self.points[0]
        said = f"{p.shape.name} batch {p.batch_size} page {p.page_size} length {format_count(p.seq_len)}"
        said += f" {p.summary_layout}" * (p.summary_layout != "paired")
        said += f" {p.page_order}" * (p.page_order != "shuffled")
        return said + f" {p.data}" * (p.data not in NORMAL_DATA)


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """`8k,32k`, doubling `2k..128k` (both ends included), step `2k..32k:+2k`; sorted, without repeats."""
    sizes = {size for item in text.split(",") for size in _parse_item(item, what)}
    if min(sizes) < 1:
        raise QuestprofError(f"{what} 0", "it must be at least 1", "Give sizes of 1 or more, as in 8k,32k.")
    return tuple(sorted(sizes))


def parse_budgets(text: str) -> tuple[int, ...]:
    """Budgets as `parse_sizes` takes them; `all` among them is WHOLE, and comes last."""
    items = text.split(",")
    sized = [item for item in items if item.strip().lower() != "all"]
    sizes = parse_sizes(",".join(sized), "budget") if sized else ()
    return (*sizes, WHOLE) if len(sized) < len(items) else sizes


def _parse_item(item: str, what: str) -> list[int]:
    if ".." not in item:
        return [parse_count(item, what)]
    first_text, _, rest = item.partition("..")
    last_text, _, step_text = rest.partition(":")
    first, last = parse_count(first_text, what), parse_count(last_text, what)
    if first > last:
        raise QuestprofError(
            f"{what} range {item.strip()!r}",
            "it runs downward",
            f"Write {last_text.strip()}..{first_text.strip()}.",
        )
    return _stepped(item, first, last, step_text, what) if step_text else _doubled(item, first, last, what)


def _stepped(item: str, first: int, last: int, step_text: str, what: str) -> list[int]:
    if not step_text.startswith("+"):
        raise QuestprofError(
            f"{what} range {item.strip()!r}", "its step does not start with +", "Write 2k..32k:+2k."
        )
    step = parse_count(step_text[1:], f"{what} step")
    if step < 1:
        raise QuestprofError(
            f"{what} range {item.strip()!r}", "its step is 0, which leads nowhere", "Write 2k..32k:+2k."
        )
    if (last - first) % step:
        nearest = first + (last - first) // step * step
        raise QuestprofError(
            f"{what} range {item.strip()!r}",
            f"{format_count(last)} is no whole number of steps from {format_count(first)}",
            f"The nearest end is {format_count(nearest)}.",
        )
    return list(range(first, last + 1, step))


def _doubled(item: str, first: int, last: int, what: str) -> list[int]:
    if first < 1:
        raise QuestprofError(f"{what} range {item.strip()!r}", "0 cannot be doubled", "Start at 1 or more.")
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != last:
        below, above = sizes[-1], sizes[-1] * 2
        nearest = below if last - below <= above - last else above
        raise QuestprofError(
            f"{what} range {item.strip()!r}",
            f"{format_count(last)} is no doubling of {format_count(first)}",
            f"The nearest end is {format_count(nearest)}: "
            f"write {format_count(first)}..{format_count(nearest)}.",
        )
    return sizes


def resolve_shape(
    name: str,
    *,
    kv_dtype: str,
    summary_dtype: str = "",
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    layers: int | None = None,
) -> Shape:
    """The shape `name`: a preset, or a path to a Hugging Face config.json; then the overrides.

    Other query heads leave the KV heads as they are, unless each query head had one of its own: then they
    still do. QuestprofError where the query heads do not divide among them.
    """
    base = _named(name)
    num_qo_heads = heads or base.num_qo_heads
    overridden = any((heads, kv_heads, head_dim))
    return validate_shape(
        Shape(
            name=f"{base.name}*" if overridden else base.name,
            num_qo_heads=num_qo_heads,
            num_kv_heads=kv_heads or (num_qo_heads if base.group_size == 1 else base.num_kv_heads),
            head_dim=head_dim or base.head_dim,
            kv_dtype=kv_dtype,
            summary_dtype="" if summary_dtype == kv_dtype else summary_dtype,
            num_layers=layers or base.num_layers,
        )
    )


def _named(name: str) -> Shape:
    """The preset `name`, or the shape of a config.json, or of the one in a folder."""
    presets, path = shape_presets(), Path(name)
    if name in presets:
        return presets[name]
    if path.is_dir():
        return _config_shape(path / "config.json")
    if name.endswith(".json"):
        return _config_shape(path)
    raise no_preset(name, presets)


def no_preset(name: str, presets: Iterable[str]) -> QuestprofError:
    """The error for a shape that is none of `presets`."""
    fix = f"Choose {', '.join(presets)}, or name a Hugging Face config.json."
    return QuestprofError(f"shape {name!r}", "there is no preset of that name", fix)


def read_config(path: Path, fix: str) -> Any:
    """What a config.json holds, a byte-order mark allowed; QuestprofError with `fix` if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise QuestprofError(f"cannot read {path}", str(error), fix) from error


def _config_shape(path: Path) -> Shape:
    """Heads, head_dim and layers of a Hugging Face config.json."""
    fix = "Name the config.json of a Hugging Face transformer, or a preset."
    config = read_config(path, fix)
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    try:
        if not isinstance(config, dict):
            raise ValueError(f"it holds a {type(config).__name__}, not an object")
        return _shape_of(config, path)
    except ValueError as error:
        raise QuestprofError(f"{path} is no config.json that Quest can read", str(error), fix) from error


def _shape_of(config: dict[str, Any], path: Path) -> Shape:
    """The shape a transformer's `config` describes; ValueError says what is missing or unsupported."""
    if config.get("kv_lora_rank"):
        raise ValueError("it has latent attention (kv_lora_rank), whose cache holds no keys per head")
    heads = _positive(config, "num_attention_heads")
    kv_key = next((key for key in ("num_key_value_heads", "num_kv_heads") if config.get(key) is not None), "")
    kv_heads = _positive(config, kv_key) if kv_key else 1 if config.get("multi_query") else heads
    if config.get("head_dim") is not None:
        head_dim = _positive(config, "head_dim")
    else:
        hidden = _positive(config, "hidden_size")
        if hidden % heads:
            raise ValueError(f"hidden_size {hidden} is no multiple of {heads} attention heads")
        head_dim = hidden // heads
    return Shape(
        name=str(config.get("_name_or_path") or path.resolve().parent.name or path.stem),
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        num_layers=_positive(config, "num_hidden_layers"),
    )


def _positive(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} is {value!r}, not a whole number of at least 1")
    return value


def check_pages(budgets: Sequence[int], page_sizes: Sequence[int]) -> None:
    """QuestprofError when a page is larger than the cache takes, or a budget holds no whole page."""
    if max(page_sizes) > MAX_PAGE_SIZE:
        raise QuestprofError(
            f"page size {max(page_sizes)}",
            f"the paged cache takes pages of 1 to {MAX_PAGE_SIZE} tokens",
            f"Give page sizes up to {MAX_PAGE_SIZE}.",
        )
    if min(budgets, default=MAX_PAGE_SIZE) < max(page_sizes):
        raise QuestprofError(
            f"budget {min(budgets)} with page size {max(page_sizes)}",
            "the token budget is smaller than a page, so no page fits",
            f"Give a budget of at least {max(page_sizes)} tokens, or a smaller page.",
        )


def check_names(text: str, what: str) -> tuple[Any, ...]:
    """A comma-separated list of names of the kind `what` in CHOICES; QuestprofError for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    choices = CHOICES[what]
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise QuestprofError(
            f"{what} {(unknown or [text])[0]!r}", "it is unknown", f"Choose among {', '.join(choices)}."
        )
    return names


def plan_blocks(grid: Grid) -> tuple[Block, ...]:
    """The blocks of `grid`, shortest first. QuestprofError when no backend of it has the Quest stages."""
    check_pages([budget for budget in grid.budgets if budget != WHOLE], grid.page_sizes)
    if not grid.quests:
        raise QuestprofError(
            f"backends {', '.join(grid.backends)}",
            "they are dense baselines only, so that Quest would not be measured",
            f"Add questprof: --backends {','.join(('questprof', *grid.backends))}.",
        )
    return tuple(
        Block(_block_points(grid, cache, data_sets), grid.extras)
        for shape in dict.fromkeys(grid.shapes)
        for batch in grid.batch_sizes
        for page in grid.page_sizes
        for length in grid.lengths
        for layout in grid.summary_layouts or (default_layout(shape, grid.device),)
        for order in grid.page_orders
        for data_sets in _by_keys(grid.data, shape)
        for cache in [
            Point(
                shape=shape,
                seq_len=length,
                page_size=page,
                batch_size=batch,
                policy="dense",
                device=grid.device,
                summary_layout=layout,
                data="independent" if data_sets[0] in NORMAL_DATA else data_sets[0],
                page_order=order,
                pool_bytes=grid.pool_bytes if order == "scattered" else 0,
                seed=grid.seed,
            )
        ]
    )


def default_layout(shape: Shape, device: str) -> SummaryLayout:
    """The faster layout, as measured: `transposed` on a GPU where each query head has a 16-bit KV head alone.

    There the signs of q leave half of the summary unread; a group's leave 2^-G of it, too little to pay for
    the layout, and a CPU reads such short rows slowly. See `profiles/NOTES.md`.
    """
    halves = shape.group_size == 1 and dtype_bytes(shape.effective_summary_dtype) == 2
    paired, transposed = CHOICES["summary layout"]
    return cast(SummaryLayout, transposed if device == "cuda" and halves else paired)


def _by_keys(data: Sequence[Data], shape: Shape) -> list[tuple[Data, ...]]:
    """The data sets of `data`, those together that have the same keys."""
    usable = dict.fromkeys("independent" if d == "shared" and shape.group_size == 1 else d for d in data)
    normal = tuple(d for d in usable if d in NORMAL_DATA)
    return [*([normal] if normal else []), *((d,) for d in usable if d not in NORMAL_DATA)]


def _block_points(grid: Grid, dense: Point, data_sets: Sequence[Data]) -> tuple[Point, ...]:
    """The baselines and the Quest points over the cache that the dense point `dense` describes."""
    baselines = [replace(dense, backend=backend) for backend in grid.baselines]
    quests = [
        replace(dense, backend=backend, policy=policy, token_budget=budget, data=data)
        for backend in grid.quests
        for policy in grid.policies
        for budget in dict.fromkeys(dense.seq_len if b == WHOLE else b for b in grid.budgets)
        for data in data_sets
    ]
    return tuple(baselines + quests)

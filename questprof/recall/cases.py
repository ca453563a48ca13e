"""What an evaluation was asked for: page sizes, budgets, policies, and the layers and heads of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np

from questprof.errors import QuestprofError
from questprof.grid import WHOLE, check_pages
from questprof.recall.policies import POLICIES, Policy
from questprof.recall.source import TraceHeader
from questprof.recall.view import Ints

PAGE_SIZES = (8, 16, 32)
BUDGETS = (128, 256, 512, 1024, 2048)
TOP_TOKENS = 10

Compare = Literal["all", "sample", "none"]
"""Which layers go through `attend` and `dense` too: all, SAMPLED of them spread over the trace, or none."""
SAMPLED = 4


@dataclass(frozen=True)
class Case:
    """One budget, in tokens, and one policy."""

    token_budget: int
    policy: Policy

    def num_selected(self, page_size: int, num_pages: Ints) -> Ints:
        """K = min(floor(B / S), P) of every query; a partial page counts as one."""
        return np.minimum(self.token_budget // page_size, num_pages)


@dataclass(frozen=True)
class Asked:
    """The evaluation of one trace. A budget of WHOLE is every page; empty layers and heads are all."""

    page_sizes: tuple[int, ...] = PAGE_SIZES
    budgets: tuple[int, ...] = BUDGETS
    policies: tuple[Policy, ...] = field(default_factory=lambda: tuple(POLICIES.values()))
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    top_tokens: int = TOP_TOKENS
    seed: int = 0
    compare: Compare = "all"

    def cases(self, page_size: int, num_tokens: int) -> tuple[Case, ...]:
        """Budget by budget, every policy; a whole budget is all pages' tokens."""
        whole = -(-num_tokens // page_size) * page_size
        return tuple(
            Case(whole if budget == WHOLE else budget, policy)
            for budget in self.budgets
            for policy in self.policies
        )


@dataclass(frozen=True)
class Scope:
    """The layers and query heads evaluated, and the KV heads with their whole groups that this takes."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    group_size: int

    @property
    def read_heads(self) -> tuple[int, ...]:
        """Query heads of the groups of `kv_heads`: a union is of a whole group."""
        return tuple(kv * self.group_size + g for kv in self.kv_heads for g in range(self.group_size))

    @property
    def shown(self) -> list[int]:
        """Places of `heads` among `read_heads`."""
        return [self.read_heads.index(head) for head in self.heads]


def resolve(asked: Asked, header: TraceHeader) -> Scope:
    """The scope of `asked` in a trace; QuestprofError for what the trace lacks or no budget can pay."""
    check_pages([budget for budget in asked.budgets if budget != WHOLE], asked.page_sizes)
    layers = _chosen("layer", asked.layers, header.layers)
    heads = _chosen("head", asked.heads, tuple(range(header.num_qo_heads)))
    group_size = header.num_qo_heads // header.num_kv_heads
    kv_heads = tuple(sorted({head // group_size for head in heads}))
    return Scope(layers, heads, kv_heads, group_size)


def _chosen(what: str, wanted: tuple[int, ...], there: tuple[int, ...]) -> tuple[int, ...]:
    for number in wanted:
        if number not in there:
            raise QuestprofError(
                f"{what} {number}",
                f"the trace has {what}s {_ranges(there)}",
                f"Choose among those with --{what}s, or leave it out for all.",
            )
    return tuple(sorted(set(wanted))) or there


def _ranges(numbers: tuple[int, ...]) -> str:
    """0-3,7 for 0, 1, 2, 3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def sampled_layers(compare: Compare, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers whose attention runs through the product's stages as well."""
    if compare == "none":
        return ()
    if compare == "all" or len(layers) <= SAMPLED:
        return layers
    return tuple(layers[round(i * (len(layers) - 1) / (SAMPLED - 1))] for i in range(SAMPLED))


def parse_compare(text: str) -> Compare:
    """`all`, `sample` or `none`; QuestprofError otherwise."""
    if text not in get_args(Compare):
        raise QuestprofError(f"--check {text!r}", "it is unknown", "Choose all, sample or none.")
    return cast(Compare, text)


def parse_numbers(text: str | None, what: str) -> tuple[int, ...]:
    """`0,5-9` as numbers, rising; none for None. QuestprofError for anything else."""
    found: set[int] = set()
    for item in (text or "").split(",") if text is not None else ():
        first, dash, last = item.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
            raise QuestprofError(
                f"{what} {item.strip()!r}", "it is neither a number nor a rising range", "Write 0,5-9."
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))

"""The tail page and the heads in words: what was found, and what was looked for in vain. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from questprof.recall.answers import evidence, heads, tail
from questprof.recall.answers.evaluation import name_text
from questprof.recall.answers.finding import Answers
from questprof.recall.answers.words import fold, listed, named, share_text
from questprof.units import count, format_count


def tail_sentences(found: Sequence[tail.Tail], page_size: int) -> Iterator[str]:
    """Starved or not: in full for the page size nearest to `page_size` that is, the others in brief."""
    starved = sorted((one for one in found if one.starved), key=lambda one: abs(one.page_size - page_size))
    if starved:
        one = starved[0]
        few, half = one.taken[0], _nearest(one.taken, one.page_size / 2)
        worst = max(range(len(one.cuts)), key=lambda i: one.cuts[i])
        rest = sorted(other.page_size for other in starved[1:])
        also = f" The same holds in pages of {listed(map(str, rest))}." if rest else ""
        yield (
            f"quest-open starves the tail page. In pages of {one.page_size}, {share_text(few[1])} of (layer, "
            f"head) pick it with {count(few[0], 'valid token')} and {share_text(half[1])} with "
            f"{half[0]}, though it holds {one.tail_mass:.0%} of the mass in the mean. Taking it always "
            f"(quest) cuts the mass lost where it has few tokens {fold(median(one.cuts))} in the median over "
            f"budgets and {fold(one.cuts[worst])} at {format_count(one.budgets[worst])} "
            f"({one.few_open[worst]:.3f} to {one.few_forced[worst]:.3f}); over all queries "
            f"{fold(median(one.all_cuts))}, in a tenth of the heads {fold(one.heads_cut)} or more.{also}"
        )
    untold = [str(one.page_size) for one in found if one.taken_few is None]
    if untold:
        yield (
            f"Whether the tail page is starved in pages of {listed(untold)} this trace does not tell: no "
            f"query has one with up to {tail.FEW:.0%} of its tokens."
        )
    fair = [one for one in found if not one.starved and one.taken_few is not None]
    if fair:
        sizes = listed(str(one.page_size) for one in fair)
        taken = [one.taken_few for one in fair if one.taken_few is not None]
        picks = f"with few tokens {share_text(min(taken))} or more pick it, and "
        cut = max(one.heads_cut for one in fair)
        yield (
            f"The tail page is not starved in pages of {sizes}: {picks}taking it always cuts the mass lost "
            f"{fold(cut)} in a tenth of the heads at most (rule: under {tail.TAKEN:.0%} pick it with few "
            f"tokens, and {tail.CUT:.0f}-fold or more)."
        )


def _nearest(taken: Sequence[tuple[int, float]], tokens: float) -> tuple[int, float]:
    return min(taken, key=lambda one: abs(one[0] - tokens))


def dense_sentence(found: Answers) -> str:
    """The dense heads by name, and the layers where most heads are."""
    size = f" of {found.dense[0].page_size}" if found.dense else ""
    rule = f"half of their queries need {heads.DENSE:.0%} of the pages{size} or more for 95% of the mass"
    if not found.dense:
        return f"No head is dense (rule: {rule}, even in the order of true page maxima)."
    names = named([f"{name_text((h.layer, h.head))} ({h.pages_share:.0%})" for h in found.dense])
    most = [one for one in found.dense_by_layer if 2 * one[1] > one[2]]
    where = "".join(f" In layer {layer}, {dense} of {all_of_it} are." for layer, dense, all_of_it in most)
    return (
        f"{count(len(found.dense), 'head is', 'heads are')} dense: {rule} even in the "
        f"order of true page maxima, so that no box helps: {names} (layer.head).{where}"
    )


def failed_sentence(found: Answers) -> str:
    """The sparse heads that boxes fail, at the page size that sentences are about."""
    own = [head for head in found.failed if head.page_size == found.page_size]
    if not any(one.oracle is not None for one in found.ablations):
        return "Whether boxes fail sparse heads is not known: policy oracle was not evaluated."
    rule = (
        f"with the same number of pages the oracle keeps {heads.ENOUGH:.0%} or more, and {found.policy} at "
        f"least {heads.FAILED * 100:.0f} points less whether or not the tail page is taken"
    )
    if not own:
        return f"No sparse head is failed by its boxes in pages of {found.page_size} (rule: {rule})."
    names = named(
        [
            f"{name_text((h.layer, h.head))} ({h.quest:.0%} instead of {h.oracle:.0%} at "
            f"{format_count(h.token_budget)})"
            for h in own
        ]
    )
    sizes = {size: sum(h.page_size == size for h in found.failed) for size in _sizes(found)}
    beside = ", ".join(
        f"{number} in pages of {size}" for size, number in sizes.items() if size != found.page_size
    )
    return (
        f"{count(len(own), 'sparse head is', 'sparse heads are')} failed by the box itself in pages of "
        f"{found.page_size}{f' ({beside})' if beside else ''}: {rule}. They are {names}."
    )


def _sizes(found: Answers) -> list[int]:
    return [one.page_size for one in found.suggestions]


def hidden_sentence(found: Answers) -> str:
    """Heads that a mean hides, with the mean."""
    rule = f"under {heads.HIDDEN:.0%} while a mean passes {heads.PASSES:.0%}"
    if not found.hidden:
        return f"No head hides under a mean in pages of {found.page_size} (rule: {rule})."
    first = found.hidden[0]
    names = named(
        [f"{name_text((h.layer, h.head))} {h.mass:.0%} (its layer {h.layer_mean:.0%})" for h in found.hidden]
    )
    return (
        f"At {format_count(first.token_budget)} tokens in pages of {first.page_size} the mean over all heads "
        f"is {first.mean:.1%}. It hides {count(len(found.hidden), 'head that keeps', 'heads that keep')} "
        f"less than {heads.HIDDEN:.0%}: {names}."
    )


def evidence_sentences(found: Answers) -> Iterator[str]:
    """Each span of evidence, budget by budget, and how alike neighbouring layers pick; quest's own policy."""
    of = found.page_size, found.policy
    own = [one for one in found.hits if (one.page_size, one.policy) == of]
    for name in dict.fromkeys(one.name for one in own):
        spans = sorted((one for one in own if one.name == name), key=lambda one: one.token_budget)
        said = "; ".join(f"at {format_count(one.token_budget)} tokens {_hit_text(one)}" for one in spans)
        queries = count(spans[0].num_queries, "query that sees", "queries that see")
        yield (
            f"Evidence {name!r} in pages of {of[0]}, mean over {queries} it, heads that pick all its pages: "
            f"{said}."
        )
    alike = [one for one in found.neighbours if (one.page_size, one.policy) == of and one.jaccard is not None]
    if alike:
        said = listed(f"{one.jaccard:.2f} at {format_count(one.token_budget)}" for one in alike)
        yield f"Neighbouring layers pick pages alike (Jaccard, any head, pages of {of[0]}): {said} tokens."


def _hit_text(one: evidence.Hits) -> str:
    """`12.3 heads in 8.1 layers, the first 4`."""
    if one.first_layer is None:
        return "none"
    never = f", none at {count(one.num_missed, 'query', 'queries')}" if one.num_missed else ""
    return f"{one.heads:.1f} in {one.layers:.1f} layers, the first {one.first_layer} (median){never}"

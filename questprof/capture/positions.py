"""Which tokens' queries a trace keeps: `last:64`, `every:100`, `generated`, or a list."""

from __future__ import annotations

from questprof.errors import QuestprofError
from questprof.units import parse_count

FORMS = "Write last:64, every:100, generated, generated:10, or positions as in 100,2k,4095."


def query_positions(spec: str, num_tokens: int, num_generated: int = 0) -> tuple[int, ...]:
    """Ascending positions in 0..num_tokens-1.

    `last:n`: the last n. `every:n`: every n-th token, the first one at n - 1. `generated`, `generated:n`:
    the generated tokens, or every n-th of them, from the first on. Otherwise a list of positions from 0.
    QuestprofError for another form, a position past the text, and a text with too few tokens.
    """
    kind, _, count = spec.strip().partition(":")
    if kind in ("last", "every", "generated"):
        number = parse_count(count, f"queries {spec!r}:") if count or kind != "generated" else 1
        if number < 1:
            raise QuestprofError(f"queries {spec!r}", "it names no token", FORMS)
        return _counted(kind, number, num_tokens, num_generated)
    return _listed(spec, num_tokens)


def _counted(kind: str, number: int, num_tokens: int, num_generated: int) -> tuple[int, ...]:
    if kind == "generated":
        if not num_generated:
            raise QuestprofError("queries generated", "no token is generated", "Add --generate 128.")
        return tuple(range(num_tokens - num_generated, num_tokens, number))
    if number > num_tokens:
        raise QuestprofError(
            f"queries {kind}:{number}",
            f"the text is too short: it has {num_tokens} tokens",
            "Give a longer text, or ask for fewer.",
        )
    if kind == "last":
        return tuple(range(num_tokens - number, num_tokens))
    return tuple(range(number - 1, num_tokens, number))


def _listed(spec: str, num_tokens: int) -> tuple[int, ...]:
    words = [word for word in spec.split(",") if word.strip()]
    if not words or not all(word.strip()[0].isdigit() for word in words):
        raise QuestprofError(f"queries {spec!r}", "it is no form that is known", FORMS)
    positions = sorted({parse_count(word, "query position") for word in words})
    if positions[-1] >= num_tokens:
        raise QuestprofError(
            f"query position {positions[-1]}",
            f"it is past the trace, whose tokens are 0 to {num_tokens - 1}",
            "Name positions inside it, or raise --max-tokens.",
        )
    return tuple(positions)

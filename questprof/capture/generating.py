"""Lets a model go on with a text: dense attention, one token at a time, greedy or sampled."""

from __future__ import annotations

import inspect
from typing import Any

import torch


def generate(
    model: Any, ids: tuple[int, ...], num_tokens: int, *, temperature: float = 0.0, seed: int = 0
) -> tuple[int, ...]:
    """The next `num_tokens` token ids, fewer where the model ends its text (the end token is left out).

    Temperature 0 takes the likeliest token, the lower id of two; otherwise tokens are drawn from the softmax
    of the logits over the temperature, the same ones for the same seed on the same machine.
    """
    device = next(model.parameters()).device
    draws = torch.Generator().manual_seed(seed)
    ends = _end_tokens(model)
    generated: list[int] = []
    options = _options(model)
    new = torch.tensor([ids], device=device)
    with torch.inference_mode():
        while len(generated) < num_tokens:
            logits = model(input_ids=new, use_cache=True, **options).logits
            token = _pick(logits[0, -1].float().cpu(), temperature, draws)
            if token in ends:
                break
            generated.append(token)
            new = torch.tensor([[token]], device=device)
    return tuple(generated)


def _pick(logits: torch.Tensor, temperature: float, draws: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=draws))


def _end_tokens(model: Any) -> frozenset[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def _options(model: Any) -> dict[str, Any]:
    """An empty KV cache, which the model fills, and logits of the last token alone, where the model can.

    The cache's argument has another name from transformers 5.20 on or so: the model tells which.
    """
    from transformers import DynamicCache

    known = inspect.signature(model.forward).parameters
    cache = DynamicCache(config=model.config)
    options: dict[str, Any] = {"cache" if "cache" in known else "past_key_values": cache}
    return {**options, "logits_to_keep": 1} if "logits_to_keep" in known else options

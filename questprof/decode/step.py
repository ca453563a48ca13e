"""One decode step of a model: every launch in order, named by its part, over caches that grow.

`run_eager` launches all parts; `capture` records them as one CUDA graph, which stays right while requests
grow up to what the caches were made for; `advance` makes room for each request's next token, on the host and
in the device tensors that the kernels read, so that the next run is the next real step: its token is the one
sampled before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from questprof.backends import Backend
from questprof.decode import attention
from questprof.decode.caches import StepCaches
from questprof.decode.config import ModelConfig
from questprof.decode.records import PartName
from questprof.decode.rope import inverse_frequencies
from questprof.decode.weights import LayerWeights, ModelWeights
from questprof.errors import QuestprofError
from questprof.policies import launcher

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Part:
    """One launch (of one or a few kernels). Parts of one `kind` launch the same kernels in every layer."""

    name: PartName
    layer: int  # -1: of no layer
    launch: Callable[[], None]
    kind: str


class DecodeStep:
    """A step of `weights` over `caches` under `policy`.

    `policy` is `dense`, `quest` or `quest-open`. With the latter two the first `dense_layers` layers are
    dense, the others select `token_budget` tokens, or `layer_budgets[layer]` of them (0: dense).
    `dense_backend` runs dense attention. QuestprofError for a budget, backend or policy that cannot be.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        caches: StepCaches,
        policy: str,
        *,
        backend: Backend,
        dense_backend: Backend | None = None,
        token_budget: int = 0,
        layer_budgets: Sequence[int] = (),
        dense_layers: int = 2,
    ) -> None:
        self.config, self.weights, self.caches = config, weights, caches
        self.policy = policy
        self.budgets = layer_budgets_of(config, policy, token_budget, layer_budgets, dense_layers)
        self._backend, self._dense_backend = backend, dense_backend or backend
        attention.check_backend(self._dense_backend, ("dense", "append_kv"))
        if any(self.budgets):
            attention.check_backend(backend, ("append", "score", "select", "attend"))
        self._allocate()
        budgets = sorted({budget for budget in self.budgets if budget})
        self._selections = {
            budget: attention.Selection(caches, budget, config.num_qo_heads) for budget in budgets
        }
        self.parts = tuple(self._build())
        self.refresh()

    @property
    def is_fused(self) -> bool:
        """Whether a part `attend` selects too."""
        return any(self.budgets) and all(part.name != "select" for part in self.parts)

    def run_eager(self, without: frozenset[str] = frozenset()) -> None:
        """Launch every part in order, but those named in `without`."""
        for part in self.parts:
            if part.name not in without:
                part.launch()

    def capture(self, without: frozenset[str] = frozenset()) -> torch.cuda.CUDAGraph:
        """A CUDA graph of `run_eager`; run that once before, so that everything is compiled and allocated."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run_eager(without)
        return graph

    def advance(self) -> None:
        """Make room for one more token a request; QuestprofError past what the caches were made for."""
        lead = self.caches.lead
        if any(n >= most for n, most in zip(lead.seq_lens, self.caches.most_tokens, strict=True)):
            raise QuestprofError(
                "the next decode step",
                f"the caches were made for {self.caches.most_tokens} tokens",
                "Ask for fewer steps.",
            )
        lead.extend([1] * lead.batch_size)
        self.refresh()

    def set_tokens(self, tokens: Sequence[int]) -> None:
        """Let the next step read these token ids, one a request."""
        import torch

        self.tokens.copy_(torch.tensor(list(tokens), dtype=torch.int64))

    def refresh(self) -> None:
        """Write the newest positions and K into the device tensors that the kernels read."""
        import torch

        lead = self.caches.lead
        newest = [max(0, length - 1) for length in lead.seq_lens]
        self.positions.copy_(torch.tensor(newest, dtype=torch.int32))
        for selection in self._selections.values():
            selection.update(lead)

    def _allocate(self) -> None:
        import torch
        from questprof_kernels.decode_torch import rope_table

        config, batch, pool = self.config, self.caches.lead.batch_size, self.caches.lead.pool
        if batch != self.weights.batch_size:
            raise QuestprofError(
                f"weights bound for {self.weights.batch_size} requests",
                f"the caches hold {batch}",
                "Build both for the same batch.",
            )
        zeros = partial(torch.zeros, dtype=self.weights.dtype, device=pool.device)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=pool.device)
        self.positions = torch.zeros(batch, dtype=torch.int32, device=pool.device)
        self.new_indptr = torch.arange(batch + 1, dtype=torch.int32, device=pool.device)
        self.residual, self.normed = zeros((batch, config.hidden_size)), zeros((batch, config.hidden_size))
        self.delta = zeros((batch, config.hidden_size))
        self.qkv = zeros((batch, config.q_size + 2 * config.kv_size))
        self.activated = zeros((batch, config.intermediate_size))
        self.logits = zeros((batch, config.vocab_size))
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._table = rope_table(frequencies, max(self.caches.most_tokens), pool.device)
        q, self._keys, self._values = (
            piece.view(batch, -1, config.head_dim)
            for piece in self.qkv.split([config.q_size, config.kv_size, config.kv_size], dim=1)
        )
        self.buffers = attention.make_buffers(self.caches, q)

    def _build(self) -> list[Part]:
        run, weights, eps = self.weights.operations, self.weights, self.config.rms_norm_eps
        embed = partial(run.embed, self.tokens, weights.embedding, self.residual)
        parts = [Part("embed", -1, embed, "embed")]
        for index, layer in enumerate(weights.layers):
            parts += self._build_layer(index, layer)
        norm = partial(run.add_rms_norm, self.residual, self.delta, weights.final_norm, eps, self.normed)
        parts += [
            Part("norm", -1, norm, "add norm"),
            Part("head", -1, partial(weights.head, self.normed, self.logits), "head"),
            Part("sampling", -1, partial(run.greedy, self.logits, self.tokens), "sampling"),
        ]
        return parts

    def _build_layer(self, index: int, layer: LayerWeights) -> list[Part]:
        config, run, linears = self.config, self.weights.operations, layer.linears
        eps, delta, normed = config.rms_norm_eps, self.delta, self.normed
        norm = partial(run.add_rms_norm, self.residual)
        first = partial(norm, delta if index else None, layer.input_norm, eps, normed)
        heads = config.num_qo_heads + config.num_kv_heads
        attended = self.buffers.out.view(self.buffers.out.shape[0], config.q_size)
        launches: list[tuple[PartName, str, Callable[[], None]]] = [
            ("norm", "add norm" if index else "norm", first),
            ("qkv", "qkv", partial(linears["qkv"], normed, self.qkv)),
            ("rope", "rope", partial(run.rope, self.qkv, self.positions, self._table, heads)),
            *self._attention(index),
            ("out_proj", "out_proj", partial(linears["out_proj"], attended, delta)),
            ("norm", "add norm", partial(norm, delta, layer.post_norm, eps, normed)),
            ("ffn", "gate_up", partial(linears["gate_up"], normed, self.activated)),
            ("ffn", "down", partial(linears["down"], self.activated, delta)),
        ]  # fmt: skip
        return [Part(name, index, launch, kind) for name, kind, launch in launches]

    def _attention(self, index: int) -> list[tuple[PartName, str, Callable[[], None]]]:
        """Append and attention of layer `index`; a dense layer keeps no summary."""
        cache, budget = self.caches.layers[index], self.budgets[index]
        backend = self._backend if budget else self._dense_backend
        stage = "append" if budget else "append_kv"
        new = (cache, self._keys, self._values, self.new_indptr)
        if not budget:
            found = attention.dense_launches(backend, cache, self.buffers)
        else:
            take_tail = attention.TAKES_TAIL[self.policy]
            selection = self._selections[budget]
            found = attention.quest_launches(backend, cache, self.buffers, selection, take_tail=take_tail)
        kind = f"budget {budget}"
        return [
            ("append", stage, launcher(backend, stage, *new)),
            *((name, f"{name} {kind}", launch) for name, launch in found),
        ]


def layer_budgets_of(
    config: ModelConfig, policy: str, token_budget: int, layer_budgets: Sequence[int], dense_layers: int
) -> tuple[int, ...]:
    """The token budget of every layer, 0 for a dense one. QuestprofError for what cannot be."""
    if policy == "dense":
        return (0,) * config.num_layers
    if policy not in attention.TAKES_TAIL:
        known = ", ".join(("dense", *attention.TAKES_TAIL))
        raise QuestprofError(
            f"policy {policy!r} in a decode step", "it is unknown", f"Choose one of {known}."
        )
    if layer_budgets and len(layer_budgets) != config.num_layers:
        raise QuestprofError(
            f"{len(layer_budgets)} layer budgets",
            f"{config.name} has {config.num_layers} layers",
            "Give one budget a layer, 0 for a dense one.",
        )
    budgets = tuple(layer_budgets) or (token_budget,) * config.num_layers
    if min(budgets) < 0 or not 0 <= dense_layers <= config.num_layers:
        raise QuestprofError(
            f"budgets {budgets} with {dense_layers} dense layers",
            "budgets are 0 or more, and so are dense layers, at most all",
            "Give others.",
        )
    return tuple(0 if layer < dense_layers else budget for layer, budget in enumerate(budgets))

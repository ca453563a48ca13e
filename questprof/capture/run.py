"""From a checkpoint and a text to a trace on disk: one dense float32 teacher-forced prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from questprof.capture.captured import LayerCapture
from questprof.capture.checkpoint import Checkpoint
from questprof.capture.header import CaptureHeader
from questprof.capture.loaded import Loaded, load
from questprof.capture.positions import query_positions
from questprof.capture.projections import Projections
from questprof.capture.recorder import LayerShape, Recorder, recording
from questprof.capture.text import Text, find_span, read_documents, tokenize
from questprof.capture.writer import CaptureWriter
from questprof.errors import Exit, QuestprofError
from questprof.files import check_writable, output_exists


@dataclass(frozen=True)
class Asked:
    """What `questprof capture` was asked for. `queries` empty: last:64, or what is generated."""

    texts: tuple[Path, ...]
    output: Path
    max_tokens: int = 4096
    queries: str = ""
    evidence: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    pre_rope: bool = False
    generate: int = 0
    temperature: float = 0.0
    seed: int = 0
    device: str = "cpu"
    force: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was written. `generated` is text."""

    header: CaptureHeader
    generated: str
    warnings: tuple[str, ...]


def run_capture(
    checkpoint: Checkpoint, asked: Asked, progress: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Capture `asked.texts` with the model of `checkpoint` into `asked.output`.

    `progress` is told what is going on, layer by layer. QuestprofError, with nothing left behind, for
    whatever is wrong with output, text, spans, queries, files or architecture.
    """
    if asked.output.exists() and not asked.force:
        raise output_exists(asked.output)
    check_writable(asked.output)
    documents = read_documents(asked.texts)
    progress("loading the model")
    loaded = load(checkpoint, asked.device)
    text = tokenize(documents, loaded.tokenizer, asked.max_tokens)
    header = _header(checkpoint, loaded, text, asked)
    with _explained(loaded, header.num_tokens):
        if asked.generate:
            progress(f"generating {asked.generate} tokens")
            header = _with_generated(header, loaded, text, asked)
        ids = text.ids + header.generated
        written = prefill(loaded.model, ids, header, asked.output, progress, force=asked.force)
    generated = header.generated
    return Outcome(written, loaded.tokenizer.decode(generated), tuple(_warnings(written, loaded, asked)))


def prefill(
    model: Any,
    ids: Sequence[int],
    header: CaptureHeader,
    output: Path,
    progress: Callable[[str], None] = lambda _: None,
    *,
    force: bool = False,
) -> CaptureHeader:
    """Run `ids` through `model` once and write the trace; the header as written.

    The heads and scale of `header` are filled in from the first layer. One layer's tensors are held at once.
    """
    with ExitStack() as stack:
        writer: CaptureWriter | None = None

        def sink(number: int, shape: LayerShape, layer: LayerCapture) -> None:
            nonlocal writer
            if writer is None:
                full = replace(
                    header,
                    num_qo_heads=shape.num_qo_heads,
                    num_kv_heads=shape.num_kv_heads,
                    head_dim=shape.head_dim,
                    softmax_scale=shape.softmax_scale,
                )
                writer = stack.enter_context(CaptureWriter(output, full, force=force))
            progress(f"layer {number} of 0..{header.num_layers - 1}")
            writer.write(number, layer)

        projections = Projections() if header.has_pre_rope else None
        recorder = Recorder(header.query_positions, sink, projections)
        if projections:
            stack.enter_context(projections.watching(model))
        stack.enter_context(recording(recorder))
        _forward(model, ids)
        if writer is None:
            raise _nothing_seen(model, recorder)
    return writer.header


def _forward(model: Any, ids: Sequence[int]) -> None:
    """The layers alone, without a cache and without the logits."""
    import torch

    device = next(model.parameters()).device
    with torch.inference_mode():
        model.base_model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False)


def _header(checkpoint: Checkpoint, loaded: Loaded, text: Text, asked: Asked) -> CaptureHeader:
    """As if all tokens asked for were generated, so that every mistake shows before the first is."""
    num_tokens = len(text.ids) + asked.generate
    named = tuple(find_span(given, text, "--segment") for given in asked.segments)
    several = len(text.documents) > 1 or asked.generate
    return CaptureHeader(
        model=checkpoint.name,
        model_sha256=checkpoint.sha256(),
        tokenizer=loaded.tokenizer_name,
        text=text.name,
        text_sha256=text.sha256,
        num_tokens=num_tokens,
        num_layers=loaded.num_layers,
        num_qo_heads=1,
        num_kv_heads=1,
        head_dim=1,
        softmax_scale=1.0,
        query_positions=_positions(asked, num_tokens, asked.generate),
        evidence=tuple(find_span(given, text, "--evidence") for given in asked.evidence),
        segments=named or (text.documents if several else ()),
        has_pre_rope=asked.pre_rope,
    )


def _positions(asked: Asked, num_tokens: int, num_generated: int) -> tuple[int, ...]:
    queries = asked.queries or ("generated" if num_generated else "last:64")
    return query_positions(queries, num_tokens, num_generated)


def _with_generated(header: CaptureHeader, loaded: Loaded, text: Text, asked: Asked) -> CaptureHeader:
    """`header` of the text and the tokens that the model adds to it."""
    from questprof.capture.generating import generate

    generated = generate(
        loaded.model, text.ids, asked.generate, temperature=asked.temperature, seed=asked.seed
    )
    first, num_tokens = len(text.ids), len(text.ids) + len(generated)
    added = (("generated", first, num_tokens - 1),) if generated else ()
    return replace(
        header,
        num_tokens=num_tokens,
        query_positions=_positions(asked, num_tokens, len(generated)),
        segments=(*header.segments, *added),
        generated=generated,
        generation=_generation(asked) if generated else "",
    )


@contextmanager
def _explained(loaded: Loaded, num_tokens: int) -> Iterator[None]:
    """Too many tokens for the memory, or for a table of learned positions, said in a line."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        most = f" (it was trained for {loaded.max_positions})" if loaded.max_positions else ""
        raise QuestprofError(
            f"the model cannot read {num_tokens} tokens{most}",
            f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}",
            "Lower --max-tokens.",
            Exit.MACHINE,
        ) from error


def _generation(asked: Asked) -> str:
    return (
        "greedy"
        if asked.temperature == 0
        else f"sampled, temperature {asked.temperature:g}, seed {asked.seed}"
    )


def _warnings(header: CaptureHeader, loaded: Loaded, asked: Asked) -> list[str]:
    warnings = []
    if loaded.max_positions and header.num_tokens > loaded.max_positions:
        warnings.append(
            f"{header.num_tokens} tokens, but the model was trained for {loaded.max_positions}: "
            "beyond, its attention may be noise"
        )
    left_out = sorted(set(range(header.num_layers)) - set(header.layers))
    if left_out:
        warnings.append(
            f"layers {', '.join(map(str, left_out))} are left out: their attention does not see all tokens "
            "before a query (a sliding window, chunks, or none)"
        )
    if asked.generate and len(header.generated) < asked.generate:
        warnings.append(f"the model ended its text after {len(header.generated)} generated tokens")
    return warnings


def _nothing_seen(model: Any, recorder: Recorder) -> QuestprofError:
    if recorder.calls:
        return QuestprofError(
            "this model cannot be captured",
            "no layer's attention sees all tokens before a query at this length",
            "Lower --max-tokens to its window, or take a model with full attention layers.",
        )
    return QuestprofError(
        f"{type(model).__name__} cannot be captured",
        "its attention does not go through the attention interface of transformers",
        "Take an architecture that supports it, or a newer transformers.",
    )

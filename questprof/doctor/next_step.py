"""The one command to type after the doctor, from what it found. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from questprof.doctor.facts import Facts
from questprof.doctor.findings import Finding

WHOLE_MODEL_BYTES: Final = 22 << 30
"""Free GPU memory that an 8B model in 16 bits and its caches take, about."""
FOUR_BIT_BYTES: Final = 12 << 30


def next_step(facts: Facts, findings: Sequence[Finding]) -> tuple[str, str]:
    """(command, what it is for)."""
    blocking = [finding for finding in findings if finding.blocks]
    for finding in blocking:
        if finding.command:
            return finding.command, f"nothing can be measured without {finding.name}; then questprof doctor"
    if blocking:
        return "questprof doctor", f"again, after this: {blocking[0].fix}"
    broken = next((one for one in findings if one.level == "fix" and one.command), None)
    if broken:
        return broken.command, f"repairs {broken.name}; without it figures are those of the CPU"
    if facts.has_gpu:
        return f"questprof decide --shape llama-3.1-8b{_weights(facts)} --time 10m -o decide.html", (
            "will Quest pay off on this GPU? --traffic lengths.csv weighs it by your requests"
        )
    return "questprof decide --device cpu --shape tiny --time 2m -o decide.html", (
        "the whole way on this CPU, with a tiny model; a GPU's answer needs the GPU"
    )


def _weights(facts: Facts) -> str:
    """4-bit weights where the free memory holds no 8B model in 16 bits."""
    free = facts.torch.free_bytes if facts.torch else 0
    return " --weights int4" if FOUR_BIT_BYTES <= free < WHOLE_MODEL_BYTES else ""

"""What a check found, for people: a line a stage, why and where it failed, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from questprof.kernelcheck.findings import KernelFinding, StageFinding
from questprof.printable import printable
from questprof.units import count

APPROXIMATE = "it reports no page_ids, so that nothing else is checked: its quality, not an error"


def print_kernels(console: Console, found: Sequence[KernelFinding]) -> None:
    """Print every kernel set, its stages by setting, and the verdict."""
    for kernel in found:
        for line in kernel_lines(kernel):
            console.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def kernel_lines(kernel: KernelFinding) -> list[str]:
    """The lines of one kernel set."""
    where = "GPU" if kernel.device == "cuda" else "CPU, Triton kernels in the interpreter"
    lines = [f"{kernel.name} ({kernel.source}), {where}"]
    for setting in dict.fromkeys(stage.setting for stage in kernel.stages):
        lines.append(f"  {setting}")
        for stage in kernel.stages:
            if stage.setting == setting:
                lines += _stage_lines(stage)
    lines += _allocating(kernel)
    if kernel.failure:
        lines += [f"  FAIL  {kernel.failure}", f"        fix: {kernel.fix}"]
    if kernel.borrowed:
        lines.append(f"  the project's own: {', '.join(kernel.borrowed)}")
    lines.append(f"{kernel.name}: {verdict(kernel)} ({kernel.seconds:.1f} s)")
    return lines


def verdict(kernel: KernelFinding) -> str:
    """One sentence."""
    failed = list(dict.fromkeys(stage.stage for stage in kernel.stages if stage.status == "fail"))
    if failed:
        return f"{', '.join(failed)} failed: no time will be taken"
    if kernel.failure:
        return "not checked to the end"
    if any(stage.status == "approximate" for stage in kernel.stages):
        return "runs; approximate"
    return "every stage agrees with float64"


def _stage_lines(stage: StageFinding) -> list[str]:
    if stage.status == "pass":
        return [f"    pass  {stage.stage}{_accuracy(stage)}"]
    if stage.status == "approximate":
        off = f"{stage.max_rel_err or 0.0:.2g} off dense attention in the worst row"
        return [f"    approximate  {stage.stage}: {off}; {APPROXIMATE}"]
    at = f"{stage.place.words}: " if stage.place else ""
    case = f" ({stage.case})" if stage.case else ""
    return [f"    FAIL  {stage.stage}: {at}{stage.why}{case}", f"          fix: {stage.fix}"]


def _allocating(kernel: KernelFinding) -> list[str]:
    """A line on the stage that allocates most in a launch, where one does."""
    most = max(kernel.stages, key=lambda stage: stage.allocations, default=None)
    if most is None or not most.allocations:
        return []
    blocks = f"up to {count(most.allocations, 'block')} a launch, which a graph keeps"
    return [f"  note: {most.stage} allocates {blocks}: use prepare or scratch"]


def _accuracy(stage: StageFinding) -> str:
    if stage.max_rel_err is None or stage.tolerance is None:
        return ": exact"
    return f": error {stage.max_rel_err:.1e}, {stage.tolerance:.1e} is allowed"

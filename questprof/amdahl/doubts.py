"""Why two steps side by side give no verdict, whatever their interval says. Pure.

The interval of a speed-up knows the samples alone. That other work had the threads' cores, that samples lie
far apart, or that a step is not what its parts are, it cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from questprof.amdahl.breakdown import TOLERANCE, Breakdown
from questprof.rows import FEWEST_SAMPLES, STEADY_SPREAD
from questprof.samples import median_interval
from questprof.timing.conditions import WAITED_SHARE


def doubts(dense: Breakdown, quest: Breakdown) -> tuple[str, ...]:
    """Reasons against a verdict on the pair, the dense step's first; () where there is none."""
    sides = (("the dense step", dense), ("the Quest step", quest))
    return tuple(f"{name} {why}" for name, step in sides for why in _of(step))


def _of(step: Breakdown) -> Iterator[str]:
    waited = step.clocks.waited_share if step.clocks else None
    if waited is not None and waited > WAITED_SHARE:
        yield f"had threads without a core for {waited:.0%} of its time"
    if step.step.num_samples < FEWEST_SAMPLES:
        yield f"has too few samples ({step.step.num_samples})"
    elif not step.step.steady:
        times = step.step.p90 / step.step.p10
        yield f"is not steady (its slow samples take {times:.1f} times as long, more than {STEADY_SPREAD:g})"
    off, slack = abs(step.unexplained_us) / step.us, sampling_share(step)
    if step.parts and off > TOLERANCE + slack:
        yield f"misses its parts by {off:.1%} ({TOLERANCE + slack:.1%} is allowed, sampling included)"


def sampling_share(step: Breakdown) -> float:
    """How far sampling alone may set a step and the sum of its parts apart, over the step.

    Half the 95 % intervals of both medians, which are independent: the parts are timed in other runs.
    """
    return math.hypot(median_interval(step.step.samples).half_width, step.parts_half_width_us) / step.us

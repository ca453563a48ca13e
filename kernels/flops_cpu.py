"""Fused multiply-adds in registers: the rate at which compiled CPU stages could compute at best.

Independent chains of vectors, enough to hide the latency of one; nothing is read from memory. Compiled with
numba on the first call and cached on disk.
"""

from __future__ import annotations

import numba
import numpy as np
import questprof_kernels.compiled_cache  # noqa: F401 -- before anything is compiled
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""fp32 numbers of a vector: 512 bits, split where the processor has less."""
CHAINS = 12
"""Vectors multiplied and added side by side."""
FLOPS_A_STEP = 2 * LANES * CHAINS

_VECTOR = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def _multiply_add(typing, factor, addend, steps):
    """Sum over chains and lanes of x after `steps` times x = x * factor + addend, from x = 1."""

    def codegen(context, builder, signature, args):
        factor, addend, steps = (*(_broadcast(builder, arg) for arg in args[:2]), args[2])
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        chains = [cgutils.alloca_once(builder, _VECTOR) for _ in range(CHAINS)]
        for chain in chains:
            builder.store(ir.Constant(_VECTOR, [1.0] * LANES), chain)
        with cgutils.for_range(builder, steps):
            for chain in chains:
                builder.store(builder.call(fma, [builder.load(chain), factor, addend]), chain)
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.fadd(total, builder.load(chain))
        number = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
        for lane in range(1, LANES):
            element = builder.extract_element(total, ir.Constant(ir.IntType(32), lane))
            number = builder.fadd(number, element)
        return number

    return types.float32(types.float32, types.float32, types.int64), codegen


def _broadcast(builder, number):
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for lane in range(LANES):
        vector = builder.insert_element(vector, number, ir.Constant(ir.IntType(32), lane))
    return vector


@numba.njit(cache=True, parallel=True)
def _run(factor, addend, steps, num_threads):
    sums = np.zeros(num_threads, np.float64)
    for thread in prange(num_threads):
        # An addend of its own each: no chain may be taken for another thread's.
        sums[thread] = _multiply_add(factor, np.float32(addend + thread), steps)
    return sums.sum()


def multiply_add(steps: int, num_threads: int, factor: float = 0.5, addend: float = 0.5) -> float:
    """`steps` fused multiply-adds of every lane of every chain on each of `num_threads` threads.

    FLOPS_A_STEP x steps x num_threads operations; the sum of all numbers at the end. ValueError on counts
    below 1.
    """
    if min(steps, num_threads) < 1:
        raise ValueError(f"counts of steps and threads start at 1, not {min(steps, num_threads)}")
    return float(_run(np.float32(factor), np.float32(addend), np.int64(steps), num_threads))

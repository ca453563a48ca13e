"""Compiled code of the CPU stages; `cpu.py` launches it.

fp32 is native. numba has no 16-bit floats: fp16 enters as uint16 and bf16 as int16 arrays of bits, so that
the array's type picks the conversion; numbers are widened in registers and everything accumulates in fp32.
Tensors enter flat, with strides in elements. The loops over head_dim are vector instructions written out,
LANES numbers at a time, which LLVM fits to the machine; numba compiles the rest.

All of it stays in this one file, because numba's cache on disk sees no changes in others. Arguments that
recur: `cached` (k, v, block_table, kv_indptr, last_page_len) as they lie in the pool and the cache,
`boxes` (data, pages of the pool, summary_table, summary_indptr, whether it is transposed) and `shape`
(num_kv_heads, page_size, head_dim).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable

import numba
import numpy as np
import questprof_kernels.compiled_cache  # noqa: F401 -- before anything is compiled
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

LANES = 16  # fp32 numbers of a vector, and tokens of one softmax step of dense
TILE = 64  # tokens of one softmax step of attend: several pages, whose first lines are asked for together
MEMORY_PAGE = 4096  # bytes; hardware prefetchers stop at its end
CHUNK = 64  # head_dim is a multiple of it
ONE, TWO, FOUR = (0,), (0, 0), (0, 0, 0, 0)  # counts that compiled code knows, as lengths of tuples
HEADS = FOUR  # query heads of a group that share one load of each key, value or box
ROWS = TWO  # tokens that such heads multiply side by side: for one head, lines in a row are read faster
PAGES_TOGETHER = 8  # whose boxes of one KV head are scored in a row
HEADS_AHEAD = 2  # from the box being read to the one being prefetched
BLOCK_PAGES = 64  # plan.SUMMARY_BLOCK_PAGES, here because the cache on disk sees no changes in that file
RADIX_BITS = 11  # of a physical page number that one pass of sorting looks at
LOG2_E = math.log2(math.e)
#: Whether the machine has an instruction for it; elsewhere LLVM would call a function it may not find.
CONVERTS_FP16 = platform.machine() in ("arm64", "aarch64") or get_host_cpu_features().get("f16c", False)
#: Of 2**x for -0.5 <= x <= 0.5, the highest power first.
EXP2 = (1.535336188e-4, 1.339887440e-3, 9.618437357e-3, 5.550332471e-2, 2.402264791e-1, 6.931472028e-1, 1.0)

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)


def _jit(**options: object) -> Callable[[Callable], Callable]:
    """numba.njit, cached on disk where numba finds a folder it may write."""

    def decorate(function: Callable) -> Callable:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:
            return numba.njit(**options)(function)

    return decorate


# --- vector instructions ---------------------------------------------------------------------------------


def _splat(kind: ir.Type, number: float) -> ir.Constant:
    """`number` as a constant of `kind`, in every lane of a vector."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _widen(builder: ir.IRBuilder, raw: ir.Value, dtype: types.Type) -> ir.Value:
    """fp32 of a stored number or vector of them.

    fp16 without an instruction for it: sign and exponent move to their fp32 places and the product with
    2**112 makes up for the other bias, subnormals included; infinity and NaN get the top exponent.
    """
    if dtype == types.float32:
        return raw
    vector = isinstance(raw.type, ir.VectorType)
    whole, real = (ir.VectorType(_I32, LANES), _VECTOR) if vector else (_I32, _F32)
    if dtype == types.uint16 and CONVERTS_FP16:
        half = ir.VectorType(ir.HalfType(), LANES) if vector else ir.HalfType()
        return builder.fpext(builder.bitcast(raw, half), real)
    high = builder.shl(builder.zext(raw, whole), _splat(whole, 16))
    if dtype == types.int16:
        return builder.bitcast(high, real)
    moved = builder.and_(builder.ashr(high, _splat(whole, 3)), _splat(whole, 0x8FFFE000))
    scaled = builder.fmul(builder.bitcast(moved, real), _splat(real, 2.0**112))
    scaled = builder.bitcast(scaled, whole)
    top = builder.and_(moved, _splat(whole, 0x0F800000))
    special = builder.icmp_unsigned("==", top, _splat(whole, 0x0F800000))
    special_bits = builder.or_(scaled, _splat(whole, 0x7F800000))
    return builder.bitcast(builder.select(special, special_bits, scaled), real)


class _Vectors:
    """Writes vector instructions on the arrays of one intrinsic's signature."""

    def __init__(self, context: object, builder: ir.IRBuilder, signature: object, args: tuple) -> None:
        self.context, self.builder = context, builder
        self.arrays = dict(zip(args, signature.args, strict=True))

    def pointer(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """Address of array[index]."""
        data = make_array(self.arrays[array])(self.context, self.builder, array).data
        return self.builder.gep(data, [index])

    def number(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """array[index] as it is stored."""
        return self.builder.load(self.pointer(array, index))

    def load(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """array[index : index + LANES] as fp32."""
        pointer = self.pointer(array, index)
        stored = pointer.type.pointee
        vector = self.builder.bitcast(pointer, ir.VectorType(stored, LANES).as_pointer())
        width = 4 if stored == _F32 else 2
        return _widen(self.builder, self.builder.load(vector, align=width), self.arrays[array].dtype)

    def store(self, array: ir.Value, index: ir.Value, vector: ir.Value) -> None:
        """Make array[index : index + LANES] = vector, fp32."""
        pointer = self.builder.bitcast(self.pointer(array, index), _VECTOR.as_pointer())
        self.builder.store(vector, pointer, align=4)

    def prefetch(self, array: ir.Value, index: ir.Value) -> None:
        """Ask for the cache line of array[index], to the second level."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        address = self.builder.bitcast(self.pointer(array, index), byte)
        self.builder.call(function, [address, _I32(0), _I32(2), _I32(1)])

    def rows_at(self, rows: ir.Value, place: ir.Value, count: int) -> list[ir.Value]:
        """Offsets rows[at], rows[at + 1], ... plus offset, for place (at, offset)."""
        at, offset = cgutils.unpack_tuple(self.builder, place, 2)
        indices = [self.builder.add(at, _I64(j)) for j in range(count)]
        return [self.builder.add(self.number(rows, index), offset) for index in indices]

    def load_rows(
        self, array: ir.Value, here: list[ir.Value], later: list[ir.Value], column: ir.Value, lane: int
    ) -> list[ir.Value]:
        """LANES numbers at `column` of the rows `here`; where a cache line begins, `later` is prefetched."""
        if lane * self.arrays[array].dtype.bitwidth % 512 == 0:
            for row in later:
                self.prefetch(array, self.builder.add(row, column))
        return [self.load(array, self.builder.add(row, column)) for row in here]

    def variable(self) -> ir.Value:
        """A vector variable, zero here."""
        variable = cgutils.alloca_once(self.builder, _VECTOR)
        self.builder.store(_splat(_VECTOR, 0.0), variable)
        return variable

    def add_product(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Return a * b + c, fused where the machine can."""
        product = self.builder.fmul(a, b, flags=("contract",))
        return self.builder.fadd(product, c, flags=("contract",))

    def broadcast(self, number: ir.Value) -> ir.Value:
        """`number` in every lane."""
        blank = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(blank, number, _I32(0))
        return self.builder.shuffle_vector(first, blank, _splat(ir.VectorType(_I32, LANES), 0))

    def fold(self, vector: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """One number from all lanes: halves joined until one lane is left."""
        half = LANES // 2
        while half:
            lanes = ir.VectorType(_I32, half)
            low, high = (ir.Constant(lanes, list(range(i, i + half))) for i in (0, half))
            low, high = (self.builder.shuffle_vector(vector, vector, index) for index in (low, high))
            vector = join(low, high)
            half //= 2
        return self.builder.extract_element(vector, _I32(0))

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of a and b lane by lane; b where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def chunks(self, head_dim: ir.Value) -> object:
        """A loop over head_dim in steps of CHUNK."""
        return cgutils.for_range_slice(self.builder, _I64(0), head_dim, _I64(CHUNK), _I64)


@intrinsic
def _dot_rows(typing, q, q_at, k, rows, here, ahead, head_dim, together, heads):
    """Dot products of len(together) rows of k with len(heads) queries at q[q_at:], query by query.

    `here` is (place in rows, offset to add to them), `ahead` the same of the rows to prefetch.
    """
    count = together.count
    totals = types.UniTuple(types.float32, count * heads.count)

    def codegen(context, builder, signature, args):
        q, q_at, k, rows, here, ahead, head_dim, *_ = args
        lanes = _Vectors(context, builder, signature, args)
        here, later = lanes.rows_at(rows, here, count), lanes.rows_at(rows, ahead, count)
        sums = [lanes.variable() for _ in range(totals.count)]
        with lanes.chunks(head_dim) as (chunk, _):
            for lane in range(0, CHUNK, LANES):
                column = builder.add(chunk, _I64(lane))
                keys = lanes.load_rows(k, here, later, column, lane)
                for head in range(heads.count):
                    head_at = builder.add(q_at, builder.mul(head_dim, _I64(head)))
                    query = lanes.load(q, builder.add(head_at, column))
                    for key, total in zip(keys, sums[head * count :], strict=False):
                        builder.store(lanes.add_product(query, key, builder.load(total)), total)
        folded = [lanes.fold(builder.load(total), builder.fadd) for total in sums]
        return context.make_tuple(builder, signature.return_type, folded)

    i, place = types.intp, types.UniTuple(types.intp, 2)
    return totals(q, i, k, rows, place, place, i, together, heads), codegen


@intrinsic
def _add_rows(typing, acc, acc_at, weights, w, v, rows, here, ahead, head_dim, count, heads):
    """Add len(count) rows of v, times weights[w:], to the sums of len(heads) heads at acc[acc_at:].

    A head's weights are TILE after the last one's, its sum head_dim after.
    """

    def codegen(context, builder, signature, args):
        acc, acc_at, weights, w, v, rows, here, ahead, head_dim, *_ = args
        lanes = _Vectors(context, builder, signature, args)
        here, later = lanes.rows_at(rows, here, count.count), lanes.rows_at(rows, ahead, count.count)
        places = [[_I64(TILE * head + row) for row in range(count.count)] for head in range(heads.count)]
        factors = [
            [lanes.broadcast(lanes.number(weights, builder.add(w, place))) for place in row] for row in places
        ]
        with lanes.chunks(head_dim) as (chunk, _):
            for lane in range(0, CHUNK, LANES):
                column = builder.add(chunk, _I64(lane))
                values = lanes.load_rows(v, here, later, column, lane)
                for head in range(heads.count):
                    head_at = builder.add(acc_at, builder.mul(head_dim, _I64(head)))
                    place = builder.add(head_at, column)
                    total = lanes.load(acc, place)
                    for factor, value in zip(factors[head], values, strict=True):
                        total = lanes.add_product(factor, value, total)
                    lanes.store(acc, place, total)
        return context.get_dummy_value()

    i, place = types.intp, types.UniTuple(types.intp, 2)
    return types.void(acc, i, weights, i, v, rows, place, place, i, count, heads), codegen


@intrinsic
def _box_bounds(typing, q, q_at, boxes, at, ahead, head_dim, heads):
    """Equation (3) for the box at `at` and len(heads) queries at q[q_at:]; prefetches the box at `ahead`.

    The sum over d of max(q * min, q * max), NaN where either product is.
    """
    totals = types.UniTuple(types.float32, heads.count)

    def codegen(context, builder, signature, args):
        q, q_at, boxes, at, ahead, head_dim, _ = args
        lanes = _Vectors(context, builder, signature, args)
        sides, later = ([start, builder.add(start, head_dim)] for start in (at, ahead))
        sums = [lanes.variable() for _ in range(heads.count)]
        with lanes.chunks(head_dim) as (chunk, _):
            for lane in range(0, CHUNK, LANES):
                column = builder.add(chunk, _I64(lane))
                box = lanes.load_rows(boxes, sides, later, column, lane)
                for head, total in enumerate(sums):
                    head_at = builder.add(q_at, builder.mul(head_dim, _I64(head)))
                    query = lanes.load(q, builder.add(head_at, column))
                    low, high = (builder.fmul(query, side) for side in box)
                    larger = lanes.larger(low, high)
                    larger = builder.select(builder.fcmp_unordered("uno", low, low), low, larger)
                    builder.store(builder.fadd(larger, builder.load(total)), total)
        folded = [lanes.fold(builder.load(total), builder.fadd) for total in sums]
        return context.make_tuple(builder, signature.return_type, folded)

    i = types.intp
    return totals(q, i, boxes, i, i, i, heads), codegen


@intrinsic
def _row_bounds(typing, q, q_at, rows, data, at, ahead, head_dim, bounds, b, heads, vectors):
    """Equation (3) for len(vectors) * LANES pages of a transposed block at `at` and len(heads) queries.

    rows[i] is where in the block the bounds lie that query number q[i] asks for; the same rows are prefetched
    from the block at `ahead`. A head's results go to bounds[b:], BLOCK_PAGES after the last one's.
    """
    width = vectors.count

    def codegen(context, builder, signature, args):
        q, q_at, rows, data, at, ahead, head_dim, bounds, b, *_ = args
        lanes = _Vectors(context, builder, signature, args)
        sums = [lanes.variable() for _ in range(heads.count * width)]
        with cgutils.for_range_slice(builder, _I64(0), head_dim, _I64(1), _I64) as (dim, _):
            for head in range(heads.count):
                place = builder.add(builder.add(q_at, builder.mul(head_dim, _I64(head))), dim)
                query, row = lanes.broadcast(lanes.number(q, place)), lanes.number(rows, place)
                here, later = [builder.add(at, row)], [builder.add(ahead, row)]
                for j, total in enumerate(sums[head * width : (head + 1) * width]):
                    (bound,) = lanes.load_rows(data, here, later, _I64(j * LANES), j * LANES)
                    builder.store(lanes.add_product(query, bound, builder.load(total)), total)
        for j, total in enumerate(sums):
            place = builder.add(b, _I64(j // width * BLOCK_PAGES + j % width * LANES))
            lanes.store(bounds, place, builder.load(total))
        return context.get_dummy_value()

    i = types.intp
    return types.void(q, i, rows, data, i, i, i, bounds, i, heads, vectors), codegen


@intrinsic
def _prefetch(typing, array, index):
    """Ask for the cache line of array[index]."""

    def codegen(context, builder, signature, args):
        _Vectors(context, builder, signature, args).prefetch(*args)
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def _largest(typing, numbers, at):
    """The largest of numbers[at : at + LANES], fp32; NaN may be left out."""

    def codegen(context, builder, signature, args):
        lanes = _Vectors(context, builder, signature, args)
        return lanes.fold(lanes.load(*args), lanes.larger)

    return types.float32(numbers, types.intp), codegen


def _power_of_two(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2**x for x <= 0 or NaN, a number or a vector, within 2 units in the last place; 0 below 2**-126.

    No function that is compiled with `reassoc` may hold it: the rounding would be undone.
    """
    whole = ir.VectorType(_I32, x.type.count) if isinstance(x.type, ir.VectorType) else _I32
    least, shift = _splat(x.type, -126.0), _splat(x.type, 1.5 * 2**23)
    small = builder.fcmp_ordered("<", x, least)
    clipped = builder.select(small, least, x)
    shifted = builder.fadd(clipped, shift)  # the last bits now hold the nearest whole number
    rest = builder.fsub(clipped, builder.fsub(shifted, shift))
    power = _splat(x.type, EXP2[0])
    for coefficient in EXP2[1:]:
        product = builder.fmul(power, rest, flags=("contract",))
        power = builder.fadd(product, _splat(x.type, coefficient), flags=("contract",))
    exponent = builder.add(builder.bitcast(shifted, whole), _splat(whole, 127))
    scale = builder.bitcast(builder.shl(exponent, _splat(whole, 23)), x.type)
    return builder.select(small, _splat(x.type, 0.0), builder.fmul(power, scale))


@intrinsic
def _exp2(typing, x):
    """2**x for x <= 0 or NaN, fp32."""
    return types.float32(types.float32), lambda context, builder, sig, args: _power_of_two(builder, *args)


@intrinsic
def _exp2_lanes(typing, numbers, at, shift):
    """Make numbers[at : at + LANES], fp32, 2**(number - shift) as in `_exp2`, and return their sum."""

    def codegen(context, builder, signature, args):
        numbers, at, shift = args
        lanes = _Vectors(context, builder, signature, args)
        powers = _power_of_two(builder, builder.fsub(lanes.load(numbers, at), lanes.broadcast(shift)))
        lanes.store(numbers, at, powers)
        return lanes.fold(powers, builder.fadd)

    return types.float32(numbers, types.intp, types.float32), codegen


@intrinsic
def _load(typing, array, index):
    """array[index] as fp32."""

    def codegen(context, builder, signature, args):
        lanes = _Vectors(context, builder, signature, args)
        return _widen(builder, lanes.number(*args), signature.args[0].dtype)

    return types.float32(array, types.intp), codegen


@intrinsic
def _bits(typing, number):
    """The bits of an fp32 number as int32."""
    return types.int32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], _I32)


@intrinsic
def _number(typing, bits):
    """The fp32 number of these 32 bits."""
    return types.float32(types.int32), lambda context, builder, sig, args: builder.bitcast(args[0], _F32)


# --- rounding to the stored dtype ------------------------------------------------------------------------


@_jit()
def _fp16_bits(number):
    """Bits of the nearest fp16, ties to even."""
    bits = np.int64(_bits(number)) & 0xFFFFFFFF
    sign = (bits >> 16) & 0x8000
    size = bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return sign | 0x7E00
    if size < 0x38800000:  # below 2**-14: beside 0.5 fp32 counts in steps of 2**-24, as a subnormal fp16
        beside = _bits(_number(np.int32(size)) + np.float32(0.5))
        return sign | (beside - _bits(np.float32(0.5)))
    rounded = (size + 0xFFF + ((size >> 13) & 1) - (112 << 23)) >> 13
    return sign | min(rounded, 0x7C00)


@_jit()
def _bf16_bits(number):
    """Bits of the nearest bf16, ties to even."""
    bits = np.int64(_bits(number)) & 0xFFFFFFFF
    if bits & 0x7FFFFFFF > 0x7F800000:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _store(array, index, number):
    """array[index] = number, rounded to what the array holds."""
    raise NotImplementedError("compiled code only")


@overload(_store)
def _store_of(array, index, number):
    def store_fp32(array, index, number):
        array[index] = number

    def store_fp16(array, index, number):
        array[index] = np.uint16(_fp16_bits(number))

    def store_bf16(array, index, number):
        array[index] = np.int16(_bf16_bits(number))

    return {types.float32: store_fp32, types.uint16: store_fp16, types.int16: store_bf16}[array.dtype]


# --- attention: attend and dense -------------------------------------------------------------------------


@_jit()
def _share(count, turn, num_shares):
    """The turn's part [start, stop) of range(count), cut into num_shares nearly equal parts."""
    turn = turn % num_shares
    return count * turn // num_shares, count * (turn + 1) // num_shares


@_jit()
def _fill_rows(rows, at, ids, ids_at, offset, i, slot, stop, r, cached, shape):
    """Put the places in K and V of the next len(rows) / 2 tokens of request r's pages i..stop into rows[at:].

    Pages are ids[ids_at + i], or i itself where ids_at < 0; `slot` is page i's first token still to come.
    Returns (tokens found, i, slot) to go on from. Places past the last token repeat it, to be safe to read.

    Listed pages lie anywhere: each costs a walk of the page tables and starts the hardware prefetcher anew.
    Both begin here, a tile early, with the first line of every MEMORY_PAGE of the KV head at `offset`.
    """
    k, v, block_table, kv_indptr, last_page_len = cached
    num_heads, page_size, head_dim = shape
    tile = len(rows) // 2
    first, last = np.int64(kv_indptr[r]), np.int64(kv_indptr[r + 1])
    count = np.int64(0)
    while count < tile and i < stop:
        logical = i if ids_at < 0 else np.int64(ids[ids_at + i])
        page_len = np.int64(last_page_len[r]) if first + logical + 1 == last else page_size
        taken = min(page_len - slot, tile - count)
        row = (np.int64(block_table[first + logical]) * num_heads * page_size + slot) * head_dim
        if ids_at >= 0:
            for place in range(row + offset, row + offset + taken * head_dim, MEMORY_PAGE // k.itemsize):
                _prefetch(k, place)
                _prefetch(v, place)
        for t in range(taken):
            rows[at + count + t] = row + t * head_dim
        count += taken
        slot += taken
        if slot >= page_len:
            i += 1
            slot = np.int64(0)
    if count > 0:
        for t in range(count, tile):
            rows[at + t] = rows[at + count - 1]
    return count, i, slot


@_jit(fastmath={"contract"})
def _soften(weights, w, stop, acc, acc_at, head_dim, state):
    """Logits weights[w:stop] of one head become weights; its maximum, sum and acc follow.

    stop - w is a multiple of LANES.
    """
    old = acc[state]
    top = old
    for start in range(w, stop, LANES):
        part = _largest(weights, start)
        top = part if part > top else top
    shift = top if top > -np.inf else np.float32(0.0)
    if top > old:
        shrink = _exp2(old - shift)
        for d in range(head_dim):
            acc[acc_at + d] *= shrink
        acc[state] = top
        acc[state + 1] *= shrink
    total = np.float32(0.0)
    for start in range(w, stop, LANES):
        total += _exp2_lanes(weights, start, shift)
    acc[state + 1] += total


@_jit(fastmath={"contract"})
def _attend_rows(
    q, q_at, kv, rows, count, here, ahead, head_dim, weights, acc, acc_at, state, together, heads
):
    """One step of the online softmax (equation (6)): `count` <= TILE tokens, len(heads) heads of one group.

    `here`: (their place in rows, offset of the KV head in a page); `ahead`: the same of the rows to prefetch.
    Sums of V grow at acc[acc_at:], running maxima and sums of weights at acc[state:]. len(together) tokens
    are multiplied side by side.
    """
    k, v = kv
    at, offset = here
    next_at, next_offset = ahead
    num_rows = len(together)
    for t in range(0, count, num_rows):
        place, later = (at + t, offset), (next_at + t, next_offset)
        dots = _dot_rows(q, q_at, k, rows, place, later, head_dim, together, heads)
        for h in range(len(heads)):
            for j in range(num_rows):
                weights[h * TILE + t + j] = dots[h * num_rows + j]
    padded = (count + LANES - 1) // LANES * LANES
    for h in range(len(heads)):
        w = h * TILE
        for t in range(count, padded):
            weights[w + t] = -np.inf
        _soften(weights, w, w + padded, acc, acc_at + h * head_dim, head_dim, state + 2 * h)
    t = np.int64(0)
    while t + num_rows <= count:
        place, later = (at + t, offset), (next_at + t, next_offset)
        _add_rows(acc, acc_at, weights, t, v, rows, place, later, head_dim, together, heads)
        t += num_rows
    while t < count:
        place, later = (at + t, offset), (next_at + t, next_offset)
        _add_rows(acc, acc_at, weights, t, v, rows, place, later, head_dim, ONE, heads)
        t += 1


@_jit()
def _attend_pages(q, heads, group_size, ids, ids_at, span, r, cached, shape, acc, row, states, work):
    """Query heads heads[0]..heads[1] of request r over its pages span[0]..span[1], into partials `row` on.

    Tile by tile, all heads in turn, so that pages are read in the order in which they lie; while some heads
    work, the rows of the next, or of the first in the next tile, are prefetched. `work`: (places of the
    tokens of two tiles, weights of one).
    """
    kv = cached[0], cached[1]
    head_dim, stride = shape[2], shape[1] * shape[2]
    rows, weights = work
    offset = heads[0] // group_size * stride
    i, stop = span
    at, slot = np.int64(0), np.int64(0)  # a literal 0 would make numba compile _fill_rows twice
    count, i, slot = _fill_rows(rows, at, ids, ids_at, offset, i, slot, stop, r, cached, shape)
    while count > 0:
        other = len(rows) // 2 - at
        later, i, slot = _fill_rows(rows, other, ids, ids_at, offset, i, slot, stop, r, cached, shape)
        head = heads[0]
        while head < heads[1]:
            kv_head = head // group_size
            joint = min(heads[1], (kv_head + 1) * group_size) - head >= len(HEADS)
            following = head + (len(HEADS) if joint else 1)
            here = at, kv_head * stride
            ahead = here
            if following < heads[1]:
                ahead = at, following // group_size * stride
            elif later > 0:
                ahead = other, offset
            q_at, place = (head - heads[0]) * head_dim, row + head - heads[0]
            acc_at, state = place * head_dim, states + 2 * place
            if joint:
                _attend_rows(
                    q, q_at, kv, rows, count, here, ahead, head_dim, weights, acc, acc_at, state, ROWS, HEADS
                )
            else:
                _attend_rows(
                    q, q_at, kv, rows, count, here, ahead, head_dim, weights, acc, acc_at, state, ONE, ONE
                )
            head = following
        at, count = other, later


@_jit()
def _attend_unit(unit, q, q_strides, pages, cached, shape, group_size, scale, num_splits, num_heads, acc):
    """One split of every request for num_heads query heads: (output, max, sum) into acc."""
    ids, ids_stride, indptr = pages
    batch_size, num_qo_heads, head_dim = len(indptr) - 1, shape[0] * group_size, shape[2]
    states = batch_size * num_splits * num_qo_heads * head_dim
    split, head = unit % num_splits, unit // num_splits * num_heads
    tile = TILE if ids_stride >= 0 else LANES
    work = np.empty(2 * tile, np.int64), np.empty(len(HEADS) * TILE, np.float32)
    scaled_q = np.empty(num_heads * head_dim, np.float32)
    for r in range(batch_size):
        row = (r * num_splits + split) * num_qo_heads + head
        acc[row * head_dim : (row + num_heads) * head_dim] = 0.0
        for h in range(num_heads):
            acc[states + 2 * (row + h)] = -np.inf
            acc[states + 2 * (row + h) + 1] = 0.0
            for d in range(head_dim):
                index = r * q_strides[0] + (head + h) * q_strides[1] + d * q_strides[2]
                scaled_q[h * head_dim + d] = _load(q, index) * scale
        span = _share(np.int64(indptr[r + 1]) - indptr[r], split + r, num_splits)
        ids_at = head * ids_stride + indptr[r] if ids_stride >= 0 else np.int64(-1)
        heads = head, head + num_heads
        _attend_pages(
            scaled_q, heads, group_size, ids, ids_at, span, r, cached, shape, acc, row, states, work
        )


@_jit()
def _merge_row(row, num_splits, num_qo_heads, head_dim, acc, out, out_strides, lse):
    """Join the splits of one (request, query head) into out and lse."""
    r, head = row // num_qo_heads, row % num_qo_heads
    first = r * num_splits * num_qo_heads + head
    states = len(lse) * num_splits * head_dim
    top, total = np.float32(-np.inf), np.float32(0.0)
    for split in range(num_splits):
        part = acc[states + 2 * (first + split * num_qo_heads)]
        top = part if part > top else top
    shift = top if top > -np.inf else np.float32(0.0)
    for split in range(num_splits):
        state = states + 2 * (first + split * num_qo_heads)
        acc[state] = _exp2(acc[state] - shift)
        total += acc[state + 1] * acc[state]
    for d in range(head_dim):
        number = np.float32(0.0)
        for split in range(num_splits):
            part = first + split * num_qo_heads
            number += acc[part * head_dim + d] * acc[states + 2 * part]
        number = np.float32(0.0) if total == 0.0 else number / total
        _store(out, r * out_strides[0] + head * out_strides[1] + d * out_strides[2], number)
    lse[row] = -np.inf if total == 0.0 else shift / LOG2_E + math.log(total)


@_jit()
def out_of_range(ids, ids_stride, num_heads, indptr, kv_indptr):
    """Whether a page id is negative or past its request's pages."""
    bad = False
    for head in range(num_heads):
        for r in range(len(indptr) - 1):
            num_pages = kv_indptr[r + 1] - kv_indptr[r]
            for i in range(head * ids_stride + indptr[r], head * ids_stride + indptr[r + 1]):
                bad |= ids[i] < 0 or ids[i] >= num_pages
    return bad


@_jit(parallel=True)
def attend_pages(
    q, q_strides, pages, cached, shape, group_size, scale, num_splits, num_heads, acc, out, out_strides, lse
):
    """Attention over listed pages or all: partials of every unit of num_heads query heads, then the merge.

    `pages`: (ids, their row stride, indptr of the requests), with row stride -1 for all pages.
    """
    num_qo_heads = shape[0] * group_size
    for unit in prange(num_qo_heads // num_heads * num_splits):
        i = np.int64(unit)
        _attend_unit(i, q, q_strides, pages, cached, shape, group_size, scale, num_splits, num_heads, acc)
    for row in prange(len(lse)):
        _merge_row(np.int64(row), num_splits, num_qo_heads, shape[2], acc, out, out_strides, lse)


# --- score -----------------------------------------------------------------------------------------------


@_jit()
def _sort_by_digit(numbers, order, shift, turned):
    """Put `order` into `turned`, stably, by RADIX_BITS bits of numbers[order] from bit `shift` on."""
    digits = 1 << RADIX_BITS
    starts = np.zeros(digits + 1, np.int64)
    for i in range(len(order)):
        starts[((numbers[order[i]] >> shift) & (digits - 1)) + 1] += 1
    for digit in range(digits):
        starts[digit + 1] += starts[digit]
    for i in range(len(order)):
        digit = (numbers[order[i]] >> shift) & (digits - 1)
        turned[starts[digit]] = order[i]
        starts[digit] += 1


@_jit()
def _physical_order(block_table, num_pages, total):
    """Flat logical pages range(total) in the order in which their boxes lie."""
    order, turned = np.arange(total), np.empty(total, np.int64)
    shift = 0
    while num_pages >> shift > 0:
        _sort_by_digit(block_table, order, shift, turned)
        order, turned = turned, order
        shift += RADIX_BITS
    return order


@_jit()
def _wide_queries(q, q_strides, batch_size, num_qo_heads, head_dim):
    """The queries in fp32, contiguous."""
    wide_q = np.empty(batch_size * num_qo_heads * head_dim, np.float32)
    for r in range(batch_size):
        for head in range(num_qo_heads):
            for d in range(head_dim):
                index = r * q_strides[0] + head * q_strides[1] + d * q_strides[2]
                wide_q[(r * num_qo_heads + head) * head_dim + d] = _load(q, index)
    return wide_q


@_jit()
def _score_boxes(share, num_shares, pages, wide_q, data, shape, group_size, scores, stride):
    """The boxes of a share of all pages, each KV head's against its group of queries.

    `pages`: (flat logical pages as they are to be read, the request of each, block_table). A few pages are
    taken at a time, head by head, so that a head's queries stay at hand.
    """
    order, owners, block_table = pages
    num_kv_heads, _, head_dim = shape
    start, stop = _share(len(order), share, num_shares)
    for first in range(start, stop, PAGES_TOGETHER):
        last = min(first + PAGES_TOGETHER, stop)
        for kv_head in range(num_kv_heads):
            pages_on = (kv_head + HEADS_AHEAD) // num_kv_heads * PAGES_TOGETHER
            later_head = (kv_head + HEADS_AHEAD) % num_kv_heads
            for i in range(first, last):
                page, later = order[i], order[min(i + pages_on, len(order) - 1)]
                at = (np.int64(block_table[page]) * num_kv_heads + kv_head) * 2 * head_dim
                ahead = (np.int64(block_table[later]) * num_kv_heads + later_head) * 2 * head_dim
                q_at = (owners[page] * num_kv_heads + kv_head) * group_size * head_dim
                place, g = kv_head * group_size * stride + page, np.int64(0)
                while g + len(HEADS) <= group_size:
                    bounds = _box_bounds(wide_q, q_at + g * head_dim, data, at, ahead, head_dim, HEADS)
                    for h in range(len(HEADS)):
                        scores[place + (g + h) * stride] = bounds[h]
                    g += len(HEADS)
                while g < group_size:
                    bound = _box_bounds(wide_q, q_at + g * head_dim, data, at, ahead, head_dim, ONE)
                    scores[place + g * stride] = bound[0]
                    g += 1


@_jit()
def _score_block(wide_q, q_at, rows, data, at, ahead, count, head_dim, bounds, scores, place, stride, heads):
    """Scores of the first `count` pages of a transposed block, for len(heads) query heads."""
    if count > BLOCK_PAGES - LANES:
        _row_bounds(wide_q, q_at, rows, data, at, ahead, head_dim, bounds, 0, heads, FOUR)
    else:
        for page in range(0, count, LANES):
            _row_bounds(wide_q, q_at, rows, data, at + page, ahead + page, head_dim, bounds, page, heads, ONE)
    for h in range(len(heads)):
        for page in range(count):
            scores[place + h * stride + page] = bounds[h * BLOCK_PAGES + page]


@_jit()
def _score_blocks(unit, num_shares, rows, wide_q, boxes, kv_indptr, shape, group_size, scores, stride):
    """One KV head's blocks of a share of every request's, against the head's group of queries."""
    data, _, table, indptr, _ = boxes
    num_kv_heads, _, head_dim = shape
    kv_head, share = unit // num_shares, unit % num_shares
    size = 2 * BLOCK_PAGES * head_dim
    bounds = np.empty(len(HEADS) * BLOCK_PAGES, np.float32)
    for r in range(len(kv_indptr) - 1):
        num_pages = np.int64(kv_indptr[r + 1]) - kv_indptr[r]
        num_blocks = (num_pages + BLOCK_PAGES - 1) // BLOCK_PAGES
        start, stop = _share(num_blocks, share + r, num_shares)
        for block in range(start, stop):
            here, later = table[indptr[r] + block], table[indptr[r] + min(block + 1, num_blocks - 1)]
            at = (np.int64(here) * num_kv_heads + kv_head) * size
            ahead = (np.int64(later) * num_kv_heads + kv_head) * size
            count = min(BLOCK_PAGES, num_pages - block * BLOCK_PAGES)
            place = kv_head * group_size * stride + kv_indptr[r] + block * BLOCK_PAGES
            q_at, g = (r * num_kv_heads + kv_head) * group_size * head_dim, np.int64(0)
            while g + len(HEADS) <= group_size:
                q_of, to = q_at + g * head_dim, place + g * stride
                _score_block(
                    wide_q, q_of, rows, data, at, ahead, count, head_dim, bounds, scores, to, stride, HEADS
                )
                g += len(HEADS)
            while g < group_size:
                q_of, to = q_at + g * head_dim, place + g * stride
                _score_block(
                    wide_q, q_of, rows, data, at, ahead, count, head_dim, bounds, scores, to, stride, ONE
                )
                g += 1


@_jit(parallel=True)
def score_paired(num_shares, q, q_strides, boxes, cached, shape, group_size, scores, stride):
    """Bounds of every (query head, page), read in physical order, all requests together.

    Boxes then lie in a row for the prefetchers, however shuffled the pages are.
    """
    _, _, block_table, kv_indptr, _ = cached
    num_kv_heads, _, head_dim = shape
    batch_size, total = len(kv_indptr) - 1, np.int64(kv_indptr[-1])
    wide_q = _wide_queries(q, q_strides, batch_size, num_kv_heads * group_size, head_dim)
    owners = np.empty(total, np.int64)
    for r in range(batch_size):
        owners[kv_indptr[r] : kv_indptr[r + 1]] = r
    pages = _physical_order(block_table, boxes[1], total), owners, block_table
    shares = num_kv_heads * num_shares
    for share in prange(shares):
        i = np.int64(share)
        _score_boxes(i, shares, pages, wide_q, boxes[0], shape, group_size, scores, stride)


@_jit(parallel=True)
def score_transposed(num_shares, q, q_strides, boxes, cached, shape, group_size, scores, stride):
    """Bounds of every (query head, page), from the rows that the signs of the queries pick."""
    kv_indptr = cached[3]
    num_kv_heads, _, head_dim = shape
    wide_q = _wide_queries(q, q_strides, len(kv_indptr) - 1, num_kv_heads * group_size, head_dim)
    rows = np.empty(len(wide_q), np.int64)
    for i in range(len(wide_q)):
        rows[i] = i % head_dim * 2 * BLOCK_PAGES + (0 if wide_q[i] < 0.0 else BLOCK_PAGES)
    for unit in prange(num_kv_heads * num_shares):
        i = np.int64(unit)
        _score_blocks(i, num_shares, rows, wide_q, boxes, kv_indptr, shape, group_size, scores, stride)


# --- select ----------------------------------------------------------------------------------------------


@_jit()
def _ordered(bits):
    """An int32 that orders as the fp32 numbers of these bits do; applied twice it gives the bits back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@_jit()
def _count_below(scores, bound):
    """How many scores are < bound; NaN is not. (Sums in uint32 become vector instructions.)"""
    count = np.uint32(0)
    for i in range(len(scores)):
        count = np.uint32(count + np.uint32(scores[i] < bound))
    return np.int64(count)


@_jit()
def _count_not_above(scores, bound):
    """How many scores are <= bound; NaN is not."""
    count = np.uint32(0)
    for i in range(len(scores)):
        count = np.uint32(count + np.uint32(scores[i] <= bound))
    return np.int64(count)


@_jit()
def _select_row(scores, wanted, ids):
    """Put the indices of the `wanted` best scores into ids, ascending.

    NaN ranks first, then the higher score, then the lower index. The lowest score taken is found by halving
    the range of fp32: 32 passes at most, each a comparison of the whole row with one number.
    """
    found, i = np.int64(0), np.int64(0)
    if len(scores) - _count_not_above(scores, np.float32(np.inf)) >= wanted:  # so many are NaN
        while found < wanted:
            ids[found] = i
            found += scores[i] != scores[i]
            i += 1
        return
    low, high = np.int64(_ordered(_bits(np.float32(-np.inf)))), np.int64(_ordered(_bits(np.float32(np.inf))))
    while low < high:  # `wanted` or more scores are not below low; fewer are not below a number past high
        middle = low + (high - low + 1) // 2
        left = len(scores) - _count_below(scores, _number(_ordered(np.int32(middle))))
        if left >= wanted:
            low = middle
        else:
            high = middle - 1
        if left == wanted:
            break
    lowest = _number(_ordered(np.int32(low)))
    ties = wanted - len(scores) + _count_not_above(scores, lowest)
    while found < wanted:
        same = scores[i] == lowest and ties > 0
        ids[found] = i
        found += same or not scores[i] <= lowest
        ties -= same
        i += 1


@_jit()
def _select_unit(row, scores, row_stride, kv_indptr, select_indptr, take_tail, num_qo_heads, ids, ids_stride):
    """One (request, query head); with take_tail the last page is taken before the others compete."""
    r, head = row // num_qo_heads, row % num_qo_heads
    first, last = head * row_stride + kv_indptr[r], head * row_stride + kv_indptr[r + 1]
    start, stop = head * ids_stride + select_indptr[r], head * ids_stride + select_indptr[r + 1]
    if take_tail and stop > start:
        last -= 1
        stop -= 1
        ids[stop] = last - first
    _select_row(scores[first:last], stop - start, ids[start:stop])


@_jit(parallel=True)
def select_pages(scores, row_stride, kv_indptr, select_indptr, take_tail, num_qo_heads, ids, ids_stride):
    """The pages of every (request, query head)."""
    for row in prange(num_qo_heads * (len(kv_indptr) - 1)):
        i = np.int64(row)
        _select_unit(
            i, scores, row_stride, kv_indptr, select_indptr, take_tail, num_qo_heads, ids, ids_stride
        )


# --- append ----------------------------------------------------------------------------------------------


@_jit()
def _copy_rows(rows, rows_at, row_stride, stride, count, storage, at, head_dim):
    """Copy `count` vectors, bits unchanged, to storage[at:]."""
    for t in range(count):
        for d in range(head_dim):
            storage[at + t * head_dim + d] = rows[rows_at + t * row_stride + d * stride]


@_jit()
def _box_place(boxes, shape, head, r, page, physical):
    """Of a page's box: (index of its first minimum, step to the next dimension, step to the maximum)."""
    _, _, table, indptr, transposed = boxes
    num_heads, _, head_dim = shape
    if transposed:
        block = np.int64(table[indptr[r] + page // BLOCK_PAGES])
        row = (block * num_heads + head) * head_dim * 2 * BLOCK_PAGES
        return row + page % BLOCK_PAGES, np.int64(2 * BLOCK_PAGES), np.int64(BLOCK_PAGES)
    return (physical * num_heads + head) * 2 * head_dim, np.int64(1), np.int64(head_dim)


@_jit()
def _write_box(k, at, count, head_dim, data, place, widen):
    """Box of `count` keys at k[at:], joined with the stored box if `widen`; a NaN key has no bounds."""
    box_at, step, upper = place
    lows, highs = np.empty(head_dim, np.float32), np.empty(head_dim, np.float32)
    for d in range(head_dim):
        lows[d] = _load(data, box_at + d * step) if widen else np.float32(np.inf)
        highs[d] = _load(data, box_at + d * step + upper) if widen else np.float32(-np.inf)
    for t in range(count):
        for d in range(head_dim):
            key = _load(k, at + t * head_dim + d)
            lows[d] = min(lows[d], key if key == key else np.float32(-np.inf))
            highs[d] = max(highs[d], key if key == key else np.float32(np.inf))
    for d in range(head_dim):
        _store(data, box_at + d * step, lows[d])
        _store(data, box_at + d * step + upper, highs[d])


@_jit()
def _append_unit(unit, num_shares, new, new_strides, new_indptr, cached, shape, boxes, summarise):
    """One KV head's share of the pages that new tokens touch, for every request."""
    k, v, block_table, kv_indptr, last_page_len = cached
    num_heads, page_size, head_dim = shape
    head, share = unit // num_shares, unit % num_shares
    for r in range(len(kv_indptr) - 1):
        pages = np.int64(kv_indptr[r + 1]) - kv_indptr[r]
        seq_len = (pages - 1) * page_size + last_page_len[r]
        num_new = np.int64(new_indptr[r + 1]) - new_indptr[r]
        if num_new == 0:
            continue
        oldest = seq_len - num_new
        first = oldest // page_size
        start, stop = _share(pages - first, share + r, num_shares)
        for page in range(first + start, first + stop):
            position = max(page * page_size, oldest)
            slot, count = position % page_size, min((page + 1) * page_size, seq_len) - position
            physical = np.int64(block_table[kv_indptr[r] + page])
            at = ((physical * num_heads + head) * page_size + slot) * head_dim
            token = new_indptr[r] + position - oldest
            keys_at = token * new_strides[0] + head * new_strides[1]
            _copy_rows(new[0], keys_at, new_strides[0], new_strides[2], count, k, at, head_dim)
            values_at = token * new_strides[3] + head * new_strides[4]
            _copy_rows(new[1], values_at, new_strides[3], new_strides[5], count, v, at, head_dim)
            if summarise:
                place = _box_place(boxes, shape, head, r, page, physical)
                _write_box(k, at, count, head_dim, boxes[0], place, slot > 0)


@_jit(parallel=True)
def append_tokens(num_shares, new, new_strides, new_indptr, cached, shape, boxes, summarise):
    """Write the new tokens of every request; new_strides are those of the keys, then of the values."""
    for unit in prange(shape[0] * num_shares):
        i = np.int64(unit)
        _append_unit(i, num_shares, new, new_strides, new_indptr, cached, shape, boxes, summarise)

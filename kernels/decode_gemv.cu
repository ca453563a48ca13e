// A few rows of activations times a large matrix on tensor cores: out [M, N] = x [M, K] w[N, K]^T, M up to 8.
//
// The matrix is the left factor, 16 of its rows a block; its numbers go from memory to the registers that the
// product takes them from, 16 bytes a lane. The order of columns inside a product is free as long as both factors
// have the same: lane t of four holds columns 8t.. (int4: 32t..) of a step and the same columns of x. The warps of
// a block share the columns, a step each in turn, and add up at the end.
//
// int4: word i of a step's 16 a row holds 8 columns; nibble p is column 2p, nibble p + 4 column 2p + 1, so that a
// mask makes a pair of fp16 numbers 1024 + u (or 1024 + 16 u). Step and group are 128 columns.
//
// -DBITS=16|4  -DCOLUMNS: K.  -DWARPS: of a block.  -DDEPTH: steps that a warp has asked for ahead.
// -DGATED: rows g + 8 of a block are rows of the second half of w, and out = silu(first) * second.
// -DROWS_STAGED: rows of x, kept in shared memory; 0: x is read where it is used.
#include "device.cuh"

struct GemvArguments {
    const char* x;
    const char* w;
    const unsigned short* scales;
    const unsigned short* bias;
    unsigned short* out;
    int num_x_rows;
    int num_rows;  // of out
};

constexpr int ROW_BYTES = COLUMNS * BITS / 8;
constexpr int STEP_BYTES = 64;  // of a row of the matrix
constexpr int STEPS = ROW_BYTES / STEP_BYTES;
constexpr int STEP_COLUMNS = STEP_BYTES * 8 / BITS;
constexpr int X_WORDS = STEP_COLUMNS / 32;  // 16-byte words of x that a lane takes to a step
constexpr int BLOCK_ROWS = GATED ? 8 : 16;
static_assert(ROW_BYTES % STEP_BYTES == 0, "columns fill whole steps");

struct Tile {  // what a lane holds of one step: rows g and g + 8
    Words upper, lower;
#if BITS == 4
    unsigned short upper_scale, lower_scale;
#endif
};

struct Rows {
    const char* upper;
    const char* lower;
    const unsigned short* upper_scales;
    const unsigned short* lower_scales;
};

__device__ __forceinline__ void load(Tile& tile, const Rows& rows, int step) {
    if (step >= STEPS) return;
    tile.upper = load_weights(rows.upper + step * STEP_BYTES);
    tile.lower = load_weights(rows.lower + step * STEP_BYTES);
#if BITS == 4
    tile.upper_scale = rows.upper_scales[step];
    tile.lower_scale = rows.lower_scales[step];
#endif
}

__device__ __forceinline__ float number_of(unsigned short bits) { return low_number(bits); }

#if BITS == 4
static_assert(!BF16, "int4 weights meet fp16 activations");

__device__ __forceinline__ u32 masked(u32 word, u32 mask) { return (word & mask) | 0x64006400u; }

__device__ __forceinline__ u32 less_1032(u32 pair) {  // 1024 + u -> u - 8
    return subtract_pairs(pair, 0x64086408u);
}

__device__ __forceinline__ u32 sixteenth_less_72(u32 pair) {  // 1024 + 16 u -> u - 8
    return multiply_add_pairs(pair, 0x2c002c00u, 0xd480d480u);
}

struct Pairs {
    u32 p[4];
};

__device__ __forceinline__ Pairs pairs_of(u32 word) {
    u32 later = word >> 8;
    return Pairs{{less_1032(masked(word, 0x000f000fu)), sixteenth_less_72(masked(word, 0x00f000f0u)),
                  less_1032(masked(later, 0x000f000fu)), sixteenth_less_72(masked(later, 0x00f000f0u))}};
}

__device__ __forceinline__ void add_product(float (&acc)[4], const Tile& tile, const Words (&x)[X_WORDS]) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        Pairs upper = pairs_of(tile.upper.w[i]), lower = pairs_of(tile.lower.w[i]);
        multiply(sum, upper.p[0], lower.p[0], upper.p[1], lower.p[1], x[i].w[0], x[i].w[1]);
        multiply(sum, upper.p[2], lower.p[2], upper.p[3], lower.p[3], x[i].w[2], x[i].w[3]);
    }
    float upper_scale = number_of(tile.upper_scale), lower_scale = number_of(tile.lower_scale);
    acc[0] += upper_scale * sum[0];
    acc[1] += upper_scale * sum[1];
    acc[2] += lower_scale * sum[2];
    acc[3] += lower_scale * sum[3];
}
#else
__device__ __forceinline__ void add_product(float (&acc)[4], const Tile& tile, const Words (&x)[X_WORDS]) {
    const Words &u = tile.upper, &l = tile.lower;
    multiply(acc, u.w[0], l.w[0], u.w[1], l.w[1], x[0].w[0], x[0].w[1]);
    multiply(acc, u.w[2], l.w[2], u.w[3], l.w[3], x[0].w[2], x[0].w[3]);
}
#endif

__device__ __forceinline__ Words words_of(uint4 four) { return Words{{four.x, four.y, four.z, four.w}}; }

extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS) gemv_kernel(GemvArguments arg) {
#if ROWS_STAGED
    __shared__ uint4 staged[ROWS_STAGED * COLUMNS / 8];
#endif
    alignas(16) __shared__ float sums[WARPS][WARP][4];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int first = blockIdx.x * BLOCK_ROWS, last = arg.num_rows - 1;
    int upper = min(first + g, last), lower = GATED ? arg.num_rows + upper : min(first + g + 8, last);
    Rows rows{arg.w + (u64)upper * ROW_BYTES + 16 * t, arg.w + (u64)lower * ROW_BYTES + 16 * t,
              arg.scales + (u64)upper * STEPS, arg.scales + (u64)lower * STEPS};
    let_next_kernel_start();
    Tile tiles[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) load(tiles[d], rows, warp + d * WARPS);
    wait_for_previous_kernel();
    const uint4* x = (const uint4*)arg.x;
#if ROWS_STAGED
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS_STAGED * (COLUMNS / 8); i += THREADS) staged[i] = __ldcg(x + i);
    __syncthreads();
#endif
    bool there = g < arg.num_x_rows;
    int own = g * (COLUMNS / 8) + t * X_WORDS;
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int base = warp; base < STEPS; base += DEPTH * WARPS) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int step = base + d * WARPS;
            if (step < STEPS) {
                Words x_words[X_WORDS];
#pragma unroll
                for (int i = 0; i < X_WORDS; i++) {
                    int at = own + step * (4 * X_WORDS) + i;
#if ROWS_STAGED
                    x_words[i] = there ? words_of(staged[at]) : zero_words();
#else
                    x_words[i] = there ? words_of(__ldcg(x + at)) : zero_words();
#endif
                }
                add_product(acc, tiles[d], x_words);
                load(tiles[d], rows, step + DEPTH * WARPS);
            }
        }
    }
    *(float4*)sums[warp][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
    __syncthreads();
    // Number i of lane l: output row l / 4 (+ 8 from number 2 on) for x's row 2 (l % 4) + i % 2.
    for (int task = threadIdx.x; task < WARP * (GATED ? 2 : 4); task += THREADS) {
        int from = task % WARP, i = task / WARP, m = from % 4 * 2 + i % 2, row = first + from / 4 + i / 2 * 8;
        if (m >= arg.num_x_rows || row > last) continue;
        float total = 0.0f, second = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            total += sums[w][from][i];
            if (GATED) second += sums[w][from][(i + 2) % 4];
        }
        if (arg.bias) total += number_of(arg.bias[row]);
        if (GATED) total = total / (1.0f + exp2_fast(-1.4426950408889634f * total)) * second;
        arg.out[m * (long long)arg.num_rows + row] = (unsigned short)pack(total, 0.0f);
    }
}

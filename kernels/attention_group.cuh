// Attention of 2 to 8 query heads that share K and V, as matrix products: included by attention.cuh.
//
// With g = lane / 4 and t = lane % 4 a lane loads of K the pieces 32c + 8t.. of rows g and g + 8, which are rows
// of the product K q, and of V pieces of rows 2t, 2t + 1, 2t + 8, 2t + 9, which are columns of the product
// V^T p. The order in which a product sums its dims is free, so that 16-byte pieces go from memory straight into
// the operands. The eight columns of a product are query heads; with at most four, the last four repeat the
// first, and carry what rounding p to 16 bits left.
#pragma once

constexpr int CHUNKS = HEAD_DIM / 32;   // pieces of a K row a lane loads
constexpr int PIECES = HEAD_DIM / 64;   // pieces of a V row a lane loads
constexpr int D_TILES = HEAD_DIM / 16;  // 16 dims of the output each
constexpr bool REPEATED = HEADS <= 4;

struct Query {
    Words pieces[CHUNKS];  // of one query head, in the order of a lane's pieces of K
    float scale_log2;
};

// Column g is query head g (repeated: g % 4).
__device__ __forceinline__ void load_query(Query& query, const Words* q, u32 head_stride, float scale_log2) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, head = REPEATED ? g % 4 : g;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        query.pieces[c] = head < HEADS ? load_once(q + (u64)head * head_stride + 4 * c + t) : zero_words();
    query.scale_log2 = scale_log2;
}

typedef Words Keys[2][CHUNKS];
typedef Words Values[4][PIECES];

struct Weights {  // logits, then weights, [16 x 8]: of the tile's tokens and the heads
    float c[4];
};

__device__ __forceinline__ void load_keys(Keys& keys, const char* k, const Place& place) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const char* upper = k + (u64)(place.upper() + g) * ROW_BYTES + 16 * t;
    const char* lower = k + (u64)(place.lower() + g) * ROW_BYTES + 16 * t;
    bool upper_there = g < place.upper_valid(), lower_there = g < place.lower_valid();
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        keys[0][c] = upper_there ? load_once(upper + 64 * c) : zero_words();
        keys[1][c] = lower_there ? load_once(lower + 64 * c) : zero_words();
    }
}

__device__ __forceinline__ void load_values(Values& values, const char* v, const Place& place) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const char* upper = v + (u64)(place.upper() + 2 * t) * ROW_BYTES + 16 * g;
    const char* lower = v + (u64)(place.lower() + 2 * t) * ROW_BYTES + 16 * g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool upper_there = 2 * t + i < place.upper_valid(), lower_there = 2 * t + i < place.lower_valid();
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            values[i][c] = upper_there ? load_once(upper + i * ROW_BYTES + 128 * c) : zero_words();
            values[i + 2][c] = lower_there ? load_once(lower + i * ROW_BYTES + 128 * c) : zero_words();
        }
    }
}

struct State {  // of one warp; a lane holds columns 2t and 2t + 1
    float acc[D_TILES][4];
    float top[2];    // running maximum, in units of log2
    float total[2];  // sum of exp2(logit - top) over this lane's tokens
};

__device__ __forceinline__ void start_state(State& state) {
#pragma unroll
    for (int j = 0; j < D_TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) state.acc[j][i] = 0.0f;
    state.top[0] = state.top[1] = -INFINITE;
    state.total[0] = state.total[1] = 0.0f;
}

// Logits in units of log2; -inf where there is no token.
__device__ __forceinline__ void logits_of(Weights& weights, const Keys& keys, const Query& query,
                                          const Place& place) {
    float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // two chains: half the latency
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const u32 *upper = keys[0][c].w, *lower = keys[1][c].w, *piece = query.pieces[c].w;
        multiply(even, upper[0], lower[0], upper[1], lower[1], piece[0], piece[1]);
        multiply(odd, upper[2], lower[2], upper[3], lower[3], piece[2], piece[3]);
    }
    int g = threadIdx.x % WARP / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool there = g < (i < 2 ? place.upper_valid() : place.lower_valid());
        weights.c[i] = there ? (even[i] + odd[i]) * query.scale_log2 : -INFINITE;
    }
}

// Turns logits into weights and makes the state ready to take them.
__device__ __forceinline__ void weigh(State& state, Weights& weights) {
    float top[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(weights.c[i], weights.c[i + 2]);
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 4));
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 8));
        top[i] = fmaxf(top[i], __shfl_xor_sync(FULL_WARP, top[i], 16));
    }
    if (__any_sync(FULL_WARP, top[0] > state.top[0] || top[1] > state.top[1])) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float raised = fmaxf(state.top[i], top[i]);
            float factor = raised == -INFINITE ? 1.0f : exp2_fast(state.top[i] - raised);
            state.top[i] = raised;
            state.total[i] *= factor;
#pragma unroll
            for (int j = 0; j < D_TILES; j++) {
                state.acc[j][i] *= factor;
                state.acc[j][i + 2] *= factor;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float base = state.top[i % 2] == -INFINITE ? 0.0f : state.top[i % 2];
        weights.c[i] = exp2_fast(weights.c[i] - base);
        state.total[i % 2] += weights.c[i];
    }
}

__device__ __forceinline__ void add_values(State& state, const Weights& weights, const Values& values) {
    const float* c = weights.c;
    u32 upper = pack(c[0], c[1]), lower = pack(c[2], c[3]);
    if (REPEATED) {
        u32 upper_rest = pack(c[0] - low_number(upper), c[1] - high_number(upper));
        u32 lower_rest = pack(c[2] - low_number(lower), c[3] - high_number(lower));
        bool rest = threadIdx.x % 4 >= 2;
        upper = rest ? upper_rest : upper;
        lower = rest ? lower_rest : lower;
    }
    upper = transpose(upper);
    lower = transpose(lower);
    // Number e of a lane's pieces of a row is dim 64 (e / 8) + 8 g + e % 8; tile j pairs e = j and j + D_TILES.
#pragma unroll
    for (int j = 0; j < D_TILES; j++) {
        u32 a[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int e = j + half * D_TILES, piece = e / 8, word = e % 8 / 2;
            u32 pick = e % 2 ? 0x7632 : 0x5410;
            a[half] = __byte_perm(values[0][piece].w[word], values[1][piece].w[word], pick);
            a[half + 2] = __byte_perm(values[2][piece].w[word], values[3][piece].w[word], pick);
        }
        multiply(state.acc[j], a[0], a[1], a[2], a[3], upper, lower);
    }
}

// Where the number of a dim stands in shared memory, so that a warp's stores meet no bank twice:
// g within e within halves of 64 dims.
__device__ __forceinline__ int dim_of(int place) { return place / 64 * 64 + place % 8 * 8 + place % 64 / 8; }
__device__ __forceinline__ int place_of(int e, int g) { return padded(64 * (e / 8) + e % 8 * 8 + g); }

// Leaves the warps' sums in `memory`, each relative to its own maxima.
__device__ __forceinline__ void gather_warps(MergeMemory& memory, State& state) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int stride = 4; stride < WARP; stride *= 2)
            state.total[i] += __shfl_xor_sync(FULL_WARP, state.total[i], stride);
    bool rest = REPEATED && t >= 2;  // columns that repeat a head: each lane of the two stores one half of the dims
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int head = 2 * (REPEATED ? t % 2 : t) + i;
#pragma unroll
        for (int j = 0; j < D_TILES; j++) {
            float lower = state.acc[j][i], upper = state.acc[j][i + 2];
            if (REPEATED) {
                float sum = (rest ? upper : lower) + __shfl_xor_sync(FULL_WARP, rest ? lower : upper, 2);
                if (head < HEADS) memory.acc[warp][head][place_of(j + (rest ? D_TILES : 0), g)] = sum;
            } else if (head < HEADS) {
                memory.acc[warp][head][place_of(j, g)] = lower;
                memory.acc[warp][head][place_of(j + D_TILES, g)] = upper;
            }
        }
        if (g == 0 && head < HEADS && !rest) {
            memory.top[warp][head] = state.top[i];
            memory.total[warp][head] = state.total[i];
        }
    }
    __syncthreads();
}

// The sums over the warps of outputs `number` and `number` + 1.
__device__ __forceinline__ PairOfSums sums_of_warps(const MergeMemory& memory, int number) {
    int head = number / HEAD_DIM, place = number % HEAD_DIM;
    PairOfSums sum{0.0f, 0.0f, -INFINITE, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum.top = fmaxf(sum.top, memory.top[w][head]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float top = memory.top[w][head], factor = top == -INFINITE ? 0.0f : exp2_fast(top - sum.top);
        float2 two = *(const float2*)&memory.acc[w][head][padded(place)];
        sum.first += two.x * factor;
        sum.second += two.y * factor;
        sum.total += memory.total[w][head] * factor;
    }
    return sum;
}

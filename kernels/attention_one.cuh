// Attention of one query head, in fp32 throughout: included by attention.cuh where HEADS is 1.
//
// A lane holds 8 dims: of the query, of each K and V row it loads, of the weighted sum.
#pragma once

// A load of a warp covers TOKENS rows in a row, LANES lanes each: the fewest and longest pieces.
constexpr int LANES = HEAD_DIM / 8;
constexpr int TOKENS = WARP / LANES;
constexpr int LOADS = 16 / TOKENS;  // of a tile

typedef Words Keys[LOADS];
typedef Words Values[LOADS];
typedef float Weights;

struct Query {
    float numbers[8];  // times the softmax scale, for logits in units of log2
};

__device__ __forceinline__ void scale_query(Query& query, const Words& words, float scale_log2) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        query.numbers[2 * i] = low_number(words.w[i]) * scale_log2;
        query.numbers[2 * i + 1] = high_number(words.w[i]) * scale_log2;
    }
}

__device__ __forceinline__ void load_query(Query& query, const Words* q, u32, float scale_log2) {
    scale_query(query, load_once(q + threadIdx.x % LANES), scale_log2);
}

// Load i holds tokens i * TOKENS.. of the tile. Where there is no token, zeros.
__device__ __forceinline__ void load_rows(Words (&rows)[LOADS], const char* storage, const Place& place) {
    int lane = threadIdx.x % WARP, token = lane / LANES;
    const char* upper = storage + (u64)place.upper() * ROW_BYTES + 16 * lane;
    const char* lower = storage + (u64)place.lower() * ROW_BYTES + 16 * lane;
    if (place.full()) {
#pragma unroll
        for (int i = 0; i < LOADS / 2; i++) {
            rows[i] = load_once(upper + 512 * i);
            rows[i + LOADS / 2] = load_once(lower + 512 * i);
        }
    } else {
#pragma unroll
        for (int i = 0; i < LOADS / 2; i++) {
            bool upper_there = i * TOKENS + token < place.upper_valid();
            bool lower_there = i * TOKENS + token < place.lower_valid();
            rows[i] = upper_there ? load_once(upper + 512 * i) : zero_words();
            rows[i + LOADS / 2] = lower_there ? load_once(lower + 512 * i) : zero_words();
        }
    }
}

struct State {
    float acc[8];  // over this lane's rows
    float top;     // running maximum of the warp, in units of log2
    float total;   // sum of exp2(logit - top) over this lane's tokens
};

__device__ __forceinline__ void start_state(State& state) {
#pragma unroll
    for (int i = 0; i < 8; i++) state.acc[i] = 0.0f;
    state.top = -INFINITE;
    state.total = 0.0f;
}

__device__ __forceinline__ void load_keys(Keys& keys, const char* k, const Place& place) {
    load_rows(keys, k, place);
}

__device__ __forceinline__ void load_values(Values& values, const char* v, const Place& place) {
    load_rows(values, v, place);
}

// `own` is of one token, -inf where there is none: lane l has that of load l % LANES / 2 and its row l / LANES; two lanes
// share a token.
__device__ __forceinline__ void logits_of(Weights& own, const Keys& keys, const Query& query, const Place& place) {
    float logits[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        logits[i] = query.numbers[0] * low_number(keys[i].w[0]);
        logits[i] += query.numbers[1] * high_number(keys[i].w[0]);
#pragma unroll
        for (int k = 1; k < 4; k++) {
            logits[i] += query.numbers[2 * k] * low_number(keys[i].w[k]);
            logits[i] += query.numbers[2 * k + 1] * high_number(keys[i].w[k]);
        }
    }
    float logit = sum_over_lanes<LOADS, LANES>(logits);
    int lane = threadIdx.x % WARP, token = lane % LANES / 2 * TOKENS + lane / LANES;
    bool there = token < 8 ? token < place.upper_valid() : token - 8 < place.lower_valid();
    own = there ? logit : -INFINITE;
}

// The largest number of a warp; a NaN with the sign bit clear counts as larger than any.
__device__ __forceinline__ float warp_max(float x) {
    int bits = __float_as_int(x);
    bits = __reduce_max_sync(FULL_WARP, bits < 0 ? bits ^ 0x7fffffff : bits);
    return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// Turns a logit into a weight and makes the state ready to take it.
__device__ __forceinline__ void weigh(State& state, Weights& weight) {
    float top = warp_max(weight);
    if (!(top <= state.top)) {
        float factor = exp2_fast(state.top - top);
        state.top = top;
        state.total *= factor;
#pragma unroll
        for (int i = 0; i < 8; i++) state.acc[i] *= factor;
    }
    weight = exp2_fast(weight - (state.top == -INFINITE ? 0.0f : state.top));
    state.total += weight;
}

__device__ __forceinline__ void add_values(State& state, const Weights& own, const Values& values) {
    int first = threadIdx.x % WARP / LANES * LANES;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        float weight = __shfl_sync(FULL_WARP, own, first + 2 * i);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            state.acc[2 * k] += weight * low_number(values[i].w[k]);
            state.acc[2 * k + 1] += weight * high_number(values[i].w[k]);
        }
    }
}

__device__ __forceinline__ int dim_of(int place) { return place; }

// Leaves the warps' sums in `memory`, each relative to its own maximum.
__device__ __forceinline__ void gather_warps(MergeMemory& memory, State& state) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int stride = LANES; stride < WARP; stride *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) state.acc[i] += __shfl_xor_sync(FULL_WARP, state.acc[i], stride);
#pragma unroll
    for (int stride = 2; stride < WARP; stride *= 2)
        state.total += __shfl_xor_sync(FULL_WARP, state.total, stride);
    if (lane < LANES) {
        float4* row = (float4*)&memory.acc[warp][0][8 * lane];
        row[0] = make_float4(state.acc[0], state.acc[1], state.acc[2], state.acc[3]);
        row[1] = make_float4(state.acc[4], state.acc[5], state.acc[6], state.acc[7]);
    }
    if (lane == 0) {
        memory.top[warp][0] = state.top;
        memory.total[warp][0] = state.total;
    }
    __syncthreads();
}

// The sums over the warps of outputs `number` and `number` + 1; by whole warps.
__device__ __forceinline__ PairOfSums sums_of_warps(const MergeMemory& memory, int number) {
    int other = threadIdx.x % WARP % WARPS;  // a lane knows one warp's maximum and sum
    float its = memory.top[other][0], top = warp_max(its);
    float factor = its == -INFINITE ? 0.0f : exp2_fast(its - top), total = memory.total[other][0] * factor;
#pragma unroll
    for (int stride = 1; stride < WARPS; stride *= 2) total += __shfl_xor_sync(FULL_WARP, total, stride);
    PairOfSums sum{0.0f, 0.0f, top, total};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float2 two = *(const float2*)&memory.acc[w][0][number];
        float its_factor = __shfl_sync(FULL_WARP, factor, w);
        sum.first += two.x * its_factor;
        sum.second += two.y * its_factor;
    }
    return sum;
}

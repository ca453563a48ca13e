// A few rows of activations times a large matrix, a row of the matrix a warp: out [M, N] = x [M, K] w[N, K]^T.
//
// For fewer rows than tensor cores want. x lies in shared memory; a load of a warp is 512 bytes in a row, and DEPTH
// loads are on their way at any time, also from one row to the next and from before x is there: nobody writes
// weights. A warp takes every so-manieth row of the matrix. Sums are fp32.
//
// -DCOLUMNS: K, a multiple of 256.  -DX_ROWS: M.  -DWARPS: of a block.  -DDEPTH: loads of a warp ahead.
// -DGATED: w has a second half, and out = silu(first) * second.
#include "device.cuh"

struct RowsArguments {
    const char* x;
    const char* w;
    const unsigned short* bias;
    unsigned short* out;
    int num_rows;  // of out
};

constexpr int ROW_BYTES = 2 * COLUMNS;
constexpr int LOADS = COLUMNS / 256;  // of a row
constexpr int MATRICES = GATED ? 2 : 1;
static_assert(COLUMNS % 256 == 0, "loads fill rows");

// Where a warp is in its rows; of a gated product each row is followed by its second one.
struct Cursor {
    int row, load, matrix;
    __device__ __forceinline__ void step(int stride) {
        if (++load < LOADS) return;
        load = 0;
        if (++matrix < MATRICES) return;
        matrix = 0;
        row += stride;
    }
};

__device__ __forceinline__ float sum_over_warp(float number) {
#pragma unroll
    for (int stride = WARP / 2; stride; stride /= 2) number += __shfl_xor_sync(FULL_WARP, number, stride);
    return number;
}

// More rows take more registers.
constexpr int RESIDENT_WARPS = X_ROWS > 1 ? 16 : 32;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WARPS > WARPS ? RESIDENT_WARPS / WARPS : 1)
    rows_kernel(RowsArguments arg) {
    __shared__ uint4 staged[X_ROWS * (COLUMNS / 8)];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, stride = gridDim.x * WARPS;
    Cursor ahead{(int)blockIdx.x * WARPS + warp, 0, 0}, now = ahead;
    const char* w = arg.w + 16 * lane;
    auto load = [&](Words& words) {
        if (ahead.row >= arg.num_rows) return;
        u64 row = (u64)ahead.matrix * arg.num_rows + ahead.row;
        words = load_weights(w + row * ROW_BYTES + 512 * ahead.load);
        ahead.step(stride);
    };
    let_next_kernel_start();
    Words words[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) load(words[d]);
    wait_for_previous_kernel();
    const uint4* x = (const uint4*)arg.x;
#pragma unroll 4
    for (int i = threadIdx.x; i < X_ROWS * (COLUMNS / 8); i += THREADS) staged[i] = __ldcg(x + i);
    __syncthreads();
    float acc[X_ROWS], first[X_ROWS];
#pragma unroll
    for (int m = 0; m < X_ROWS; m++) acc[m] = first[m] = 0.0f;
    while (now.row < arg.num_rows) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (now.row >= arg.num_rows) break;
            int at = now.load * WARP + lane;
#pragma unroll
            for (int m = 0; m < X_ROWS; m++) {
                uint4 four = staged[m * (COLUMNS / 8) + at];
                u32 numbers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    acc[m] += low_number(words[d].w[i]) * low_number(numbers[i]);
                    acc[m] += high_number(words[d].w[i]) * high_number(numbers[i]);
                }
            }
            load(words[d]);
            if (now.load == LOADS - 1) {
#pragma unroll
                for (int m = 0; m < X_ROWS; m++) {
                    float total = sum_over_warp(acc[m]);
                    acc[m] = 0.0f;
                    if (GATED && now.matrix == 0) {
                        first[m] = total;
                        continue;
                    }
                    if (GATED) total *= first[m] / (1.0f + exp2_fast(-1.4426950408889634f * first[m]));
                    if (arg.bias) total += low_number(arg.bias[now.row]);
                    if (lane == 0)
                        arg.out[m * (long long)arg.num_rows + now.row] = (unsigned short)pack(total, 0.0f);
                }
            }
            now.step(stride);
        }
    }
}

// What every CUDA stage shares. Compiled with -DBF16=0|1 -DHEAD_DIM=64|128 -DWARPS: warps of a block.
#pragma once
#include "ptx.cuh"

#define INFINITE __int_as_float(0x7f800000)
#define FULL_WARP 0xffffffffu

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;

__device__ __forceinline__ Words zero_words() { return Words{{0u, 0u, 0u, 0u}}; }

// Sums COUNT numbers over each group of LANES neighbouring lanes; a lane gets the sum of number
// lane % LANES / (LANES / COUNT).
template <int COUNT, int LANES>
__device__ __forceinline__ float sum_over_lanes(float (&numbers)[COUNT]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int count = COUNT / 2, stride = LANES / 2; stride > 0; count /= 2, stride /= 2) {
        if (count > 0) {
            bool later = lane & stride;
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++) {
                if (i < count) {
                    float sent = later ? numbers[i] : numbers[i + count];
                    float kept = later ? numbers[i + count] : numbers[i];
                    numbers[i] = kept + __shfl_xor_sync(FULL_WARP, sent, stride);
                }
            }
        } else {
            numbers[0] += __shfl_xor_sync(FULL_WARP, numbers[0], stride);
        }
    }
    return numbers[0];
}


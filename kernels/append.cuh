// What appends of few and of many new tokens share. Compiled with -DLAYOUT: of the summary, 0 (left alone), 1 (paired)
// or 2 (transposed).
#pragma once
#include "device.cuh"

constexpr int BLOCK_PAGES = 64;  // of a transposed summary, whose numbers of one box lie a row apart

struct AppendArguments {
    const int* new_indptr;
    const int* kv_indptr;
    const int* last;  // of each request, in rows: tokens of the last page, that page, its summary block
    const u32* keys;
    const u32* values;
    unsigned short last_stride;  // in 32 bytes
    unsigned short num_kv_heads;
    unsigned short keys_head_stride;  // in 16 bytes
    unsigned short values_head_stride;
    // Here ends a line of 64 bytes of the arguments: the next one costs a wait of its own.
    u32* k;
    u32* v;
    char* summary;
    const int* block_table;
    u32 keys_token_stride;  // in words
    u32 values_token_stride;
    const int* summary_table;
    const int* summary_indptr;
    int page_size;
};

// One load asks for all lengths of a request, of a lane each.
__device__ __forceinline__ int load_lengths(const AppendArguments& arg, int request) {
    int lane = threadIdx.x % WARP, row = max(0, min(lane - 4, 2));
    const int* word = lane < 2 ? arg.new_indptr + request + lane : arg.kv_indptr + request + lane % 2;
    return *(lane < 4 ? word : arg.last + row * arg.last_stride * 8 + request);
}

struct Lengths {
    int first_new, end_new, start, num_pages, last_len, last_page, last_block;

    __device__ __forceinline__ explicit Lengths(int own) {
        first_new = __shfl_sync(FULL_WARP, own, 0);
        end_new = __shfl_sync(FULL_WARP, own, 1);
        start = __shfl_sync(FULL_WARP, own, 2);
        num_pages = __shfl_sync(FULL_WARP, own, 3) - start;
        last_len = __shfl_sync(FULL_WARP, own, 4);
        last_page = __shfl_sync(FULL_WARP, own, 5);
        last_block = __shfl_sync(FULL_WARP, own, 6);
    }
};

// Where what a page, or a summary block, holds of a KV head begins, in as much as it holds of one.
__device__ __forceinline__ u64 head_of(const AppendArguments& arg, u32 number, int kv_head) {
    return (u64)number * arg.num_kv_heads + kv_head;
}

constexpr u32 INFINITE_PAIR = BF16 ? 0x7f807f80u : 0x7c007c00u, NEGATIVE_PAIR = INFINITE_PAIR | 0x80008000u;

// Two numbers, of min or of max, of a box that holds nothing.
__device__ __forceinline__ u32 nothing(bool of_max) { return of_max ? NEGATIVE_PAIR : INFINITE_PAIR; }

// Those of the box of one key: its own, or infinite ones where the key is NaN.
__device__ __forceinline__ u32 box_of(u32 key, bool of_max) {
    return of_max ? smaller_pairs(key, INFINITE_PAIR) : larger_pairs(key, NEGATIVE_PAIR);
}

// Those of the box that holds two.
__device__ __forceinline__ u32 joined(u32 a, u32 b, bool of_max) {
    return of_max ? larger_pairs(a, b) : smaller_pairs(a, b);
}

#if REDUCES
// Those in memory become those of the box that holds the others too, which nothing waits for.
template <class Numbers>
__device__ __forceinline__ void join_in_memory(Numbers* where, const Numbers& others, bool of_max) {
    if (of_max)
        reduce_to_larger(where, others);
    else
        reduce_to_smaller(where, others);
}
#endif

// Stages `append` and `append_kv` of few new tokens a request: K and V into their pages, boxes widened by the keys,
// equations (1), (8) and (14). A team of threads writes one KV head of one request.
//
// Of the last page it is known beside the lengths which one it is, and memory itself widens the old box: one new token
// waits once, for lengths. Before sm_90 it waits for the old box too.
#include "append.cuh"

// Words of four bytes that a thread takes of a vector: many in a row, or few where each number costs an access.
constexpr int WORDS = LAYOUT == 2 ? 1 : 4;
constexpr int LANES = HEAD_DIM / (2 * WORDS);  // of a vector
constexpr int TEAM = 2 * LANES;                // one half has K and min, the other V and max
constexpr int ROW = HEAD_DIM / 2;              // words of a vector
static_assert(THREADS % TEAM == 0, "whole teams");

struct Piece {  // of a vector, a thread's
    u32 w[WORDS];
};

__device__ __forceinline__ Piece load_piece(const u32* from) {
    Piece piece;
    if constexpr (WORDS == 4) {
        Words words = *(const Words*)from;
#pragma unroll
        for (int i = 0; i < WORDS; i++) piece.w[i] = words.w[i];
    } else {
        piece.w[0] = *from;
    }
    return piece;
}

__device__ __forceinline__ void store_piece(u32* to, const Piece& piece) {
    if constexpr (WORDS == 4)
        *(Words*)to = Words{{piece.w[0], piece.w[1], piece.w[2], piece.w[3]}};
    else
        *to = piece.w[0];
}

// A thread's piece of a page's box: of min, or of max.
struct Box {
    char* where;
    bool of_max;

    __device__ __forceinline__ Box(const AppendArguments& arg, const Lengths& lengths, int request, int kv_head,
                                   int page, u32 physical) {
        int piece = threadIdx.x % LANES;
        of_max = threadIdx.x % TEAM >= LANES;
        where = nullptr;
        if (LAYOUT == 1) {
            u64 row = head_of(arg, physical, kv_head) * 2 + of_max;
            where = arg.summary + (row * LANES + piece) * sizeof(Piece);
        } else if (LAYOUT == 2) {
            int number = page / BLOCK_PAGES;
            bool is_last = number == (lengths.num_pages - 1) / BLOCK_PAGES;
            u32 block = is_last ? lengths.last_block : arg.summary_table[arg.summary_indptr[request] + number];
            u64 row = (head_of(arg, block, kv_head) * HEAD_DIM + 2 * piece) * 2 + of_max;
            where = arg.summary + (row * BLOCK_PAGES + page % BLOCK_PAGES) * 2;
        }
    }
    __device__ __forceinline__ unsigned short& number(int i) const {  // transposed: of dim i of two
        return ((unsigned short*)where)[i * 2 * BLOCK_PAGES];
    }
    __device__ __forceinline__ Piece load() const {
        if (LAYOUT == 1) return load_piece((const u32*)where);
        return Piece{{number(0) | (u32)number(1) << 16}};
    }
    __device__ __forceinline__ void store(const Piece& box) const {
        if (LAYOUT == 1) {
            store_piece((u32*)where, box);
        } else {
            number(0) = (unsigned short)box.w[0];
            number(1) = (unsigned short)(box.w[0] >> 16);
        }
    }
    __device__ __forceinline__ Piece empty() const {
        Piece box;
#pragma unroll
        for (int i = 0; i < WORDS; i++) box.w[i] = nothing(of_max);
        return box;
    }
    __device__ __forceinline__ Piece widened(Piece box, const Piece& other) const {  // by a key or a box
#pragma unroll
        for (int i = 0; i < WORDS; i++) box.w[i] = joined(box.w[i], box_of(other.w[i], of_max), of_max);
        return box;
    }
    __device__ __forceinline__ void widen(const Piece& box) const {
#if !REDUCES
        store(widened(box, load()));
#else
        if constexpr (LAYOUT == 1) {
            join_in_memory((Words*)where, Words{{box.w[0], box.w[1], box.w[2], box.w[3]}}, of_max);
        } else {  // a word holds a number of the page beside it, too, which stays
            bool is_upper = (u64)where & 2;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 pick = (i ? 0x5432 : 0x5410), pick_upper = (i ? 0x3254 : 0x1054);
                u32 pair = __byte_perm(box.w[0], nothing(of_max), is_upper ? pick_upper : pick);
                join_in_memory((u32*)(&number(i) - is_upper), pair, of_max);
            }
        }
#endif
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32) append_kernel(AppendArguments arg) {
    int request = blockIdx.y, own_length = load_lengths(arg, request);
    int offset = threadIdx.x % LANES * WORDS;
    int kv_head = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    bool of_values = threadIdx.x % TEAM >= LANES, there = kv_head < arg.num_kv_heads;
    // The first request's new tokens start at row 0: its first key and value are asked for before the lengths are there.
    const u32* keys = arg.keys + (u64)(kv_head * 4) * arg.keys_head_stride + offset;
    const u32* values = arg.values + (u64)(kv_head * 4) * arg.values_head_stride + offset;
    Piece key, value;
    if (request == 0 && there) {
        key = load_piece(keys);
        value = load_piece(values);
    }
    Lengths lengths(own_length);
    int num_new = lengths.end_new - lengths.first_new;
    if (!there || num_new <= 0 || lengths.num_pages <= 0) return;
    int page = lengths.num_pages - 1, slot = lengths.last_len - num_new;
#pragma unroll 1
    for (; slot < 0; slot += arg.page_size) page--;  // seldom at all
    keys += (u64)lengths.first_new * arg.keys_token_stride;
    values += (u64)lengths.first_new * arg.values_token_stride;
#pragma unroll 1
    for (int token = 0; token < num_new; page++, slot = 0) {
        bool is_last = page == lengths.num_pages - 1, in_use = slot > 0;
        u32 physical = is_last ? lengths.last_page : arg.block_table[lengths.start + page];
        int end = min(token + arg.page_size - slot, num_new);
        Box place(arg, lengths, request, kv_head, page, physical);
        Piece box = place.empty();
        u64 cell = (head_of(arg, physical, kv_head) * arg.page_size + slot) * ROW + offset;
#pragma unroll 1
        for (; token < end; token++, cell += ROW) {
            if (request || token) {
                key = load_piece(keys + (u64)token * arg.keys_token_stride);
                value = load_piece(values + (u64)token * arg.values_token_stride);
            }
            if (of_values)
                store_piece(arg.v + cell, value);
            else
                store_piece(arg.k + cell, key);
            box = place.widened(box, key);
        }
        if (LAYOUT && in_use)
            place.widen(box);
        else if (LAYOUT)
            place.store(box);
    }
}

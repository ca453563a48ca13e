// Attention of one block over a line of pages, for HEADS query heads that share K and V: what `attend` (one
// head, its own pages) and `dense` (a group, all pages) have in common. A warp takes 16 tokens at a time; how
// it multiplies is in attention_one.cuh and attention_group.cuh.
//
// -DHEADS: at most 8.  -DPAGE_SIZE: 8 or a multiple of 16.  -DWARPS: warps of a block.
#pragma once
#include "device.cuh"

constexpr int ROW_BYTES = 2 * HEAD_DIM;
constexpr int OUTPUTS = HEADS * HEAD_DIM;
constexpr int MOST_SPLITS = 32;  // of which blocks may wait for one another
constexpr int TILES_A_PAGE = PAGE_SIZE < 16 ? 1 : PAGE_SIZE / 16;
static_assert(PAGE_SIZE == 8 || PAGE_SIZE % 16 == 0, "a tile is two pages or a share of one");

struct AttentionArguments {
    const char* q;
    const char* k;
    const char* v;
    const int* block_table;
    const int* kv_indptr;
    const int* last_page_len;
    int* page_ids;
    const int* select_indptr;
    unsigned short* out;
    float* lse;
    u32* scratch;
    const float* scores;
    long long q_batch_stride;  // elements
    long long q_head_stride;
    long long out_batch_stride;
    long long out_head_stride;
    long long page_ids_stride;
    long long scores_stride;
    float scale_log2;
    int num_kv_heads;
    int table_size;   // of block_table
    int num_columns;  // of scores
    int take_tail;
    int blocks_stay;  // all blocks of the launch are resident at once, so that one may wait for another
};

struct Share {  // of one block
    int first, end;  // entries of the line of pages
    int active;      // splits that have any; split 0 has an empty line
};

// In 32 bits, as a division of 64 takes a tenth of a microsecond: entries times splits stay below 2^32.
__device__ __forceinline__ Share share_of(int num_entries, int split, int active) {
    u32 entries = num_entries;
    return Share{(int)(entries * split / active), (int)(entries * (split + 1) / active), active};
}

__device__ __forceinline__ int active_splits(int num_entries) { return max(1, min((int)gridDim.x, num_entries)); }

struct Place {  // of one tile: its rows 0 and 8 in the pool, and how many rows from there hold tokens
    u32 row;
    int valid;
    u32 second_row;  // where a tile is two pages
    int second_valid;
    __device__ __forceinline__ u32 upper() const { return row; }
    __device__ __forceinline__ u32 lower() const { return PAGE_SIZE < 16 ? second_row : row + 8; }
    __device__ __forceinline__ int upper_valid() const { return valid; }
    __device__ __forceinline__ int lower_valid() const { return PAGE_SIZE < 16 ? second_valid : valid - 8; }
    __device__ __forceinline__ bool full() const { return upper_valid() >= 8 && lower_valid() >= 8; }
};

struct Line {  // the pages of one request for one KV head
    const int* table;
    int num_pages, tail_len, kv_head, num_kv_heads;
    const int* copy = nullptr;  // of the table, in shared memory

    __device__ __forceinline__ u32 row(int logical) const {
        int physical = copy ? copy[logical] : table[logical];
        return ((u32)physical * num_kv_heads + kv_head) * PAGE_SIZE;
    }
    __device__ __forceinline__ int valid(int logical) const {
        return logical == num_pages - 1 ? tail_len : PAGE_SIZE;
    }
    // A tile of one page, from slot `skipped` on.
    __device__ __forceinline__ Place place(int logical, int skipped) const {
        return Place{row(logical) + skipped, valid(logical) - skipped, row(logical), 0};
    }
    // A tile of two pages of 8 tokens.
    __device__ __forceinline__ Place place_of_two(int logical, int second) const {
        return Place{row(logical), valid(logical), row(second), valid(second)};
    }
    // Tile `tile` of entries first..end; `page_of` maps an entry to a logical page.
    template <class PageOf>
    __device__ __forceinline__ Place place(int tile, int first, int end, PageOf page_of) const {
        if (PAGE_SIZE >= 16) return place(page_of(first + tile / TILES_A_PAGE), tile % TILES_A_PAGE * 16);
        int entry = first + 2 * tile;
        return entry + 1 < end ? place_of_two(page_of(entry), page_of(entry + 1)) : place(page_of(entry), 0);
    }
};

// Where a number of a head stands among those of a warp, so that what its lanes store together lies in different banks:
// halves of 64 dims, and the heads.
constexpr int HALF_PADDING = HEADS > 1 ? 16 : 0;
constexpr int HEAD_NUMBERS = HEAD_DIM + (HEADS > 1 ? HALF_PADDING * (HEAD_DIM / 64 - 1) + 4 : 0);
__device__ __forceinline__ int padded(int place) { return place + place / 64 * HALF_PADDING; }

struct MergeMemory {
    float acc[WARPS][HEADS][HEAD_NUMBERS];  // of the warps, then of the splits
    float total[MOST_SPLITS > WARPS ? MOST_SPLITS : WARPS][HEADS];
    float top[MOST_SPLITS > WARPS ? MOST_SPLITS : WARPS][HEADS];
    float block_top[HEADS];
    int last;
};

__device__ __forceinline__ int dim_of(int place);  // of a number's place among a head's

struct Output {  // of one launch, where the heads of this block begin
    unsigned short* out;
    float* lse;
    long long head_stride;
};

struct Sum {
    float acc, top, total;
    __device__ __forceinline__ void add(float acc_, float top_, float total_) {
        float raised = fmaxf(top, top_), base = raised == -INFINITE ? 0.0f : raised;
        float old_factor = exp2_fast(top - base), factor = exp2_fast(top_ - base);
        acc = acc * old_factor + acc_ * factor;
        total = total * old_factor + total_ * factor;
        top = raised;
    }
    __device__ __forceinline__ void write(const Output& output, int number) const {
        int head = number / HEAD_DIM, dim = dim_of(number % HEAD_DIM);
        float divisor = total == 0.0f ? 1.0f : total;
        output.out[head * output.head_stride + dim] = (unsigned short)pack(acc / divisor, 0.0f);
        if (dim == 0)
            output.lse[head] = total == 0.0f ? -INFINITE : (top + log2f(divisor)) * 0.6931471805599453f;
    }
};

#if HEADS == 1
#include "attention_one.cuh"
#else
#include "attention_group.cuh"
#endif

__device__ __forceinline__ int tiles_of(const Share& share) {
    int entries = share.end - share.first;
    return PAGE_SIZE < 16 ? (entries + 1) / 2 : entries * TILES_A_PAGE;
}

struct Turn {  // of a warp: its first tile of the share, and the second, which every WARPS-th follows
    int first, second;
};

__device__ __forceinline__ Turn equal_turn() {
    int warp = threadIdx.x / WARP;
    return Turn{warp, warp + WARPS};
}

struct Held {  // one tile of a warp, its K asked for, and its V where there is room
    Place place;
    Keys keys;
    Values values;
    bool there = false;
    __device__ __forceinline__ void load(const Place& from, const char* k) {
        place = from;
        load_keys(keys, k, place);
        there = true;
    }
};

// This warp's tiles of the share, whose entries' logical pages `page_of` tells; a tile already held takes the place of
// the first, with its V if `WITH_VALUES`. K and V of the next tile are asked for as soon as their registers are free,
// its place one tile earlier.
template <bool WITH_VALUES = false, class PageOf>
__device__ __forceinline__ void walk(State& state, Held& held, const Line& line, const Share& share, const Turn& turn,
                                     PageOf page_of, const Query& query, const char* k, const char* v) {
    int tile = turn.second, num_tiles = tiles_of(share);
    bool early = held.there;
    if (!early) {
        if (turn.first >= num_tiles) return;
        held.load(line.place(turn.first, share.first, share.end, page_of), k);
    }
    if (!early || !WITH_VALUES) load_values(held.values, v, held.place);
    Place next = held.place;
    if (tile < num_tiles) next = line.place(tile, share.first, share.end, page_of);
    while (true) {
        bool more = tile < num_tiles;
        Weights weights;
        logits_of(weights, held.keys, query, held.place);
        if (more) load_keys(held.keys, k, next);
        weigh(state, weights);
        add_values(state, weights, held.values);
        if (!more) break;
        load_values(held.values, v, next);
        held.place = next;
        tile += WARPS;
        if (tile < num_tiles) next = line.place(tile, share.first, share.end, page_of);
    }
}

// A number and the launch it belongs to, in one word: who reads the tag has the number.
__device__ __forceinline__ void post(u64* where, float number, u32 tag) {
    store_relaxed(where, (u64)tag << 32 | __float_as_uint(number));
}

__device__ __forceinline__ float collect(const u64* where, u64 word, u32 tag) {  // `word`: what a peek saw
    while ((u32)(word >> 32) != tag) word = load_relaxed(where);
    return __uint_as_float((u32)word);
}

__device__ __forceinline__ float collect(const u64* where, u32 tag) { return collect(where, load_relaxed(where), tag); }

// Merges the warps, then the splits, and writes the output.
//
// Scratch: the launch counter of each program (request and head, or group of heads), then its arrivals, then the
// words [program, split, head, HEAD_DIM + 2] that splits post. Words carry the number of the launch, so that
// nothing is cleared. Where all blocks are resident at once each split waits for the others' words and writes
// its share of the outputs; otherwise the last split to arrive writes all. Splits are summed in their order, so
// that a result does not depend on timing.
__device__ __forceinline__ void finish(MergeMemory& memory, State& state, const AttentionArguments& arg,
                                       const Share& share, const u32& launch, const Output& output) {
    constexpr int BLOCK = WARPS * WARP, WORDS = HEAD_DIM + 2;
    gather_warps(memory, state);
    if (share.active == 1) {
        for (int number = threadIdx.x; number < OUTPUTS; number += BLOCK)
            sum_of_warps(memory, number).write(output, number);
        return;
    }
    int num_programs = gridDim.y * gridDim.z, program = blockIdx.z * gridDim.y + blockIdx.y, split = blockIdx.x;
    u64* words = (u64*)(arg.scratch + (2 * num_programs + 3) / 4 * 4) + (long long)program * gridDim.x * HEADS * WORDS;
    u32 tag = launch + 1;
    for (int number = threadIdx.x; number < OUTPUTS; number += BLOCK) {
        int head = number / HEAD_DIM, dim = number % HEAD_DIM;
        Sum sum = sum_of_warps(memory, number);
        u64* mine = words + ((long long)split * HEADS + head) * WORDS;
        post(mine + dim, sum.acc, tag);
        if (dim == 0) {
            post(mine + HEAD_DIM, sum.top, tag);
            post(mine + HEAD_DIM + 1, sum.total, tag);
        }
    }
    if (arg.blocks_stay) {
        int count = (OUTPUTS + share.active - 1) / share.active, first = split * count;
        __syncthreads();
        float* acc = &memory.acc[0][0][0];
        for (int i = threadIdx.x; i < count * share.active; i += BLOCK) {
            int from = i / count, number = first + i % count;
            if (number < OUTPUTS) {
                const u64* theirs = words + ((long long)from * HEADS + number / HEAD_DIM) * WORDS;
                acc[i] = collect(theirs + number % HEAD_DIM, tag);
            }
        }
        for (int i = threadIdx.x; i < HEADS * share.active; i += BLOCK) {
            const u64* theirs = words + (long long)i * WORDS + HEAD_DIM;
            u64 top = load_relaxed(theirs), total = load_relaxed(theirs + 1);
            memory.top[i / HEADS][i % HEADS] = collect(theirs, top, tag);
            memory.total[i / HEADS][i % HEADS] = collect(theirs + 1, total, tag);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count && first + i < OUTPUTS; i += BLOCK) {
            Sum sum{0.0f, -INFINITE, 0.0f};
            int head = (first + i) / HEAD_DIM;
            for (int from = 0; from < share.active; from++)
                sum.add(acc[from * count + i], memory.top[from][head], memory.total[from][head]);
            sum.write(output, first + i);
        }
        if (split == 0 && threadIdx.x == 0) arg.scratch[program] = tag;  // all splits have read it
        return;
    }
    u32* arrivals = arg.scratch + num_programs + program;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) memory.last = atomicAdd(arrivals, 1u) == (u32)share.active - 1;
    __syncthreads();
    if (!memory.last) return;
    for (int number = threadIdx.x; number < OUTPUTS; number += BLOCK) {
        Sum sum{0.0f, -INFINITE, 0.0f};
        for (int from = 0; from < share.active; from++) {
            const u64* theirs = words + ((long long)from * HEADS + number / HEAD_DIM) * WORDS;
            u64 acc = load_relaxed(theirs + number % HEAD_DIM), top = load_relaxed(theirs + HEAD_DIM), total = load_relaxed(theirs + HEAD_DIM + 1);
            sum.add(collect(theirs + number % HEAD_DIM, acc, tag), collect(theirs + HEAD_DIM, top, tag),
                    collect(theirs + HEAD_DIM + 1, total, tag));
        }
        sum.write(output, number);
    }
    if (threadIdx.x == 0) {
        arg.scratch[program] = tag;
        *arrivals = 0;
    }
}

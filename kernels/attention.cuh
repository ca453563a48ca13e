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
    const char* k;
    const char* v;
    const int* block_table;
    const int* kv_indptr;
    const int* last_page_len;
    unsigned short num_kv_heads;
    unsigned short num_splits;
    int early_pages;  // full ones of the first request, when the launch was made
    // Here ends a line of 64 bytes of the arguments: the next one costs a wait of its own.
    const Words* q;
    const int* select_indptr;
    const float* scores;
    int* page_ids;
    u32* scratch;
    u32 scores_stride;  // elements
    u32 page_ids_stride;
    u32 q_batch_stride;  // in words of 16 bytes
    u32 q_head_stride;
    float scale_log2;
    int table_size;  // of block_table
    // And here another one.
    unsigned short* out;
    float* lse;
    long long out_batch_stride;
    long long out_head_stride;
    int num_programs;  // groups of splits
    int take_tail;
    int blocks_stay;  // all blocks of the launch are resident at once, so that one may wait for another
};

__device__ __forceinline__ const Words* query_at(const AttentionArguments& arg, int request, int head) {
    return arg.q + (u64)request * arg.q_batch_stride + (u64)head * arg.q_head_stride;
}

// The number of this block's program, which its splits share: of a request and head, or group of heads.
__device__ __forceinline__ u32 program_of_block() { return blockIdx.z * gridDim.y + blockIdx.y; }

// The number of launches before this one, into `launch` in shared memory: by the last warp, which is often idle.
__device__ __forceinline__ void load_launch(u32& launch, const AttentionArguments& arg) {
    if (threadIdx.x == THREADS - WARP) launch = arg.scratch[program_of_block()];
}

struct Share {  // of one block
    int first, end;  // entries of the line of pages
    int active;      // splits that have any; split 0 has an empty line
};

// In 32 bits, as a division of 64 takes a tenth of a microsecond: entries times splits stay below 2^32.
__device__ __forceinline__ Share share_of(int num_entries, int split, int active) {
    u32 entries = num_entries;
    return Share{(int)(entries * split / active), (int)(entries * (split + 1) / active), active};
}

__device__ __forceinline__ int active_splits(int num_splits, int num_entries) {
    return max(1, min(num_splits, num_entries));
}

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

    __device__ __forceinline__ u32 row(int logical) const {
        return ((u32)table[logical] * num_kv_heads + kv_head) * PAGE_SIZE;
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
    alignas(16) float acc[WARPS][HEADS][HEAD_NUMBERS];  // of the warps, then of the splits
    float total[MOST_SPLITS > WARPS ? MOST_SPLITS : WARPS][HEADS];
    float top[MOST_SPLITS > WARPS ? MOST_SPLITS : WARPS][HEADS];
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
    __device__ __forceinline__ void write(const Output& output, int number) const {
        int head = number / HEAD_DIM, dim = dim_of(number % HEAD_DIM);
        float divisor = total == 0.0f ? 1.0f : total;
        output.out[head * output.head_stride + dim] = (unsigned short)pack(divide_fast(acc, divisor), 0.0f);
        if (dim == 0)
            output.lse[head] = total == 0.0f ? -INFINITE : (top + log2_fast(divisor)) * 0.6931471805599453f;
    }
};

struct PairOfSums {  // two neighbouring numbers of a head
    float first, second, top, total;
    __device__ __forceinline__ void write(const Output& output, int number) const {
        Sum{first, top, total}.write(output, number);
        Sum{second, top, total}.write(output, number + 1);
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

struct Turn {  // of a warp: its first tile of the share, and the second, which every `step`-th follows
    int first, second, step;
};

// That of warp `warp` of `warps` which share the tiles equally.
__device__ __forceinline__ Turn equal_turn(int warp, int warps) { return Turn{warp, warp + warps, warps}; }

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
// its place one tile earlier. Once the first tile has been asked for, query_of(query) tells the query; meanwhile() is
// called then, or where there is no tile.
template <bool WITH_VALUES = false, class PageOf, class QueryOf, class Meanwhile>
__device__ __forceinline__ void walk(State& state, Held& held, const Line& line, const Share& share, const Turn& turn,
                                     PageOf page_of, QueryOf query_of, Meanwhile meanwhile, const char* k,
                                     const char* v) {
    int tile = turn.second, num_tiles = tiles_of(share);
    bool early = held.there;
    if (!early) {
        if (turn.first >= num_tiles) {
            meanwhile();
            return;
        }
        held.load(line.place(turn.first, share.first, share.end, page_of), k);
    }
    if (!early || !WITH_VALUES) load_values(held.values, v, held.place);
    __syncwarp();  // the compiler moves nothing of the query in front of those loads
    Query query;
    query_of(query);
    meanwhile();
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
        tile += turn.step;
        if (tile < num_tiles) next = line.place(tile, share.first, share.end, page_of);
    }
}

constexpr int PAIRS = HEAD_DIM / 2 + 1;  // words of a split and head: two outputs each, then maximum and sum

// What the splits of one program leave for one another, [split, head, PAIRS]. Words carry the number of the launch,
// so that nothing is cleared, and two numbers each: fewer words are polled.
struct Board {
    Posted* words;
    u32 tag;

    __device__ __forceinline__ Posted* at(int split, int head, int pair) const {
        return words + ((long long)split * HEADS + head) * PAIRS + pair;
    }
    __device__ __forceinline__ void post(int split, int head, int pair, float first, float second) const {
        store_relaxed(at(split, head, pair), Posted{first, second, tag, 0u});
    }
    __device__ __forceinline__ Posted collect(int split, int head, int pair) const {
        const Posted* where = at(split, head, pair);
        return collect(where, load_relaxed(where));
    }
    __device__ __forceinline__ Posted collect(const Posted* where, Posted peeked) const {
        while (peeked.tag != tag) peeked = load_relaxed(where);
        return peeked;
    }
};

__device__ __forceinline__ void post_sums(const MergeMemory& memory, const Board& board, int split) {
    for (int number = 2 * threadIdx.x; number < OUTPUTS; number += 2 * THREADS) {
        int head = number / HEAD_DIM, place = number % HEAD_DIM;
        PairOfSums sums = sums_of_warps(memory, number);
        board.post(split, head, place / 2, sums.first, sums.second);
        if (place == 0) board.post(split, head, PAIRS - 1, sums.top, sums.total);
    }
}

// The sum of the splits' sums, each relative to its own maximum, which part(split, acc, top, total) tells; of AT_ONCE
// splits together, so that they wait for one another once.
template <int AT_ONCE, class Part>
__device__ __forceinline__ Sum sum_of_splits(int active, Part part) {
    Sum sum{0.0f, -INFINITE, 0.0f};
    for (int first = 0; first < active; first += AT_ONCE) {
        float acc[AT_ONCE], top[AT_ONCE], total[AT_ONCE], raised = sum.top;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            acc[i] = total[i] = 0.0f;
            top[i] = -INFINITE;
            if (first + i < active) part(first + i, acc[i], top[i], total[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) raised = fmaxf(raised, top[i]);
        float base = raised == -INFINITE ? 0.0f : raised, factor = exp2_fast(sum.top - base);
        sum = Sum{sum.acc * factor, raised, sum.total * factor};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            factor = exp2_fast(top[i] - base);
            sum.acc += acc[i] * factor;
            sum.total += total[i] * factor;
        }
    }
    return sum;
}

// Waits for the words of all splits and writes this split's share of the outputs.
__device__ __forceinline__ void merge_share(MergeMemory& memory, const Board& board, int split, int active,
                                            const Output& output) {
    u32 pairs = (OUTPUTS / 2 + active - 1) / active;  // of the share
    int first = split * (int)pairs, count = 2 * (int)pairs;
    float* acc = &memory.acc[0][0][0];  // [split, count]
    // Maxima and sums are asked for by the block's last threads, which often have no outputs to ask for.
    int last = THREADS - 1 - (int)threadIdx.x;
    bool has_top = last < HEADS * active;
    Posted peeked{0.0f, 0.0f, 0u, 0u};
    if (has_top) peeked = load_relaxed(board.at(last / HEADS, last % HEADS, PAIRS - 1));
    for (u32 i = threadIdx.x; i < pairs * active; i += THREADS) {
        u32 from = i / pairs;
        int pair = first + (int)(i % pairs);
        if (pair < OUTPUTS / 2) {
            Posted two = board.collect(from, pair / (HEAD_DIM / 2), pair % (HEAD_DIM / 2));
            *(float2*)(acc + 2 * i) = make_float2(two.first, two.second);
        }
    }
    for (int i = last; i < HEADS * active; i += THREADS) {
        const Posted* where = board.at(i / HEADS, i % HEADS, PAIRS - 1);
        Posted two = board.collect(where, i == last ? peeked : load_relaxed(where));
        memory.top[i / HEADS][i % HEADS] = two.first;
        memory.total[i / HEADS][i % HEADS] = two.second;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count && 2 * first + i < OUTPUTS; i += THREADS) {
        int head = (2 * first + i) / HEAD_DIM;
        Sum sum = sum_of_splits<8>(active, [&](int from, float& its_acc, float& its_top, float& its_total) {
            its_acc = acc[from * count + i];
            its_top = memory.top[from][head];
            its_total = memory.total[from][head];
        });
        sum.write(output, 2 * first + i);
    }
}

// Writes all outputs, when all splits have posted.
__device__ __forceinline__ void merge_all(const Board& board, int active, const Output& output) {
    for (int number = threadIdx.x; number < OUTPUTS; number += THREADS) {
        int head = number / HEAD_DIM, place = number % HEAD_DIM;
        Sum sum = sum_of_splits<1>(active, [&](int from, float& its_acc, float& its_top, float& its_total) {
            const Posted *own = board.at(from, head, place / 2), *top = board.at(from, head, PAIRS - 1);
            Posted own_peek = load_relaxed(own), top_peek = load_relaxed(top);
            Posted two = board.collect(own, own_peek), whole = board.collect(top, top_peek);
            its_acc = place % 2 ? two.second : two.first;
            its_top = whole.first;
            its_total = whole.second;
        });
        sum.write(output, number);
    }
}

// Merges the warps, then the splits, and writes the output.
//
// Scratch: the launch counter of each program (request and head, or group of heads), then its arrivals, then its
// board. Where all blocks are resident at once each split waits for the others' words and writes its share of the
// outputs; otherwise the last split to arrive writes all. Splits are summed in their order, so that a result does
// not depend on timing.
__device__ __forceinline__ void finish(MergeMemory& memory, State& state, const AttentionArguments& arg,
                                       const Share& share, const u32& launch, const Output& output) {
    gather_warps(memory, state);
    if (share.active == 1) {
        for (int number = 2 * threadIdx.x; number < OUTPUTS; number += 2 * THREADS)
            sums_of_warps(memory, number).write(output, number);
        return;
    }
    int program = program_of_block(), split = blockIdx.x;
    Posted* boards = (Posted*)(arg.scratch + (2 * arg.num_programs + 3) / 4 * 4);
    Board board{boards + (long long)program * arg.num_splits * HEADS * PAIRS, launch + 1};
    post_sums(memory, board, split);
    if (arg.blocks_stay) {
        __syncthreads();
        merge_share(memory, board, split, share.active, output);
        if (split == 0 && threadIdx.x == 0) arg.scratch[program] = board.tag;  // all splits have read it
        return;
    }
    u32* arrivals = arg.scratch + arg.num_programs + program;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) memory.last = atomicAdd(arrivals, 1u) == (u32)share.active - 1;
    __syncthreads();
    if (!memory.last) return;
    merge_all(board, share.active, output);
    if (threadIdx.x == 0) {
        arg.scratch[program] = board.tag;
        *arrivals = 0;
    }
}

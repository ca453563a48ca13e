// Stages `append` and `append_kv` of many new tokens a request: K and V into their pages and each page's box, equations
// (1), (8) and (14). A warp writes a page of one KV head at a time, a block a run of RUN_PAGES pages, which begins at a
// multiple of as many.
//
// A tile of TILE_SLOTS tokens' K and V is asked for before any of it is written: so many loads under way are what keeps
// memory busy. Of a transposed summary a run's boxes gather in shared memory, and each row gets its share at once.
#include "append.cuh"

constexpr int LANES = HEAD_DIM / 8;  // of a vector, with 16 bytes each
constexpr int ROWS = WARP / LANES;   // vectors of one load
constexpr int LOADS = TILE_SLOTS > ROWS ? TILE_SLOTS / ROWS : 1;
constexpr int CHUNK = 8;  // pages whose numbers in a row of a transposed summary are 16 bytes
static_assert(LAYOUT < 2 || (RUN_PAGES % CHUNK == 0 && BLOCK_PAGES % RUN_PAGES == 0), "a run lies in one block");

struct Place {  // what a lane has of a vector, and of a box
    int row, piece;
    bool of_max, spare;  // of 64 dims two lanes have each piece of a box, of which one is to spare

    __device__ __forceinline__ Place() {
        int lane = threadIdx.x % WARP;
        row = lane / LANES;
        piece = lane % LANES;
        of_max = lane >= WARP / 2;
        spare = lane % (WARP / 2) >= LANES;
    }
};

__device__ __forceinline__ Words four(u32 word) { return Words{{word, word, word, word}}; }

__device__ __forceinline__ Words box_of(Words key, bool of_max) {
#pragma unroll
    for (int i = 0; i < 4; i++) key.w[i] = box_of(key.w[i], of_max);
    return key;
}

__device__ __forceinline__ Words joined(Words a, const Words& b, bool of_max) {
#pragma unroll
    for (int i = 0; i < 4; i++) a.w[i] = joined(a.w[i], b.w[i], of_max);
    return a;
}

// The box of what the lanes have seen, `least` and `most`: a lane's piece of min or of max.
__device__ __forceinline__ Words over_lanes(const Words& least, const Words& most, bool of_max) {
    Words box;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 kept = of_max ? most.w[i] : least.w[i], sent = of_max ? least.w[i] : most.w[i];
        box.w[i] = joined(kept, __shfl_xor_sync(FULL_WARP, sent, WARP / 2), of_max);
#pragma unroll
        for (int stride = WARP / 4; stride >= LANES; stride /= 2)
            box.w[i] = joined(box.w[i], __shfl_xor_sync(FULL_WARP, box.w[i], stride), of_max);
    }
    return box;
}

// Slots `first` to `end` of a KV head's page get the tokens from `token` on, a paired box is widened by them or set to
// theirs; a lane's piece of theirs is returned.
__device__ __forceinline__ Words write_page(const AppendArguments& arg, int kv_head, const int* table, u32 token,
                                            int first, int end) {
    Place own;
    const u32* keys = arg.keys + ((u64)kv_head * arg.keys_head_stride + own.piece) * 4;
    const u32* values = arg.values + ((u64)kv_head * arg.values_head_stride + own.piece) * 4;
    Words least = four(nothing(false)), most = four(nothing(true));
    u64 head = 0;
#pragma unroll 1
    for (int tile = first; tile < end; tile += LOADS * ROWS) {
        u32 physical = *table;  // asked for in each tile, with its tokens: known before, it would be waited for first
        Words new_keys[LOADS], new_values[LOADS];
        // Past the end the last token stands in: it changes no box.
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            u32 row = token + min(tile + i * ROWS + own.row, end - 1) - first;
            new_keys[i] = load_once(keys + (u64)row * arg.keys_token_stride);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            u32 row = token + min(tile + i * ROWS + own.row, end - 1) - first;
            new_values[i] = load_once(values + (u64)row * arg.values_token_stride);
        }
        head = head_of(arg, physical, kv_head);
        u64 cell = (head * arg.page_size + tile + own.row) * LANES + own.piece;
#pragma unroll
        for (int i = 0; i < LOADS; i++, cell += WARP) {
            if (tile + i * ROWS + own.row < end) {
                ((Words*)arg.k)[cell] = new_keys[i];
                ((Words*)arg.v)[cell] = new_values[i];
            }
            if (LAYOUT) {
                least = joined(least, box_of(new_keys[i], false), false);
                most = joined(most, box_of(new_keys[i], true), true);
            }
        }
    }
    Words box = LAYOUT ? over_lanes(least, most, own.of_max) : least;
    if (LAYOUT == 1 && !own.spare) {
        Words* where = (Words*)arg.summary + (head * 2 + own.of_max) * LANES + own.piece;
        *where = first > 0 ? joined(*where, box, own.of_max) : box;
    }
    return box;
}

// Of a word's two numbers those before number `count`.
__device__ __forceinline__ u32 numbers_before(int count) { return count > 1 ? ~0u : count > 0 ? 0xffffu : 0u; }

// Writes the boxes of a run into their rows. A row's first `num_older` numbers are of pages that hold older tokens and
// are widened: by an empty box where none is new.
__device__ __forceinline__ void write_rows(char* rows, const u32 (*boxes)[HEAD_DIM], int num_older) {
    constexpr int CHUNKS = RUN_PAGES / CHUNK;
    for (int i = threadIdx.x; i < CHUNKS * HEAD_DIM; i += THREADS) {
        int chunk = i % CHUNKS, word = i / CHUNKS;  // neighbours fill a row's sector
        bool of_max = word >= HEAD_DIM / 2;
        int older = num_older - chunk * CHUNK;
        u32 pairs[CHUNK];  // of two dims, a page each
#pragma unroll
        for (int page = 0; page < CHUNK; page++) pairs[page] = boxes[chunk * CHUNK + page][word];
#pragma unroll
        for (int dim = 0; dim < 2; dim++) {
            int row = (word % (HEAD_DIM / 2) * 2 + dim) * 2 + of_max;
            Words* where = (Words*)(rows + row * BLOCK_PAGES * 2) + chunk;
            Words numbers, old = older > 0 ? *where : zero_words();
#pragma unroll
            for (int j = 0; j < 4; j++) {  // two pages' numbers of the dim
                u32 fresh = __byte_perm(pairs[2 * j], pairs[2 * j + 1], dim ? 0x7632 : 0x5410);
                u32 widened = numbers_before(older - 2 * j);
                numbers.w[j] = (fresh & ~widened) | (joined(old.w[j], fresh, of_max) & widened);
            }
            *where = numbers;
        }
    }
}

// The least number of blocks lets the compiler spend registers: left alone, it writes some tokens before it asks for
// others.
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS) append_pages_kernel(AppendArguments arg) {
    __shared__ Words boxes[LAYOUT == 2 ? RUN_PAGES : 1][2 * LANES];
    int kv_head = blockIdx.x, request = blockIdx.y, own_length = load_lengths(arg, request);
    const int* blocks = arg.summary_table + (LAYOUT == 2 ? arg.summary_indptr[request] : 0);
    Lengths lengths(own_length);
    int num_new = lengths.end_new - lengths.first_new, num_pages = lengths.num_pages;
    if (num_new <= 0 || num_pages <= 0) return;
    int seq_len = (num_pages - 1) * arg.page_size + lengths.last_len, oldest = seq_len - num_new;
    int first_page = oldest / arg.page_size, num_older = first_page + (oldest % arg.page_size > 0);
    Place own;
#pragma unroll 1
    for (int run = first_page / RUN_PAGES + blockIdx.z; run * RUN_PAGES < num_pages; run += gridDim.z) {
        int origin = run * RUN_PAGES;
        u32 block = LAYOUT == 2 ? blocks[origin / BLOCK_PAGES] : 0;
#pragma unroll 1
        for (int i = threadIdx.x / WARP; i < RUN_PAGES; i += WARPS) {
            int position = (origin + i) * arg.page_size;
            int first = max(oldest - position, 0), end = min(seq_len - position, (int)arg.page_size);
            Words box = four(nothing(own.of_max));
            if (first < end) {
                const int* table = arg.block_table + lengths.start + origin + i;
                box = write_page(arg, kv_head, table, lengths.first_new + position + first - oldest, first, end);
            }
            if (LAYOUT == 2 && !own.spare) boxes[i][own.of_max * LANES + own.piece] = box;
        }
        if constexpr (LAYOUT == 2) {
            __syncthreads();
            u64 first_number = head_of(arg, block, kv_head) * (2 * HEAD_DIM * BLOCK_PAGES) + origin % BLOCK_PAGES;
            write_rows(arg.summary + first_number * 2, (const u32(*)[HEAD_DIM])boxes, num_older - origin);
            __syncthreads();
        }
    }
}

// Stage `score`, equations (2)-(4), for a paired and for a transposed summary, fp16 or bf16.
//
// U = relu(q) . max - relu(-q) . min. For finite boxes this is the sum over dims of the larger of q * min and
// q * max: one product of the box, min and max in a row, with min(q, 0) and max(q, 0) in a row.
//
// -DGROUP: query heads a KV head, at most 8.  -DWARPS: warps of a block.  -DTILE: pages a warp scores: 8, or 16 of a
// group.
#include "device.cuh"

struct ScoreArguments {
    const int* block_table;  // paired: physical page; transposed: physical block
    const int* kv_indptr;
    const char* summary;
    const Words* q;
    int table_size;
    int num_kv_heads;
    u32 q_batch_stride;  // in words of 16 bytes
    u32 q_head_stride;
    // Here ends a line of 64 bytes of the arguments: the next one costs a wait of its own.
    float* scores;
    long long scores_stride;  // elements
    const int* summary_indptr;  // transposed only
};

// Both halves of a word where `keep_negative`: the negative numbers of q, otherwise the others; 0 elsewhere.
__device__ __forceinline__ u32 signed_part(u32 word, bool keep_negative) {
    u32 negative = ((word >> 15) & 0x00010001u) * 0xffffu;
    return keep_negative ? word & negative : word & ~negative;
}

constexpr int BOX_BYTES = 4 * HEAD_DIM;

struct Tile {  // of one warp: TILE pages of one request and KV head
    int kv_head, request, first, start, num_pages;
    int physical;  // lane i below TILE: of page first + i; the others: where the request ends

    // Neighbouring warps take neighbouring heads of the same pages, whose boxes lie in a row.
    __device__ __forceinline__ explicit Tile(const ScoreArguments& arg) {
        int lane = threadIdx.x % WARP;
        kv_head = blockIdx.x * WARPS + threadIdx.x / WARP;
        request = blockIdx.z;
        first = blockIdx.y * TILE;
        // The first request starts at 0: its table is read at once, not after kv_indptr.
        start = request ? arg.kv_indptr[request] : 0;
        // One load asks for the table and for where the request ends: of two the compiler waits for one in between.
        int entry = start + first + lane;
        const int* word = lane < TILE ? arg.block_table + entry : arg.kv_indptr + request + 1;
        physical = lane >= TILE || entry < arg.table_size ? *word : 0;
        num_pages = __shfl_sync(FULL_WARP, physical, WARP - 1) - start;
    }
    __device__ __forceinline__ bool empty(const ScoreArguments& arg) const {
        return first >= num_pages || kv_head >= arg.num_kv_heads;
    }
    __device__ __forceinline__ bool there(int page) const { return first + page < num_pages; }
    __device__ __forceinline__ const char* box(const ScoreArguments& arg, int page) const {
        u32 place = __shfl_sync(FULL_WARP, physical, page);
        return arg.summary + (u64)(place * arg.num_kv_heads + kv_head) * BOX_BYTES;
    }
    __device__ __forceinline__ const Words* query(const ScoreArguments& arg, int head) const {
        return arg.q + (u64)request * arg.q_batch_stride + (u64)(kv_head * GROUP + head) * arg.q_head_stride;
    }
    __device__ __forceinline__ float* score(const ScoreArguments& arg, int head, int page) const {
        return arg.scores + (kv_head * GROUP + head) * arg.scores_stride + start + first + page;
    }
};

// The least number of blocks lets the compiler spend registers: left alone it asks for some boxes after products of
// others.
#define SCORE_BOUNDS __launch_bounds__(WARPS * 32, (GROUP == 1 ? 32 : 16) / WARPS)

#if GROUP == 1
// A load of a warp is one box in a row (or two, of 64 dims). As rows of a matrix product, lanes 4g.. hold row g;
// column g of the other operand is what faces them, so that the products wanted stand on the diagonal and the
// rest is ignored. One product takes two loads, rows 0-7 and 8-15.
extern "C" __global__ void SCORE_BOUNDS score_paired(ScoreArguments arg) {
    constexpr int LANES = HEAD_DIM / 4;      // of a box
    constexpr int PAGES = WARP / LANES;      // of one load
    constexpr int LOADS = TILE / PAGES;
    let_next_kernel_start();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, piece = lane % LANES, own_page = lane / LANES;
    Tile tile(arg);
    if (tile.empty(arg)) return;
    // No branch between the query and the boxes: what is made of the query would be waited for before them.
    Words query = load_once(tile.query(arg, 0) + piece % (LANES / 2));
    Words box[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int page = i * PAGES + own_page;
        const char* at = tile.box(arg, page) + 16 * piece;
        box[i] = tile.there(page) ? load_once(at) : zero_words();
    }
    bool of_min = piece < LANES / 2;
    u32 facing[4];  // min(q, 0) where this lane's piece of a box is of min, max(q, 0) where it is of max
#pragma unroll
    for (int i = 0; i < 4; i++) facing[i] = signed_part(query.w[i], of_min);
    float bounds[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i += 2) {
        const u32 *upper = box[i].w, *lower = box[i + 1].w;
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply(c, upper[0], lower[0], upper[1], lower[1], facing[0], facing[1]);
        multiply(c, upper[2], lower[2], upper[3], lower[3], facing[2], facing[3]);
        bool diagonal = t == g / 2;
        bounds[i] = diagonal ? (g % 2 ? c[1] : c[0]) : 0.0f;
        bounds[i + 1] = diagonal ? (g % 2 ? c[3] : c[2]) : 0.0f;
    }
    float bound = sum_over_lanes<LOADS, LANES>(bounds);
    int page = piece / (LANES / LOADS) * PAGES + own_page;
    if (piece % (LANES / LOADS) == 0 && tile.there(page)) *tile.score(arg, 0, page) = bound;
}
#else
// The boxes of 16 pages times the query heads of a group: lanes 4g.. load rows g and g + 8, of which lane t of four
// holds the pieces 64c + 16t bytes; column g is query head g in the same order of dims.
extern "C" __global__ void SCORE_BOUNDS score_paired(ScoreArguments arg) {
    static_assert(TILE == 16, "rows of one product");
    constexpr int PIECES = HEAD_DIM / 32;  // of a bound, a lane's
    let_next_kernel_start();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    Tile tile(arg);
    Words query[PIECES], upper[2 * PIECES], lower[2 * PIECES];
    if (tile.empty(arg)) return;
    const Words* own_query = tile.query(arg, g < GROUP ? g : 0) + t;
#pragma unroll
    for (int c = 0; c < PIECES; c++) query[c] = g < GROUP ? load_once(own_query + 4 * c) : zero_words();
    const char *upper_box = tile.box(arg, g) + 16 * t, *lower_box = tile.box(arg, g + 8) + 16 * t;
#pragma unroll
    for (int c = 0; c < 2 * PIECES; c++) upper[c] = tile.there(g) ? load_once(upper_box + 64 * c) : zero_words();
#pragma unroll
    for (int c = 0; c < 2 * PIECES; c++) lower[c] = tile.there(g + 8) ? load_once(lower_box + 64 * c) : zero_words();
    float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // two chains: half the latency
#pragma unroll
    for (int c = 0; c < 2 * PIECES; c++) {
        const u32 *u = upper[c].w, *l = lower[c].w;
        u32 facing[4];
#pragma unroll
        for (int i = 0; i < 4; i++) facing[i] = signed_part(query[c % PIECES].w[i], c < PIECES);
        multiply(even, u[0], l[0], u[1], l[1], facing[0], facing[1]);
        multiply(odd, u[2], l[2], u[3], l[3], facing[2], facing[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int head = 2 * t + i % 2, page = g + i / 2 * 8;
        if (head < GROUP && tile.there(page)) *tile.score(arg, head, page) = even[i] + odd[i];
    }
}
#endif

__device__ __forceinline__ bool is_negative(const u32* numbers, int i) {
    return numbers[i / 2] & (i % 2 ? 0x80000000u : 0x8000u);
}

// One block scores one block of 64 pages: the rows of a dim, min and max, hold one number a page. A lane sums
// eight pages over its ROWS dims, and reads only the rows that some query head's sign picks.
extern "C" __global__ void __launch_bounds__(128, GROUP == 1 ? 8 : 1) score_transposed(ScoreArguments arg) {
    constexpr int PAGES = 64;
    constexpr int ROWS = HEAD_DIM / 16;  // dims of a lane: four warps, of which four lanes share a piece of a row
    constexpr int ROW_BYTES = 2 * PAGES;
    __shared__ float sums[4][GROUP][PAGES];
    let_next_kernel_start();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int octet = lane % 8, first_dim = warp * (HEAD_DIM / 4) + lane / 8 * ROWS;
    int kv_head = blockIdx.y, request = blockIdx.z;
    int first_block = request ? arg.summary_indptr[request] : 0, start = request ? arg.kv_indptr[request] : 0;
    int entry = first_block + blockIdx.x;
    // One load asks for both, of lanes in turn.
    const int* word = lane % 2 ? arg.kv_indptr + request + 1 : arg.block_table + entry;
    int loaded = lane % 2 || entry < arg.table_size ? *word : 0;
    const Words* q = arg.q + (u64)request * arg.q_batch_stride + (u64)(kv_head * GROUP) * arg.q_head_stride;
    u32 query[GROUP][ROWS / 2];
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < ROWS / 2; i += 2) {
            uint2 two = ((const uint2*)(q + (u64)h * arg.q_head_stride))[first_dim / 4 + i / 2];
            query[h][i] = two.x;
            query[h][i + 1] = two.y;
        }
    u32 physical = __shfl_sync(FULL_WARP, loaded, 0);
    int num_pages = __shfl_sync(FULL_WARP, loaded, 1) - start, page = blockIdx.x * PAGES;
    bool there = page < num_pages;  // a branch here would be taken before the query is asked for
    const char* rows = arg.summary + (u64)(physical * arg.num_kv_heads + kv_head) * (HEAD_DIM * 2 * ROW_BYTES) +
                       first_dim * (2 * ROW_BYTES) + 16 * octet;
    Words lower[ROWS], upper[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool negative = false, positive = false;
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            bool sign = is_negative(query[h], i);
            negative |= there && sign;
            positive |= there && !sign;
        }
        const char* row = rows + 2 * i * ROW_BYTES;
        if (GROUP == 1) {
            upper[i] = there ? load_once(row + (negative ? 0 : ROW_BYTES)) : zero_words();
        } else {
            lower[i] = negative ? load_once(row) : zero_words();
            upper[i] = positive ? load_once(row + ROW_BYTES) : zero_words();
        }
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float sum[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float factor = i % 2 ? high_number(query[h][i / 2]) : low_number(query[h][i / 2]);
            bool sign = GROUP > 1 && is_negative(query[h], i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 word = sign ? lower[i].w[k] : upper[i].w[k];
                sum[2 * k] += factor * low_number(word);
                sum[2 * k + 1] += factor * high_number(word);
            }
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            sum[k] += __shfl_xor_sync(FULL_WARP, sum[k], 8);
            sum[k] += __shfl_xor_sync(FULL_WARP, sum[k], 16);
        }
        if (lane < 8) {
#pragma unroll
            for (int k = 0; k < 8; k++) sums[warp][h][8 * octet + k] = sum[k];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * PAGES; i += 128) {
        int h = i / PAGES, slot = i % PAGES;
        if (page + slot < num_pages) {
            float total = (sums[0][h][slot] + sums[1][h][slot]) + (sums[2][h][slot] + sums[3][h][slot]);
            arg.scores[(kv_head * GROUP + h) * arg.scores_stride + start + page + slot] = total;
        }
    }
}

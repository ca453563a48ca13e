// Stage `score`, equations (2)-(4), for a paired and for a transposed summary, fp16 or bf16.
//
// U = relu(q) . max - relu(-q) . min. For finite boxes this is the sum over dims of the larger of q * min and
// q * max: one product of the box, min and max in a row, with min(q, 0) and max(q, 0) in a row.
//
// -DGROUP: query heads a KV head, at most 8.  -DWARPS: warps of a block.  -DTILE: pages a warp scores at a time.
#include "device.cuh"

struct ScoreArguments {
    const char* q;
    const char* summary;
    const int* block_table;    // paired: physical page; transposed: physical block
    const int* kv_indptr;
    const int* summary_indptr;  // transposed only
    float* scores;
    long long q_batch_stride;  // elements
    long long q_head_stride;
    long long scores_stride;
    int num_pool_pages;
    int table_size;
};

// Both halves of a word where `keep_negative`: the negative numbers of q, otherwise the others; 0 elsewhere.
__device__ __forceinline__ u32 signed_part(u32 word, bool keep_negative) {
    u32 negative = ((word >> 15) & 0x00010001u) * 0xffffu;
    return keep_negative ? word & negative : word & ~negative;
}

// One warp scores TILE pages of one request and KV head for all query heads of a group.
//
// A load of a warp is one box in a row (or two, of 64 dims). As rows of a matrix product, lanes 4g.. hold row g;
// column g of the other operand is what faces them, so that the products wanted stand on the diagonal and the
// rest is ignored. One product takes two loads, rows 0-7 and 8-15.
extern "C" __global__ void __launch_bounds__(WARPS * 32) score_paired(ScoreArguments arg) {
    constexpr int LANES = HEAD_DIM / 4;      // of a box
    constexpr int PAGES = WARP / LANES;      // of one load
    constexpr int LOADS = TILE / PAGES;
    constexpr int BOX_BYTES = 4 * HEAD_DIM;
    let_next_kernel_start();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int piece = lane % LANES, own_page = lane / LANES;
    int kv_head = blockIdx.y, request = blockIdx.z;
    int first = (blockIdx.x * WARPS + warp) * TILE;
    // The first request starts at 0: its table is read at once, not after kv_indptr.
    int start = request ? arg.kv_indptr[request] : 0;
    int limit = arg.table_size - start;
    const int* table = arg.block_table + start;
    int physical = lane < TILE && first + lane < limit ? table[first + lane] : 0;
    int num_pages = arg.kv_indptr[request + 1] - start;

    u32 facing[GROUP][4];  // min(q, 0) where this lane's piece of a box is of min, max(q, 0) where it is of max
    const char* q = arg.q + 2 * (request * arg.q_batch_stride + kv_head * GROUP * arg.q_head_stride);
    bool of_min = piece < LANES / 2;
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        Words numbers = load_once(q + 2 * h * arg.q_head_stride + 16 * (piece % (LANES / 2)));
#pragma unroll
        for (int i = 0; i < 4; i++) facing[h][i] = signed_part(numbers.w[i], of_min);
    }
    const char* boxes = arg.summary + (long long)kv_head * arg.num_pool_pages * BOX_BYTES + 16 * piece;
    float* scores = arg.scores + (long long)kv_head * GROUP * arg.scores_stride + start;
    if (first >= num_pages) return;
    Words box[LOADS];
    if (first + TILE <= num_pages) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int page = __shfl_sync(FULL_WARP, physical, i * PAGES + own_page);
            box[i] = load_once(boxes + (long long)page * BOX_BYTES);
        }
    } else {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int page = __shfl_sync(FULL_WARP, physical, i * PAGES + own_page);
            bool there = first + i * PAGES + own_page < num_pages;
            box[i] = there ? load_once(boxes + (long long)page * BOX_BYTES) : zero_words();
        }
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float bounds[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i += 2) {
            float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            multiply(c, box[i].w[0], box[i + 1].w[0], box[i].w[1], box[i + 1].w[1], facing[h][0], facing[h][1]);
            multiply(c, box[i].w[2], box[i + 1].w[2], box[i].w[3], box[i + 1].w[3], facing[h][2], facing[h][3]);
            bool diagonal = t == g / 2;
            bounds[i] = diagonal ? (g % 2 ? c[1] : c[0]) : 0.0f;
            bounds[i + 1] = diagonal ? (g % 2 ? c[3] : c[2]) : 0.0f;
        }
        float bound = sum_over_lanes<LOADS, LANES>(bounds);
        int page = first + piece / (LANES / LOADS) * PAGES + own_page;
        if (piece % (LANES / LOADS) == 0 && page < num_pages) scores[h * arg.scores_stride + page] = bound;
    }
}

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
    int first_block = request ? arg.summary_indptr[request] : 0;
    int entry = first_block + blockIdx.x;
    int physical = entry < arg.table_size ? arg.block_table[entry] : 0;
    const char* q = arg.q + 2 * (request * arg.q_batch_stride + kv_head * GROUP * arg.q_head_stride + first_dim);
    u32 query[GROUP][ROWS / 2];
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < ROWS / 2; i += 2) {
            uint2 two = *(const uint2*)(q + 2 * h * arg.q_head_stride + 4 * i);
            query[h][i] = two.x;
            query[h][i + 1] = two.y;
        }
    int start = arg.kv_indptr[request];
    int num_pages = arg.kv_indptr[request + 1] - start;
    int page = blockIdx.x * PAGES;
    if (page >= num_pages) return;
    const char* rows = arg.summary +
                       (((long long)physical * gridDim.y + kv_head) * HEAD_DIM + first_dim) * (2 * ROW_BYTES) +
                       16 * octet;
    Words lower[ROWS], upper[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool negative = false, positive = false;
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            bool sign = is_negative(query[h], i);
            negative |= sign;
            positive |= !sign;
        }
        const char* row = rows + 2 * i * ROW_BYTES;
        if (GROUP == 1) {
            upper[i] = load_once(row + (negative ? 0 : ROW_BYTES));
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

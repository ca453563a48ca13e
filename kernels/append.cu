// Stages `append` and `append_kv` of few new tokens a request: K and V into their pages, boxes widened by the keys,
// equations (1), (8) and (14). A warp writes one KV head of one request.
//
// Of the last page it is known beside the lengths which one it is, so that one new token waits twice: for lengths, then
// for the old box.
//
// -DLAYOUT: of the summary, 0 (left alone), 1 (paired) or 2 (transposed).
#include "device.cuh"

constexpr int LANES = HEAD_DIM / 8;  // of a vector: 16 bytes each
constexpr int BLOCK_PAGES = 64;      // of a transposed summary
static_assert(2 * LANES <= WARP, "a lane for each piece of min and of max");

struct AppendArguments {
    const int* new_indptr;
    const int* kv_indptr;
    const int* last;  // rows of last_stride: tokens of each request's last page, that page, its summary block
    const Words* keys;
    const Words* values;
    u32 last_stride;
    unsigned short page_size;
    unsigned short num_kv_heads;
    // Here ends a line of 64 bytes of the arguments: the next one costs a wait of its own.
    Words* k;
    Words* v;
    char* summary;
    u32 keys_token_stride;  // in words of 16 bytes
    u32 keys_head_stride;
    u32 values_token_stride;
    u32 values_head_stride;
    const int* block_table;
    const int* summary_table;
    const int* summary_indptr;
};

struct Lengths {  // of one request
    int first_new, end_new, start, num_pages, last_len, last_page, last_block;

    // One load asks for all, of a lane each.
    __device__ __forceinline__ Lengths(const AppendArguments& arg, int request) {
        int lane = threadIdx.x % WARP, row = max(0, min(lane - 4, 2));
        const int* word = lane < 2 ? arg.new_indptr + request + lane : arg.kv_indptr + request + lane % 2;
        if (lane >= 4) word = arg.last + row * arg.last_stride + request;
        int own = *word;
        first_new = __shfl_sync(FULL_WARP, own, 0);
        end_new = __shfl_sync(FULL_WARP, own, 1);
        start = __shfl_sync(FULL_WARP, own, 2);
        num_pages = __shfl_sync(FULL_WARP, own, 3) - start;
        last_len = __shfl_sync(FULL_WARP, own, 4);
        last_page = __shfl_sync(FULL_WARP, own, 5);
        last_block = __shfl_sync(FULL_WARP, own, 6);
    }
};

// A lane's piece of a page's box: of min (lanes below LANES) or of max.
struct Box {
    char* where;
    bool of_max;

    __device__ __forceinline__ Box(const AppendArguments& arg, const Lengths& lengths, int request, int kv_head,
                                   int page, u32 physical) {
        int lane = threadIdx.x % WARP, piece = lane % LANES;
        of_max = lane / LANES % 2;
        if (LAYOUT == 1) {
            u64 row = ((u64)physical * arg.num_kv_heads + kv_head) * 2 + of_max;
            where = arg.summary + (row * LANES + piece) * sizeof(Words);
        } else {
            int number = page / BLOCK_PAGES;
            bool is_last = number == (lengths.num_pages - 1) / BLOCK_PAGES;
            u32 block = is_last ? lengths.last_block : arg.summary_table[arg.summary_indptr[request] + number];
            u64 row = (((u64)block * arg.num_kv_heads + kv_head) * HEAD_DIM + 8 * piece) * 2 + of_max;
            where = arg.summary + (row * BLOCK_PAGES + page % BLOCK_PAGES) * 2;
        }
    }
    __device__ __forceinline__ unsigned short* number(int i) const {  // transposed: of dim i of the piece
        return (unsigned short*)where + i * 2 * BLOCK_PAGES;
    }
    __device__ __forceinline__ Words load() const {
        if (LAYOUT == 1) return *(const Words*)where;
        Words box;
#pragma unroll
        for (int i = 0; i < 4; i++) box.w[i] = *number(2 * i) | (u32)*number(2 * i + 1) << 16;
        return box;
    }
    __device__ __forceinline__ void store(const Words& box) const {
        if (LAYOUT == 1) {
            *(Words*)where = box;
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) *number(i) = (unsigned short)(box.w[i / 2] >> (i % 2 ? 16 : 0));
    }
    __device__ __forceinline__ Words widened(Words box, const Words& key) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            box.w[i] = of_max ? larger_pairs(box.w[i], key.w[i]) : smaller_pairs(box.w[i], key.w[i]);
        return box;
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32) append_kernel(AppendArguments arg) {
    int lane = threadIdx.x % WARP, piece = lane % LANES;
    int kv_head = blockIdx.x * WARPS + threadIdx.x / WARP, request = blockIdx.y;
    if (kv_head >= arg.num_kv_heads) return;
    // The first request's new tokens start at row 0: its first key and value are asked for before the lengths are there.
    const Words* keys = arg.keys + (u64)kv_head * arg.keys_head_stride + piece;
    const Words* values = arg.values + (u64)kv_head * arg.values_head_stride + piece;
    Words key, value;
    if (request == 0) {
        key = load_once(keys);
        value = load_once(values);
    }
    Lengths lengths(arg, request);
    int num_new = lengths.end_new - lengths.first_new;
    if (num_new <= 0 || lengths.num_pages <= 0) return;
    int page = lengths.num_pages - 1, slot = lengths.last_len - num_new;
#pragma unroll 1
    for (; slot < 0; slot += arg.page_size) page--;  // seldom at all
    keys += (u64)lengths.first_new * arg.keys_token_stride;
    values += (u64)lengths.first_new * arg.values_token_stride;
#pragma unroll 1
    for (int token = 0; token < num_new; page++, slot = 0) {
        bool is_last = page == lengths.num_pages - 1;
        u32 physical = is_last ? lengths.last_page : arg.block_table[lengths.start + page];
        int end = min(token + arg.page_size - slot, num_new);
        Box place(arg, lengths, request, kv_head, page, physical);
        bool in_use = slot > 0;
        Words box;
        if (LAYOUT && in_use) box = place.load();
        Words* k = arg.k + (((u64)physical * arg.num_kv_heads + kv_head) * arg.page_size + slot) * LANES + piece;
        Words* v = arg.v + (k - arg.k);
#pragma unroll 1
        for (; token < end; token++, k += LANES, v += LANES) {
            if (request || token) {
                key = load_once(keys + (u64)token * arg.keys_token_stride);
                value = load_once(values + (u64)token * arg.values_token_stride);
            }
            if (lane < LANES) *k = key;
            if (lane / LANES == 1) *v = value;
            if (LAYOUT) box = in_use ? place.widened(box, key) : key;
            in_use = true;
        }
        if (LAYOUT && lane < 2 * LANES) place.store(box);
    }
}

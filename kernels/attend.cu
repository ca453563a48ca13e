// Stage `attend`, and `select` with `attend` in one launch: exact attention of each query head over its own
// pages, equation (6), read in place. Block (split, query head, request).
//
// -DGROUP: query heads a KV head.  -DSELECTED_PAGES: room for page ids of one block.
// -DTABLE: room for a request's block table, for `select_attend`.
#define HEADS 1
#include "attention.cuh"
#include "select.cuh"

struct Loaded {  // of one block; nothing waits for it before it is used
    Words query;
    int start, end, tail_len, first_id, end_id;
};

__device__ __forceinline__ Loaded load_task(const AttentionArguments& arg) {
    int head = blockIdx.y, request = blockIdx.z;
    // The first request starts at 0: what lies there is asked for before kv_indptr is read.
    return Loaded{load_query(arg.q + 2 * (request * arg.q_batch_stride + head * arg.q_head_stride)),
                  request ? arg.kv_indptr[request] : 0, arg.kv_indptr[request + 1], arg.last_page_len[request],
                  arg.select_indptr[request], arg.select_indptr[request + 1]};
}

struct Task {
    Words query;  // as loaded: it is held while a selection is made
    Line line;
    int first_id, wanted, active;  // active: splits that have any pages
};

__device__ __forceinline__ Task task_of(const AttentionArguments& arg, const Loaded& loaded) {
    Task task;
    task.query = loaded.query;
    task.line = Line{arg.block_table + loaded.start, loaded.end - loaded.start, loaded.tail_len,
                     (int)blockIdx.y / GROUP, arg.num_kv_heads};
    task.first_id = loaded.first_id;
    task.wanted = loaded.end_id - loaded.first_id;
    task.active = active_splits(task.wanted);
    return task;
}

// `page_of` tells the logical page of an entry.
template <bool WITH_VALUES = false, class PageOf>
__device__ __forceinline__ void attend(const AttentionArguments& arg, MergeMemory& memory, const Task& task, Held& held,
                                       const Share& share, const Turn& turn, const u32& launch, PageOf page_of) {
    int head = blockIdx.y, request = blockIdx.z;
    Query query;
    scale_query(query, task.query, arg.scale_log2);
    State state;
    start_state(state);
    walk<WITH_VALUES>(state, held, task.line, share, turn, page_of, query, arg.k, arg.v);
    Output output{arg.out + request * arg.out_batch_stride + head * arg.out_head_stride,
                  arg.lse + request * gridDim.y + head, arg.out_head_stride};
    finish(memory, state, arg, share, launch, output);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) attend_kernel(AttentionArguments arg) {
    __shared__ MergeMemory memory;
    __shared__ u32 launch;
    let_next_kernel_start();
    Task task = task_of(arg, load_task(arg));
    wait_for_previous_kernel();
    if (blockIdx.x >= task.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    const int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
    Held held;
    attend(arg, memory, task, held, share_of(task.wanted, blockIdx.x, task.active), equal_turn(), launch,
           [&](int entry) { return page_ids[entry]; });
}

// The first TABLE entries of a table of `limit`: this thread's are THREADS apart.
template <int COUNT>
__device__ __forceinline__ void load_table(int (&words)[COUNT], const int* table, int limit) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int page = threadIdx.x + i * THREADS;
        words[i] = page < limit ? table[page] : 0;
    }
}

template <int COUNT>
__device__ __forceinline__ void store_table(int (&table)[TABLE], const int (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int page = threadIdx.x + i * THREADS;
        if (page < TABLE) table[page] = words[i];
    }
}

// The K of a warp's first tile, asked for while the selection is being settled: of the pages that the warp's own scores
// make sure, the splits take the first ones, a tile each. None where a page is several tiles, nor before sm_90, where
// the registers would not hold it.
struct Early {
#if __CUDA_ARCH__ >= 900
    static constexpr int PAGES = PAGE_SIZE <= 16 ? 16 / PAGE_SIZE : 0;  // of a tile
#else
    static constexpr int PAGES = 0;
#endif
    static constexpr bool WITH_VALUES = SLOTS * PAGES <= 8;
    bool there[WARPS];
};

// The mask of those keys that the splits take: none, or a tile's for each split. `pages` are this split's.
__device__ __forceinline__ u32 choose_early(u32 sure, int active, int (&pages)[2]) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, all = active * Early::PAGES, seen = 0;
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        if (seen >= all) break;
        u32 holders = __ballot_sync(FULL_WARP, sure >> i & 1u);
        int place = seen + __popc(holders & ((1u << lane) - 1u));
        bool taken = (sure >> i & 1u) && place < all;
        mask |= taken ? 1u << i : 0u;
#pragma unroll
        for (int k = 0; k < Early::PAGES; k++) {
            u32 mine = __ballot_sync(FULL_WARP, taken && place == (int)blockIdx.x * Early::PAGES + k);
            if (mine) pages[k] = (warp * WARP + __ffs(mine) - 1) * SLOTS + i;
        }
        seen += __popc(holders);
    }
    return seen >= all ? mask : 0u;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) select_attend_kernel(AttentionArguments arg) {
    __shared__ union {
        SelectMemory select;
        MergeMemory merge;
    } memory;
    __shared__ int pages[SELECTED_PAGES];
    __shared__ int table[TABLE];
    __shared__ Early early;
    __shared__ u32 launch;
    let_next_kernel_start();
    clear(memory.select);
    // Asked for while the scores are still being written, waited for together with them.
    Loaded loaded = load_task(arg);
    int words[(TABLE + THREADS - 1) / THREADS];
    load_table(words, arg.block_table + loaded.start, arg.table_size - loaded.start);
    wait_for_previous_kernel();
    const float* scores = arg.scores + blockIdx.y * arg.scores_stride + loaded.start;
    float own[SLOTS];
    load_scores(own, scores, 0, arg.num_columns - loaded.start);
    Task task = task_of(arg, loaded);
    if (blockIdx.x >= task.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    store_table(table, words);
    if (task.line.num_pages <= TABLE) task.line.copy = table;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, num_skipped = 0;
    if (lane == 0) early.there[warp] = false;
    Held held;
    if (task.wanted > 0) {  // every split selects; the first one tells
        int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
        // No split gets more than its share so.
        bool may = (warp + 1) * Early::PAGES * task.active < task.wanted;
        auto sure = [&](u32 mask) {
            if constexpr (Early::PAGES == 0) return 0u;
            int own_pages[2] = {0, 0};
            u32 skip = may ? choose_early(mask, task.active, own_pages) : 0u;
            if (__any_sync(FULL_WARP, skip)) {
                held.load(Early::PAGES == 1 ? task.line.place(own_pages[0], 0)
                                            : task.line.place_of_two(own_pages[0], own_pages[1]),
                          arg.k);
                if (Early::WITH_VALUES) load_values(held.values, arg.v, held.place);
                if (lane == 0) early.there[warp] = true;
            }
            return skip;
        };
        u32 active = task.active;
        auto take = [&](int rank, int rest, int page) {
            if (rest >= 0 && (u32)rest % active == blockIdx.x) pages[(u32)rest / active] = page;
            if (blockIdx.x == 0) page_ids[rank] = page;
        };
        num_skipped = select_pages<(Early::PAGES > 0)>(own, scores, task.line.num_pages, task.wanted, arg.take_tail,
                                                          memory.select, sure, take);
    }
    __syncthreads();
    // Warps without a tile come first.
    u32 idle = ~__ballot_sync(FULL_WARP, lane >= WARPS || early.there[lane]), below = (1u << warp) - 1u;
    int num_idle = __popc(idle), rest = task.wanted - num_skipped;
    Share share{0, (rest + task.active - 1 - (int)blockIdx.x) / task.active, task.active};
    attend<Early::WITH_VALUES>(arg, memory.merge, task, held, share, Turn{__popc(idle & below), num_idle + warp}, launch,
           [&](int entry) { return pages[entry]; });
}

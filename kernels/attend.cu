// Stage `attend`, and `select` with `attend` in one launch: exact attention of each query head over its own
// pages, equation (6), read in place. Block (split, query head, request).
//
// -DGROUP: query heads a KV head.  -DSELECTED_PAGES: room for page ids of one block.
// -DTABLE: for `select_attend`, room for the block table of every request, or 1 where there is none.
#define HEADS 1
#include "attention.cuh"
#include "select.cuh"

struct Loaded {  // of one block; nothing waits for it before it is used
    int start, end, tail_len, first_id, end_id;
};

__device__ __forceinline__ Loaded load_task(const AttentionArguments& arg) {
    int request = blockIdx.z;
    // The first request starts at 0: what lies there is asked for before kv_indptr is read.
    return Loaded{request ? arg.kv_indptr[request] : 0, arg.kv_indptr[request + 1], arg.last_page_len[request],
                  arg.select_indptr[request], arg.select_indptr[request + 1]};
}

struct Task {
    Line line;
    int first_id, wanted, active;  // active: splits that have any pages
};

__device__ __forceinline__ Task task_of(const AttentionArguments& arg, const Loaded& loaded) {
    Task task;
    task.line = Line{arg.block_table + loaded.start, loaded.end - loaded.start, loaded.tail_len,
                     (int)blockIdx.y / GROUP, arg.num_kv_heads};
    task.first_id = loaded.first_id;
    task.wanted = loaded.end_id - loaded.first_id;
    task.active = active_splits(arg.num_splits, task.wanted);
    return task;
}

// `page_of`, `query_of` and `meanwhile`: see walk.
template <bool WITH_VALUES = false, class PageOf, class QueryOf, class Meanwhile>
__device__ __forceinline__ void attend(const AttentionArguments& arg, MergeMemory& memory, const Task& task, Held& held,
                                       const Share& share, const Turn& turn, const u32& launch, PageOf page_of,
                                       QueryOf query_of, Meanwhile meanwhile) {
    int head = blockIdx.y, request = blockIdx.z;
    State state;
    start_state(state);
    walk<WITH_VALUES>(state, held, task.line, share, turn, page_of, query_of, meanwhile, arg.k, arg.v);
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
    const int* page_ids = arg.page_ids + (u64)blockIdx.y * arg.page_ids_stride + task.first_id;
    Held held;
    attend(
        arg, memory, task, held, share_of(task.wanted, blockIdx.x, task.active), equal_turn(threadIdx.x / WARP, WARPS),
        launch,
        [&](int entry) { return page_ids[entry]; },
        [&](Query& query) { load_query(query, query_at(arg, blockIdx.z, blockIdx.y), 0, arg.scale_log2); },
        [&] { load_launch(launch, arg); });
}

// Begins to copy the first TABLE entries of a block table of `limit`.
__device__ __forceinline__ void copy_table(int (&copy)[TABLE], const int* table, int limit) {
#pragma unroll 1
    for (int page = threadIdx.x; page < min(TABLE, limit); page += THREADS) copy_word(&copy[page], &table[page]);
}

// A warp's first tile, asked for while the selection is being settled: of the pages that the warp's own scores make
// sure, the splits take the first ones, a tile each; its V too, where there are registers for it. None where a page is
// several tiles, nor before sm_90, where the registers would not hold it.
struct Early {
#if __CUDA_ARCH__ >= 900
    static constexpr int PAGES = PAGE_SIZE <= 16 ? 16 / PAGE_SIZE : 0;  // of a tile
#else
    static constexpr int PAGES = 0;
#endif
    static constexpr bool WITH_VALUES = SLOTS * PAGES <= 16;
    bool there[WARPS];
};

// The mask of those keys that the splits take: none, or a tile's for each split, at most one key of a lane. `pages` are
// this split's.
__device__ __forceinline__ u32 choose_early(u32 sure, int active, int (&pages)[2]) {
    int lane = threadIdx.x % WARP, all = active * Early::PAGES;
    u32 holders = __ballot_sync(FULL_WARP, sure);
    if (__popc(holders) < all) return 0u;
    int place = __popc(holders & ((1u << lane) - 1u)), page = first_page(0) + __ffs(sure) - 1;
#pragma unroll
    for (int k = 0; k < Early::PAGES; k++) {
        u32 mine = __ballot_sync(FULL_WARP, sure && place == (int)blockIdx.x * Early::PAGES + k);
        pages[k] = __shfl_sync(FULL_WARP, page, __ffs(mine) - 1);
    }
    return place < all ? sure & (0u - sure) : 0u;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) select_attend_kernel(AttentionArguments arg) {
    __shared__ union {
        SelectMemory select;
        MergeMemory merge;
    } memory;
    __shared__ int pages[SELECTED_PAGES];
    __shared__ int table[TABLE];
    __shared__ Early early;
    __shared__ Words query_words[LANES];
    __shared__ u32 launch;
    let_next_kernel_start();
    clear(memory.select);
    // Asked for while the scores are still being written.
    Loaded loaded = load_task(arg);
    if (threadIdx.x < LANES) copy_words(&query_words[threadIdx.x], query_at(arg, blockIdx.z, blockIdx.y) + threadIdx.x);
    if (threadIdx.x == WARP) copy_word(&launch, &arg.scratch[program_of_block()]);
    if (TABLE > 1) copy_table(table, arg.block_table + loaded.start, arg.table_size - loaded.start);
    wait_for_previous_kernel();
    const float* scores = arg.scores + (u64)blockIdx.y * arg.scores_stride + loaded.start;
    Task task = task_of(arg, loaded);
    wait_for_copies();
    if (blockIdx.x >= task.active) return;
    if (TABLE > 1) task.line.table = table;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, num_skipped = 0;
    if (lane == 0) early.there[warp] = false;
    Held held;
    int* page_ids = arg.page_ids + (u64)blockIdx.y * arg.page_ids_stride + task.first_id;
    // Pages go to the splits in turn. A division by the inverse is exact here: a rank times `active` is below 2^32.
    u32 active = task.active, inverse = 0xffffffffu / active + 1u;
    auto round_of = [&](int rank) { return active > 1 ? (int)__umulhi(rank, inverse) : rank; };
    Picked picked;
    if (task.wanted > 0) {  // every split selects; the first one tells
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
        auto take = [&](int rank, int rest, int page) {
            int round = round_of(rest);
            if (rest >= 0 && rest - round * active == blockIdx.x) pages[round] = page;
            if (REREAD && page >= CHUNK && blockIdx.x == 0) page_ids[rank] = page;
        };
        num_skipped = select_pages<(Early::PAGES > 0)>(
            [&](float(&own)[SLOTS]) { load_scores(own, scores, 0, task.line.num_pages); }, scores, task.line.num_pages,
            task.wanted, arg.take_tail, memory.select, picked, sure, take);
    }
    __syncthreads();
    // Warps without a tile come first.
    u32 idle = ~__ballot_sync(FULL_WARP, lane >= WARPS || early.there[lane]), below = (1u << warp) - 1u;
    int num_idle = __popc(idle), rest = task.wanted - num_skipped;
    Share share{0, round_of(rest + task.active - 1 - (int)blockIdx.x), task.active};
    auto query_of = [&](Query& query) { scale_query(query, query_words[lane % LANES], arg.scale_log2); };
    // Behind the loads of the first tile: what follows a store in front of them would wait until they have arrived.
    auto tell = [&] {
        if (blockIdx.x > 0) return;
        int rank = picked.rank;
        for (u32 left = picked.mask; left; left &= left - 1u) page_ids[rank++] = first_page(0) + __ffs(left) - 1;
        if (arg.take_tail && task.wanted > 0 && threadIdx.x == 0) page_ids[task.wanted - 1] = task.line.num_pages - 1;
    };
    Turn turn{__popc(idle & below), num_idle + warp, WARPS};
    attend<Early::WITH_VALUES>(
        arg, memory.merge, task, held, share, turn, launch, [&](int entry) { return pages[entry]; }, query_of, tell);
}

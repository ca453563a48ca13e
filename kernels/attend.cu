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
    Query query;
    Line line;
    Share share;
    int first_id, wanted;
};

__device__ __forceinline__ Task task_of(const AttentionArguments& arg, const Loaded& loaded) {
    Task task;
    scale_query(task.query, loaded.query, arg.scale_log2);
    task.line = Line{arg.block_table + loaded.start, loaded.end - loaded.start, loaded.tail_len,
                     (int)blockIdx.y / GROUP, arg.num_kv_heads};
    task.first_id = loaded.first_id;
    task.wanted = loaded.end_id - loaded.first_id;
    task.share = share_of(task.wanted, blockIdx.x, gridDim.x);
    return task;
}

// `page_of` tells the logical page of an entry.
template <class PageOf>
__device__ __forceinline__ void attend(const AttentionArguments& arg, MergeMemory& memory, const Task& task,
                                       const u32& launch, PageOf page_of) {
    int head = blockIdx.y, request = blockIdx.z;
    State state;
    start_state(state);
    walk(state, task.line, task.share, page_of, task.query, arg.k, arg.v);
    Output output{arg.out + request * arg.out_batch_stride + head * arg.out_head_stride,
                  arg.lse + request * gridDim.y + head, arg.out_head_stride};
    finish(memory, state, arg, task.share, launch, output);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) attend_kernel(AttentionArguments arg) {
    __shared__ MergeMemory memory;
    __shared__ u32 launch;
    let_next_kernel_start();
    Task task = task_of(arg, load_task(arg));
    wait_for_previous_kernel();
    if (blockIdx.x >= task.share.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    const int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
    attend(arg, memory, task, launch, [&](int entry) { return page_ids[entry]; });
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

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) select_attend_kernel(AttentionArguments arg) {
    __shared__ union {
        SelectMemory select;
        MergeMemory merge;
    } memory;
    __shared__ int pages[SELECTED_PAGES];
    __shared__ int table[TABLE];
    __shared__ u32 launch;
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
    if (blockIdx.x >= task.share.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    store_table(table, words);
    int first = task.share.first, end = task.share.end;
    if (task.wanted > 0) {  // every split selects; the first one tells
        int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
        auto take = [&](int rank, int page) {
            if (rank >= first && rank < end) pages[rank - first] = page;
            if (blockIdx.x == 0) page_ids[rank] = page;
        };
        select_pages(own, scores, task.line.num_pages, task.wanted, arg.take_tail, memory.select, take);
    }
    __syncthreads();
    if (task.line.num_pages <= TABLE) task.line.copy = table;
    attend(arg, memory.merge, task, launch, [&](int entry) { return pages[entry - first]; });
}

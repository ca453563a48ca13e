// Stage `attend`, and `select` with `attend` in one launch: exact attention of each query head over its own
// pages, equation (6), read in place. Block (split, query head, request).
//
// -DGROUP: query heads a KV head.  -DSELECTED_PAGES: room for page ids of one block.
// -DTABLE: room for a request's block table, for `select_attend`.
#define HEADS 1
#include "attention.cuh"
#include "select.cuh"

struct Task {  // of one block; all of it is known before the kernel in front has ended
    Query query;
    Line line;
    Share share;
    int first_id, wanted;
};

__device__ __forceinline__ Task task_of(const AttentionArguments& arg) {
    int head = blockIdx.y, request = blockIdx.z;
    Task task;
    load_query(task.query, arg.q + 2 * (request * arg.q_batch_stride + head * arg.q_head_stride), 0, arg.scale_log2);
    // The first request starts at 0: no need to wait for kv_indptr before its table is read.
    int start = request ? arg.kv_indptr[request] : 0;
    task.line = Line{arg.block_table + start, arg.kv_indptr[request + 1] - start, arg.last_page_len[request],
                     head / GROUP, arg.num_kv_heads};
    task.first_id = arg.select_indptr[request];
    task.wanted = arg.select_indptr[request + 1] - task.first_id;
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
    Task task = task_of(arg);
    wait_for_previous_kernel();
    if (blockIdx.x >= task.share.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    const int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
    attend(arg, memory, task, launch, [&](int entry) { return page_ids[entry]; });
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
    Task task = task_of(arg);
    int copied = min(task.line.num_pages, TABLE);  // while the scores are still being written
    for (int page = threadIdx.x; page < copied; page += THREADS) table[page] = task.line.table[page];
    wait_for_previous_kernel();
    if (blockIdx.x >= task.share.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    int first = task.share.first, end = task.share.end;
    if (task.wanted > 0) {  // every split selects; the first one tells
        int* page_ids = arg.page_ids + blockIdx.y * arg.page_ids_stride + task.first_id;
        const float* scores = arg.scores + blockIdx.y * arg.scores_stride + (task.line.table - arg.block_table);
        auto take = [&](int rank, int page) {
            if (rank >= first && rank < end) pages[rank - first] = page;
            if (blockIdx.x == 0) page_ids[rank] = page;
        };
        float own[SLOTS];
        load_scores(own, scores, 0, task.line.num_pages);
        select_pages(own, scores, task.line.num_pages, task.wanted, arg.take_tail, memory.select, take);
    }
    __syncthreads();
    if (task.line.num_pages <= TABLE) task.line.copy = table;
    attend(arg, memory.merge, task, launch, [&](int entry) { return pages[entry - first]; });
}

// Stage `dense`: attention over all pages, K and V read once a KV head, equation (9).
// Block (split, KV head, request) with the whole group of query heads.
#define HEADS GROUP
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32, GROUP == 1 ? 16 / WARPS : 1)
    dense_kernel(AttentionArguments arg) {
    __shared__ MergeMemory memory;
    __shared__ u32 launch;
    let_next_kernel_start();
    int kv_head = blockIdx.y, request = blockIdx.z, head = kv_head * GROUP;
    Query query;
    load_query(query, arg.q + 2 * (request * arg.q_batch_stride + head * arg.q_head_stride), arg.q_head_stride,
               arg.scale_log2);
    // The first request starts at 0: no need to wait for kv_indptr before its table is read.
    int start = request ? arg.kv_indptr[request] : 0;
    Line line{arg.block_table + start, arg.kv_indptr[request + 1] - start, arg.last_page_len[request], kv_head,
              arg.num_kv_heads};
    Share share = share_of(line.num_pages, blockIdx.x, active_splits(line.num_pages));
    if (blockIdx.x >= share.active) return;
    if (threadIdx.x == WARP) launch = arg.scratch[blockIdx.z * gridDim.y + blockIdx.y];
    State state;
    start_state(state);
    Held held;
    walk(state, held, line, share, equal_turn(), [](int entry) { return entry; }, query, arg.k, arg.v);
    Output output{arg.out + request * arg.out_batch_stride + head * arg.out_head_stride,
                  arg.lse + request * gridDim.y * GROUP + head, arg.out_head_stride};
    finish(memory, state, arg, share, launch, output);
}

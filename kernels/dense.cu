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
    // One load asks for where the request starts, where it ends, and for the length of its last page: a lane each.
    int lane = threadIdx.x % WARP;
    int word = *(lane < 2 ? arg.kv_indptr + request + lane : arg.last_page_len + request);
    int start = __shfl_sync(FULL_WARP, word, 0), end = __shfl_sync(FULL_WARP, word, 1);
    Line line{arg.block_table + start, end - start, __shfl_sync(FULL_WARP, word, 2), kv_head, arg.num_kv_heads};
    Share share = share_of(line.num_pages, blockIdx.x, active_splits(arg.num_splits, line.num_pages));
    if (blockIdx.x >= share.active) return;
    State state;
    start_state(state);
    Held held;
    walk(
        state, held, line, share, equal_turn(), [](int entry) { return entry; },
        [&](Query& query) { load_query(query, query_at(arg, request, head), arg.q_head_stride, arg.scale_log2); },
        [&] { load_launch(launch, arg); }, arg.k, arg.v);
    Output output{arg.out + request * arg.out_batch_stride + head * arg.out_head_stride,
                  arg.lse + request * gridDim.y * GROUP + head, arg.out_head_stride};
    finish(memory, state, arg, share, launch, output);
}

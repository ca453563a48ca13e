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
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    auto entry_itself = [](int entry) { return entry; };
    // One load asks for where the request starts, where it ends, and for the length of its last page: a lane each.
    int word = *(lane < 2 ? arg.kv_indptr + request + lane : arg.last_page_len + request);
    // The splits take tiles in turn, so that a warp's first one depends on no length: the first request's, which starts
    // at 0, is asked for before the lengths are there, whole. Should the request be shorter by now, it is not used.
    Held held;
    int early_tile = warp * arg.num_splits + blockIdx.x;
    int early_tiles = PAGE_SIZE < 16 ? arg.early_pages / 2 : arg.early_pages * TILES_A_PAGE;
    if (request == 0 && early_tile < early_tiles) {
        Line early{arg.block_table, arg.early_pages, PAGE_SIZE, kv_head, arg.num_kv_heads};
        held.load(early.place(early_tile, 0, arg.early_pages, entry_itself), arg.k);
    }
    int start = __shfl_sync(FULL_WARP, word, 0), end = __shfl_sync(FULL_WARP, word, 1);
    Line line{arg.block_table + start, end - start, __shfl_sync(FULL_WARP, word, 2), kv_head, arg.num_kv_heads};
    Share share{0, line.num_pages, active_splits(arg.num_splits, line.num_pages)};
    if (blockIdx.x >= share.active) return;
    Turn turn = equal_turn(warp * share.active + blockIdx.x, WARPS * share.active);
    held.there &= turn.first == early_tile && turn.first < tiles_of(share);
    if (held.there) held.place = line.place(turn.first, 0, line.num_pages, entry_itself);
    State state;
    start_state(state);
    walk(
        state, held, line, share, turn, entry_itself,
        [&](Query& query) { load_query(query, query_at(arg, request, head), arg.q_head_stride, arg.scale_log2); },
        [&] { load_launch(launch, arg); }, arg.k, arg.v);
    Output output{arg.out + request * arg.out_batch_stride + head * arg.out_head_stride,
                  arg.lse + request * gridDim.y * GROUP + head, arg.out_head_stride};
    finish(memory, state, arg, share, launch, output);
}

// Stage `select`: the K best pages of each query head, one block for each (query head, request).
#include "select.cuh"

struct SelectArguments {
    const int* kv_indptr;
    const int* select_indptr;
    const float* scores;
    int* page_ids;
    long long scores_stride;
    int num_columns;  // of scores
    int take_tail;
    // A line of 64 bytes of the arguments, which costs a wait of its own, ends here.
    long long page_ids_stride;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) select_kernel(SelectArguments arg) {
    __shared__ SelectMemory memory;
    let_next_kernel_start();
    int head = blockIdx.x, request = blockIdx.y;
    // The first request starts at 0: its scores are asked for before its length is known.
    int start = request ? arg.kv_indptr[request] : 0;
    // One load asks for where pages and ids of the request begin and end, of lanes in turn.
    int lane = threadIdx.x % WARP;
    int bound = (lane < 2 ? arg.kv_indptr : arg.select_indptr)[request + lane % 2];
    const float* scores = arg.scores + head * arg.scores_stride + start;
    wait_for_previous_kernel();
    float own[SLOTS];
    load_scores(own, scores, 0, arg.num_columns - start);
    clear(memory);
    int num_pages = __shfl_sync(FULL_WARP, bound, 1) - start, first_id = __shfl_sync(FULL_WARP, bound, 2);
    int wanted = __shfl_sync(FULL_WARP, bound, 3) - first_id;
    if (wanted <= 0) return;
    int* page_ids = arg.page_ids + head * arg.page_ids_stride + first_id;
    Picked picked;
    select_pages<false>(
        [&](float(&loaded)[SLOTS]) {
#pragma unroll
            for (int i = 0; i < SLOTS; i++) loaded[i] = own[i];
        },
        scores, num_pages, wanted, arg.take_tail, memory, picked, [](u32) { return 0u; },
        [&](int rank, int, int page) { page_ids[rank] = page; });
}

// One block selects the `wanted` best of `num_pages` scores, ids ascending, equal scores to the lower page.
//
// A score becomes a u32 key of the same order (NaN on top, -0.0 like 0.0). The largest keys of at least `wanted`
// groups of keys are known after a few shuffles; the least of them bounds the wanted-th key from below. Keys from
// there up enter a histogram, and only the bin in which the wanted-th key falls is looked at closer. A last pass
// writes the keys above it, and of those in it the lowest pages, in page order. Every warp reads the histogram
// and decides for itself: a barrier less, and nobody waits.
//
// -DWARPS: warps of a block.  -DSLOTS: keys a thread keeps in registers, a power of two.  -DREREAD=1: a request may have
// more than WARPS * 32 * SLOTS pages; those beyond are read again in every pass. Where none has, the code for it would
// only displace other code from the cache of instructions.
#pragma once
#include "device.cuh"

constexpr int BINS = 128;
constexpr int SMALL = 32;  // keys that a warp ranks by itself
constexpr int CHUNK = THREADS * SLOTS;
static_assert(THREADS > BINS || BINS % THREADS == 0, "threads clear as many bins each");

struct SelectMemory {
    alignas(16) u32 histogram[BINS];
    alignas(16) u32 few[SMALL];
    u32 lowest[WARPS], bound[WARPS], highest[WARPS];
    u32 counts[WARPS];
    int num_few;
};

__device__ __forceinline__ u32 key_of(float score) {
    // A sum with 0 makes -0.0 and every NaN one number of its kind.
    u32 bits = __float_as_uint(__fadd_rn(score, 0.0f));
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}

// The first page of this thread in the chunk that starts at `first`: it has SLOTS in a row.
__device__ __forceinline__ int first_page(int first) { return first + (int)threadIdx.x * SLOTS; }

// Scores of this thread's pages, 0 from `limit` on.
__device__ __forceinline__ void load_scores(float (&own)[SLOTS], const float* scores, int first, int limit) {
    constexpr int WIDTH = SLOTS < 4 ? SLOTS : 4;
    int page = first_page(first);
    bool wide = WIDTH == 4 && (u64)(scores + page) % 16 == 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i += WIDTH) {
        if (wide && page + i + WIDTH <= limit) {
            float4 four = __ldcg((const float4*)(scores + page + i));
            own[i] = four.x;
            own[(i + 1) % SLOTS] = four.y;
            own[(i + 2) % SLOTS] = four.z;
            own[(i + 3) % SLOTS] = four.w;
        } else {
#pragma unroll
            for (int k = 0; k < WIDTH; k++) own[i + k] = page + i + k < limit ? __ldcg(scores + page + i + k) : 0.0f;
        }
    }
}

__device__ __forceinline__ void keys_of(u32 (&keys)[SLOTS], const float (&own)[SLOTS], int first, int num_pages) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++) keys[i] = first_page(first) + i < num_pages ? key_of(own[i]) : 0u;  // 0: no page
}

__device__ __forceinline__ void load_chunk(u32 (&keys)[SLOTS], const float* scores, int first, int num_pages) {
    float own[SLOTS];
    load_scores(own, scores, first, num_pages);
    keys_of(keys, own, first, num_pages);
}

__device__ __forceinline__ void clear(SelectMemory& memory) {
#pragma unroll
    for (int i = 0; i < BINS; i += THREADS)
        if (THREADS <= BINS || threadIdx.x < BINS) memory.histogram[i + threadIdx.x] = 0;
    if (threadIdx.x < SMALL) memory.few[threadIdx.x] = 0;
    if (threadIdx.x == 0) memory.num_few = 0;
}

// Calls f(keys, first) for this thread's keys of each chunk: those in registers, then those read again.
template <class F>
__device__ __forceinline__ void each_chunk(const u32 (&keys)[SLOTS], const float* scores, int num_pages, F f) {
    f(keys, 0);
    for (int first = CHUNK; REREAD && first < num_pages; first += CHUNK) {
        u32 chunk[SLOTS];
        load_chunk(chunk, scores, first, num_pages);
        f(chunk, first);
    }
}

template <class F>
__device__ __forceinline__ void each_key(const u32 (&keys)[SLOTS], const float* scores, int num_pages, F f) {
    each_chunk(keys, scores, num_pages, [&](const u32(&chunk)[SLOTS], int) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) f(chunk[i]);
    });
}

// Bit i: key i is in low..high (above: is greater than high).
__device__ __forceinline__ u32 inside_mask(const u32 (&keys)[SLOTS], u32 low, u32 high) {
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) mask |= keys[i] - low <= high - low ? 1u << i : 0u;
    return mask;
}

__device__ __forceinline__ u32 above_mask(const u32 (&keys)[SLOTS], u32 high) {
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) mask |= keys[i] > high ? 1u << i : 0u;
    return mask;
}

__device__ __forceinline__ u32 key_at(const u32 (&keys)[SLOTS], int slot) {
    u32 key = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) key = i == slot ? keys[i] : key;
    return key;
}

struct Range {
    u32 low, high;  // keys above `high` are taken, keys below `low` are not
    int above;      // keys above `high`
};

struct Bin {
    int number, above, inside;  // keys above the bin and, unless it is bin 0, in it
};

// The bin that holds the wanted-th key, `above` keys lying over all bins; the same in every lane.
__device__ __forceinline__ Bin find_bin(const u32* histogram, int above, int wanted) {
    constexpr int EACH = BINS / WARP;
    int lane = threadIdx.x % WARP, sum = 0;
    int own[EACH];  // from the highest bin down
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        uint4 four = *(const uint4*)(histogram + BINS - 4 - (lane * EACH + i));
        own[i] = four.w, own[i + 1] = four.z, own[i + 2] = four.y, own[i + 3] = four.x;
        sum += own[i] + own[i + 1] + own[i + 2] + own[i + 3];
    }
    int reached = sum;
#pragma unroll
    for (int stride = 1; stride < WARP; stride *= 2) {
        int other = __shfl_up_sync(FULL_WARP, reached, stride);
        if (lane >= stride) reached += other;
    }
    int holder = __ffs(__ballot_sync(FULL_WARP, above + reached >= wanted)) - 1;
    if (holder < 0) return Bin{0, above + __shfl_sync(FULL_WARP, reached, WARP - 1), 0};
    reached += above - sum;
    Bin bin{0, reached, 0};
    bool found = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool here = !found && reached + own[i] >= wanted;
        if (here) bin = Bin{BINS - 1 - (lane * EACH + i), reached, own[i]};
        found |= here;
        reached += own[i];
    }
    bin.number = __shfl_sync(FULL_WARP, bin.number, holder);
    bin.above = __shfl_sync(FULL_WARP, bin.above, holder);
    bin.inside = __shfl_sync(FULL_WARP, bin.inside, holder);
    return bin;
}

// All threads return the same range: its first wanted - above keys, in page order, complete the selection.
// Calls sure(mask), once at most, as soon as some keys in registers are known to be selected: bit i for key i.
template <class Sure>
__device__ __forceinline__ Range find_range(const u32 (&keys)[SLOTS], const float* scores, int num_pages,
                                            int wanted, SelectMemory& memory, Sure sure) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 largest = 0;
    each_key(keys, scores, num_pages, [&](u32 key) { largest = max(largest, key); });
    u32 bound = largest;  // of groups of 2, 4, .. lanes, as long as there are `wanted` groups
#pragma unroll
    for (int stride = 1; stride < WARP; stride *= 2) {
        if (wanted * 2 * stride > THREADS) break;
        bound = max(bound, __shfl_xor_sync(FULL_WARP, bound, stride));
    }
    bound = __reduce_min_sync(FULL_WARP, bound);
    largest = __reduce_max_sync(FULL_WARP, largest);
    if (lane == 0) {
        memory.highest[warp] = largest;
        memory.bound[warp] = wanted <= THREADS ? bound : 0u;
    }
    __syncthreads();  // also after clear()
    u32 low = __reduce_min_sync(FULL_WARP, memory.bound[lane % WARPS]);
    u32 high = __reduce_max_sync(FULL_WARP, memory.highest[lane % WARPS]);
    if (low == 0) {  // a group without pages, or too few groups
        u32 least = 0xffffffffu;
        each_key(keys, scores, num_pages, [&](u32 key) { least = min(least, key - 1u); });
        least = __reduce_min_sync(FULL_WARP, least);
        if (lane == 0) memory.lowest[warp] = least;
        __syncthreads();
        low = __reduce_min_sync(FULL_WARP, memory.lowest[lane % WARPS]) + 1u;
    }
    int above = 0;
    bool told = false;
    while (low != high) {
        int shift = max(0, 25 - __clz(high - low));  // (high - low) >> shift is a bin
        // The lowest bin needs no count: it takes what is not to be counted, so that no key costs a branch.
        u32 second = low + (1u << shift), span = high - second;
        each_key(keys, scores, num_pages, [&](u32 key) {
            u32 bin = key - second <= span ? ((key - second) >> shift) + 1u : 0u;
            atomicAdd(&memory.histogram[bin], 1u);
        });
        __syncthreads();
        Bin bin = find_bin(memory.histogram, above, wanted);
        above = bin.above;
        low += (u32)bin.number << shift;
        high = low + min(high - low, (1u << shift) - 1u);
        if (!told) sure(above_mask(keys, high));
        told = true;
        if ((bin.number && above + bin.inside == wanted) || shift == 0) break;
        if (bin.number && bin.inside <= SMALL) {
            each_chunk(keys, scores, num_pages, [&](const u32(&chunk)[SLOTS], int) {
                for (u32 left = inside_mask(chunk, low, high); left; left &= left - 1u)
                    memory.few[atomicAdd(&memory.num_few, 1)] = key_at(chunk, __ffs(left) - 1);
            });
            __syncthreads();
            u32 mine = memory.few[lane];
            int larger = 0, reach = 0, need = wanted - above;  // keys larger, and as large
            for (int i = 0; i < bin.inside; i += 4) {
                uint4 four = *(const uint4*)(memory.few + i);
                larger += (four.x > mine) + (four.y > mine) + (four.z > mine) + (four.w > mine);
                reach += (four.x >= mine) + (four.y >= mine) + (four.z >= mine) + (four.w >= mine);
            }
            bool last = mine && larger < need && need <= reach;
            int source = __ffs(__ballot_sync(FULL_WARP, last)) - 1;
            low = high = __shfl_sync(FULL_WARP, mine, source);
            above += __shfl_sync(FULL_WARP, larger, source);
        } else {  // the keys that are there bound the next round: few distinct ones end it soon
            u32 lowest = 0xffffffffu, highest = 0u;
            each_key(keys, scores, num_pages, [&](u32 key) {
                bool in = key - low <= high - low;
                lowest = in ? min(lowest, key) : lowest;
                highest = in ? max(highest, key) : highest;
            });
            lowest = __reduce_min_sync(FULL_WARP, lowest);
            highest = __reduce_max_sync(FULL_WARP, highest);
            __syncthreads();  // every warp has read the histogram
            if (lane == 0) {
                memory.lowest[warp] = lowest;
                memory.highest[warp] = highest;
            }
            clear(memory);
            __syncthreads();
            low = __reduce_min_sync(FULL_WARP, memory.lowest[lane % WARPS]);
            high = __reduce_max_sync(FULL_WARP, memory.highest[lane % WARPS]);
        }
    }
    return Range{low, high, above};
}

// A lane's keys, or a warp's: above the range, in it, and skipped. They stay below 1024.
__device__ __forceinline__ u32 pack_counts(int above, int inside, int skipped) {
    return (u32)above | (u32)inside << 11 | (u32)skipped << 22;
}

struct Counts {
    int above, inside, skipped;
    __device__ __forceinline__ explicit Counts(u32 packed)
        : above(packed & 2047u), inside(packed >> 11 & 2047u), skipped(packed >> 22) {}
    template <bool SKIPS>
    __device__ __forceinline__ void sum_over_warp() {  // whose sums stay below 32768
        u32 both = __reduce_add_sync(FULL_WARP, (u32)above | (u32)inside << 16);
        above = both & 0xffffu, inside = both >> 16;
        skipped = SKIPS ? __reduce_add_sync(FULL_WARP, (u32)skipped) : 0;
    }
};

struct Picked {  // of a thread's keys in registers: bit i for key i, and how many selected pages lie below
    u32 mask = 0;
    int rank = 0;
};

// Calls take(rank, rest, page) for each selected page: how many selected pages lie below it, and how many of those
// outside `skip`, where bit i is this thread's key i of the first chunk; for those inside, rest is -1. Returns
// how many were skipped. Without SKIPS, `skip` is 0.
template <bool SKIPS, class Take>
__device__ __forceinline__ int write_selected(const u32 (&keys)[SLOTS], const float* scores, int num_pages,
                                              int wanted, Range range, u32 skip, SelectMemory& memory,
                                              Picked& picked, Take take) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int need = wanted - range.above, num_above = 0, num_inside = 0, num_skipped = 0;
    for (int first = 0; first == 0 || (REREAD && first < num_pages); first += CHUNK) {
        u32 above, inside, skipped = first == 0 ? skip : 0u;
        if (!REREAD || first == 0) {
            above = above_mask(keys, range.high);
            inside = inside_mask(keys, range.low, range.high);
        } else {
            u32 chunk[SLOTS];
            load_chunk(chunk, scores, first, num_pages);
            above = above_mask(chunk, range.high);
            inside = inside_mask(chunk, range.low, range.high);
        }
        u32 own = pack_counts(__popc(above), __popc(inside), SKIPS ? __popc(skipped) : 0);
        u32 before = own;
#pragma unroll
        for (int stride = 1; stride < WARP; stride *= 2) {
            u32 other = __shfl_up_sync(FULL_WARP, before, stride);
            if (lane >= stride) before += other;
        }
        if (lane == WARP - 1) memory.counts[warp] = before;
        __syncthreads();
        u32 counts = lane < WARPS ? memory.counts[lane] : 0u;
        Counts total(counts), lower(lane < warp ? counts : 0u), lanes(before - own);
        total.sum_over_warp<SKIPS>();
        lower.sum_over_warp<SKIPS>();
        int above_rank = num_above + lower.above + lanes.above, inside_rank = num_inside + lower.inside + lanes.inside;
        int skipped_rank = num_skipped + lower.skipped + lanes.skipped;
        if (first == 0) picked.rank = above_rank + min(inside_rank, need);
        for (u32 left = above | inside; left; left &= left - 1u) {
            int slot = __ffs(left) - 1;
            bool is_above = above >> slot & 1u, is_skipped = skipped >> slot & 1u;
            int rank = above_rank + min(inside_rank, need);
            if (is_above || inside_rank < need) {
                take(rank, is_skipped ? -1 : rank - skipped_rank, first_page(first) + slot);
                if (first == 0) picked.mask |= 1u << slot;
            }
            above_rank += is_above;
            inside_rank += !is_above;
            skipped_rank += is_skipped;
        }
        num_above += total.above;
        num_inside += total.inside;
        num_skipped += total.skipped;
        if (REREAD && first + CHUNK < num_pages) __syncthreads();
    }
    return num_skipped;
}

// Selects and calls take(rank, rest, page), as write_selected does. `take_tail`: the last page does not compete and
// is always taken. load(own) loads the scores of the first chunk: where they are not needed, it is not called, as they
// would be waited for all the same. `memory` is cleared, and free of other use, before the call. `sure` (find_range)
// returns the mask of keys to skip, where SKIPS. Returns how many were skipped. `picked` tells what was taken, but for the
// last page and for those that are not in registers.
template <bool SKIPS, class Load, class Sure, class Take>
__device__ __forceinline__ int select_pages(Load load, const float* scores, int num_pages, int wanted, bool take_tail,
                                            SelectMemory& memory, Picked& picked, Sure sure, Take take) {
    if (take_tail) {
        num_pages--;
        wanted--;
    }
    int num_skipped = 0;
    if (wanted >= num_pages) {
        picked.rank = first_page(0);
        for (int first = 0; first == 0 || (REREAD && first < num_pages); first += CHUNK) {
#pragma unroll 1
            for (int slot = 0, page = first_page(first); slot < SLOTS && page < num_pages; slot++, page++) {
                take(page, page, page);
                if (first == 0) picked.mask |= 1u << slot;
            }
        }
    } else if (wanted > 0) {
        float own[SLOTS];
        load(own);
        u32 keys[SLOTS], skip = 0;
        keys_of(keys, own, 0, num_pages);
        Range range = find_range(keys, scores, num_pages, wanted, memory, [&](u32 mask) { skip = sure(mask); });
        num_skipped = write_selected<SKIPS>(keys, scores, num_pages, wanted, range, skip, memory, picked, take);
    }
    if (take_tail && threadIdx.x == 0) take(wanted, wanted - num_skipped, num_pages);
    return num_skipped;
}

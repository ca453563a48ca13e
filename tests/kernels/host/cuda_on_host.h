// CUDA C++ on a CPU, slowly and thread by thread, so that a machine without a GPU can run the kernels.
//
// A block is a thread of the operating system, so that blocks may wait for one another; a CUDA thread is a fibre of
// its block. Fibres take turns at collectives, at barriers and where they poll memory, and nowhere else. What is
// checked: results, indices (out-of-bounds reads meet NaN or a sanitizer), barriers that not all reach. What is not:
// memory ordering, dependent launch, speed.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __CUDA_ARCH__ 900

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct Dim3 {
    unsigned x = 0, y = 0, z = 0;
};

namespace host {

constexpr int WARP_SIZE = 32;
constexpr size_t STACK_BYTES = 64 << 10;

// Saves the callee's registers on its stack, takes another stack and its registers from there.
extern "C" void switch_stack(void** from, void* to);
asm(R"(
.text
.globl switch_stack
switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct Block;

struct Warp {
    int arrived = 0, leaving = 0;
    uint64_t words[WARP_SIZE] = {};
    uint32_t operands[WARP_SIZE][6] = {};
};

struct Thread {
    Dim3 index;
    int lane = 0;
    Warp* warp = nullptr;
    Block* block = nullptr;
    bool done = false;
    void* stack_pointer = nullptr;
    std::unique_ptr<char[]> stack;
    std::vector<std::function<void()>> copies;  // begun and not waited for
};

struct Block {
    Dim3 index;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    int live = 0, at_barrier = 0, barriers = 0;
    void* scheduler = nullptr;
    const std::function<void()>* kernel = nullptr;
};

inline Dim3 grid_size, block_size;
inline thread_local Thread* self = nullptr;

// Lets the other threads of the block go on.
inline void yield() { switch_stack(&self->stack_pointer, self->block->scheduler); }

inline void run_thread() {
    (*self->block->kernel)();
    self->done = true;
    self->block->live--;
    yield();
    std::abort();
}

inline void prepare(Thread& thread) {
    thread.stack.reset(new char[STACK_BYTES]);
    auto top = reinterpret_cast<uintptr_t>(thread.stack.get() + STACK_BYTES) & ~uintptr_t(15);
    auto* words = reinterpret_cast<void**>(top);
    *--words = nullptr;  // where run_thread would return to; also aligns the stack at its entry
    *--words = reinterpret_cast<void*>(&run_thread);
    for (int i = 0; i < 6; i++) *--words = nullptr;
    thread.stack_pointer = words;
}

inline void run_block(Dim3 index, const std::function<void()>& kernel) {
    Block block;
    int count = block_size.x;
    block.index = index;
    block.kernel = &kernel;
    block.live = count;
    block.threads = std::vector<Thread>(count);
    block.warps = std::vector<Warp>((count + WARP_SIZE - 1) / WARP_SIZE);
    for (int i = 0; i < count; i++) {
        Thread& thread = block.threads[i];
        thread.index.x = i;
        thread.lane = i % WARP_SIZE;
        thread.warp = &block.warps[i / WARP_SIZE];
        thread.block = &block;
        prepare(thread);
    }
    for (long round = 0; block.live; round++) {
        for (Thread& thread : block.threads) {
            if (thread.done) continue;
            self = &thread;
            switch_stack(&block.scheduler, thread.stack_pointer);
        }
        if (block.at_barrier && block.at_barrier == block.live) {
            block.at_barrier = 0;
            block.barriers++;
        }
        if (round % 64 == 63) std::this_thread::yield();
        if (round > 20'000'000) {
            std::fprintf(stderr, "block (%u, %u, %u) does not end: %d threads live, %d at a barrier\n", index.x, index.y,
                         index.z, block.live, block.at_barrier);
            std::abort();
        }
    }
}

// Runs the kernel, all blocks at once.
inline void launch(Dim3 grid, int num_threads, const std::function<void()>& kernel) {
    grid_size = grid;
    block_size = Dim3{(unsigned)num_threads, 1, 1};
    std::vector<std::thread> blocks;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++)
                blocks.emplace_back([=, &kernel] { run_block(Dim3{x, y, z}, kernel); });
    for (auto& block : blocks) block.join();
}

// All 32 threads of a warp come here before one of them leaves, and leave before one comes again.
inline void meet() {
    Warp& warp = *self->warp;
    while (warp.leaving) yield();
    if (++warp.arrived == WARP_SIZE) {
        warp.arrived = 0;
        warp.leaving = WARP_SIZE;
    }
    while (!warp.leaving) yield();
}

inline void part() { self->warp->leaving--; }

// What `read` makes of the words that all threads of the warp bring.
template <class T, class Read>
auto exchanged(T value, Read read) {
    static_assert(sizeof(T) <= 8);
    while (self->warp->leaving) yield();
    std::memcpy(&self->warp->words[self->lane], &value, sizeof(T));
    meet();
    auto result = read([](int lane) {
        T other;
        std::memcpy(&other, &self->warp->words[lane], sizeof(T));
        return other;
    });
    part();
    return result;
}

inline void check(unsigned mask) {
    if (mask != 0xffffffffu) std::abort();  // a collective of part of a warp is not emulated
}

}  // namespace host

#define threadIdx (host::self->index)
#define blockIdx (host::self->block->index)
#define gridDim (host::grid_size)
#define blockDim (host::block_size)

inline void __syncthreads() {
    host::Block& block = *host::self->block;
    int before = block.barriers;
    block.at_barrier++;
    while (block.barriers == before) host::yield();
}

inline void __syncwarp() {
    host::exchanged(0, [](auto) { return 0; });
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
    host::check(mask);
    return host::exchanged(value, [=](auto of) { return of(source & 31); });
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int stride) {
    return __shfl_sync(mask, value, host::self->lane ^ stride);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, int stride) {
    int lane = host::self->lane;
    return __shfl_sync(mask, value, lane >= stride ? lane - stride : lane);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, int stride) {
    int lane = host::self->lane;
    return __shfl_sync(mask, value, lane + stride < 32 ? lane + stride : lane);
}

inline unsigned __ballot_sync(unsigned mask, bool value) {
    host::check(mask);
    return host::exchanged(value, [](auto of) {
        unsigned bits = 0;
        for (int lane = 0; lane < 32; lane++) bits |= of(lane) ? 1u << lane : 0u;
        return bits;
    });
}

inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }

template <class T, class F>
T host_reduced(unsigned mask, T value, F f) {
    host::check(mask);
    return host::exchanged(value, [=](auto of) {
        T result = of(0);
        for (int lane = 1; lane < 32; lane++) result = f(result, of(lane));
        return result;
    });
}

template <class T>
T __reduce_min_sync(unsigned mask, T value) {
    return host_reduced(mask, value, [](T a, T b) { return std::min(a, b); });
}

template <class T>
T __reduce_max_sync(unsigned mask, T value) {
    return host_reduced(mask, value, [](T a, T b) { return std::max(a, b); });
}

template <class T>
T __reduce_add_sync(unsigned mask, T value) {
    return host_reduced(mask, value, [](T a, T b) { return T(a + b); });
}

template <class To, class From>
To host_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

inline float __uint_as_float(unsigned bits) { return host_bits<float>(bits); }
inline float __int_as_float(int bits) { return host_bits<float>(bits); }
inline unsigned __float_as_uint(float number) { return host_bits<unsigned>(number); }
inline int __float_as_int(float number) { return host_bits<int>(number); }
inline float __fadd_rn(float a, float b) {  // on a GPU every NaN that arithmetic makes is this one
    float sum = a + b;
    return sum != sum ? __uint_as_float(0x7fffffffu) : sum;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline int __clz(unsigned bits) { return bits ? __builtin_clz(bits) : 32; }
inline float2 make_float2(float x, float y) { return float2{x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

template <class T>
T __ldcg(const T* address) {
    return *address;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned pick) {
    uint64_t both = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= unsigned(both >> (8 * (pick >> (4 * i) & 7)) & 0xff) << (8 * i);
    return result;
}

template <class A, class B>
auto min(A a, B b) -> decltype(a + b) {
    using C = decltype(a + b);
    return C(a) < C(b) ? C(a) : C(b);
}

template <class A, class B>
auto max(A a, B b) -> decltype(a + b) {
    using C = decltype(a + b);
    return C(a) > C(b) ? C(a) : C(b);
}

// Of counters in global memory; those in shared memory belong to one thread of the system anyway.
template <class T, class N>
T atomicAdd(T* where, N number) {
    return __atomic_fetch_add(where, T(number), __ATOMIC_SEQ_CST);
}

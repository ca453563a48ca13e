// Every instruction that C++ does not name, in assembly: loads with a policy, conversions, matrix products, words that
// other blocks see, dependent launch. Compiled with -DBF16=0|1. Needs no header of the toolkit.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Words {  // sixteen bytes: eight numbers of sixteen bits
    u32 w[4];
};

// Read only, not worth a line of L1; neighbours are read too, so DRAM may deliver whole lines.
__device__ __forceinline__ Words load_once(const void* address) {
    Words r;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "l"(address));
    return r;
}

// Weights, which no kernel writes. Not a load of constants (.nc): the compiler would put those after a wait for the
// previous kernel.
__device__ __forceinline__ Words load_weights(const void* address) {
    Words r;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "l"(address)
                 : "memory");
    return r;
}

__device__ __forceinline__ float low_number(u32 word) {
#if BF16
    return __uint_as_float(word << 16);
#else
    float f;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo;}" : "=f"(f) : "r"(word));
    return f;
#endif
}

__device__ __forceinline__ float high_number(u32 word) {
#if BF16
    return __uint_as_float(word & 0xffff0000u);
#else
    float f;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, hi;}" : "=f"(f) : "r"(word));
    return f;
#endif
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 word;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
    return word;
}

// c[16 x 8] += a[16 x 16] b[16 x 8], fp32 sums. With g = lane / 4 and t = lane % 4 a lane holds
// a: rows g, g + 8, g, g + 8 at columns 2t.. (first two) and 2t + 8.. (last two), two numbers a word;
// b: rows 2t.. and 2t + 8.. of column g; c: row g at columns 2t, 2t + 1, then row g + 8.
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
#endif
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// On both halves of a word, which are fp16.
__device__ __forceinline__ u32 subtract_pairs(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

#if BF16
#define PAIR "bf16x2"
#define NUMBER "bf16"
#else
#define PAIR "f16x2"
#define NUMBER "f16"
#endif

// The smaller and the larger numbers of both halves of a word; of a number and a NaN the number.
__device__ __forceinline__ u32 smaller_pairs(u32 a, u32 b) {
    u32 r;
    asm("min." PAIR " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ u32 larger_pairs(u32 a, u32 b) {
    u32 r;
    asm("max." PAIR " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Numbers in memory become the smaller or larger ones of themselves and others, which nothing waits for. The numbers of
// the two halves of a word, or of four words.
#if __CUDA_ARCH__ >= 900
#define REDUCES 1

__device__ __forceinline__ void reduce_to_smaller(u32* where, u32 word) {
    asm volatile("{.reg .b16 low, high; mov.b32 {low, high}, %1; red.global.min.noftz.v2." NUMBER " [%0], {low, high};}" ::
                     "l"(where),
                 "r"(word)
                 : "memory");
}

__device__ __forceinline__ void reduce_to_larger(u32* where, u32 word) {
    asm volatile("{.reg .b16 low, high; mov.b32 {low, high}, %1; red.global.max.noftz.v2." NUMBER " [%0], {low, high};}" ::
                     "l"(where),
                 "r"(word)
                 : "memory");
}

__device__ __forceinline__ void reduce_to_smaller(Words* where, const Words& words) {
    asm volatile("red.global.min.noftz.v4." PAIR " [%0], {%1, %2, %3, %4};" ::"l"(where), "r"(words.w[0]),
                 "r"(words.w[1]), "r"(words.w[2]), "r"(words.w[3])
                 : "memory");
}

__device__ __forceinline__ void reduce_to_larger(Words* where, const Words& words) {
    asm volatile("red.global.max.noftz.v4." PAIR " [%0], {%1, %2, %3, %4};" ::"l"(where), "r"(words.w[0]),
                 "r"(words.w[1]), "r"(words.w[2]), "r"(words.w[3])
                 : "memory");
}
#else
#define REDUCES 0
#endif

// The transpose of an 8 x 8 matrix of 16-bit numbers, of which a lane holds row lane / 4, columns 2t, 2t + 1.
__device__ __forceinline__ u32 transpose(u32 word) {
    u32 r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(word));
    return r;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float log2_fast(float x) {
    float r;
    asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float divide_fast(float x, float y) {  // to two units of the last place
    float r;
    asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}

// Words that blocks of one launch leave for one another, in the cache that all of them see.
struct alignas(16) Posted {  // two numbers and the launch they belong to, written and read as one
    float first, second;
    u32 tag, unused;
};

__device__ __forceinline__ void store_relaxed(Posted* where, const Posted& posted) {
    asm volatile("{.reg .b64 low, high; .reg .b128 all; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4};"
                 " mov.b128 all, {low, high}; st.relaxed.gpu.global.b128 [%0], all;}" ::"l"(where),
                 "f"(posted.first), "f"(posted.second), "r"(posted.tag), "r"(posted.unused)
                 : "memory");
}

__device__ __forceinline__ Posted load_relaxed(const Posted* where) {
    Posted r;
    asm volatile("{.reg .b64 low, high; .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%4];"
                 " mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high;}"
                 : "=f"(r.first), "=f"(r.second), "=r"(r.tag), "=r"(r.unused)
                 : "l"(where)
                 : "memory");
    return r;
}

// Copies into shared memory, where this thread finds them once wait_for_copies has returned: no register is waited for.
__device__ __forceinline__ void copy_word(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}

__device__ __forceinline__ void copy_words(Words* shared, const Words* global) {  // past L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A kernel launched as a programmatic dependent starts while the one before still runs; it may touch what that
// one writes only after this. Without the launch attribute, and before sm_90, it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

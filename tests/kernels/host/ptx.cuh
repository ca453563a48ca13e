// The host's twin of kernels/ptx.cuh: the same functions, each as the instruction set defines it.
#pragma once
#include "cuda_on_host.h"

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Words {
    u32 w[4];
};

inline Words load_once(const void* address) {
    if (reinterpret_cast<uintptr_t>(address) % 16) std::abort();  // a GPU faults
    return *static_cast<const Words*>(address);
}

inline Words load_weights(const void* address) { return load_once(address); }

inline float number_of_bits(unsigned short bits) {
#if BF16
    return __uint_as_float((u32)bits << 16);
#else
    return (float)host_bits<_Float16>(bits);
#endif
}

inline unsigned short bits_of_number(float number) {
#if BF16
    u32 bits = __float_as_uint(number);
    if (number != number) return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);  // to the nearest, ties to even
#else
    return host_bits<unsigned short>((_Float16)number);
#endif
}

inline float low_number(u32 word) { return number_of_bits((unsigned short)word); }
inline float high_number(u32 word) { return number_of_bits((unsigned short)(word >> 16)); }
inline u32 pack(float low, float high) { return (u32)bits_of_number(high) << 16 | bits_of_number(low); }

inline void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    host::Warp& warp = *host::self->warp;
    int lane = host::self->lane, g = lane / 4, t = lane % 4;
    while (warp.leaving) host::yield();
    u32 own[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(warp.operands[lane], own, sizeof own);
    host::meet();
    auto half = [](u32 word, int k) { return k % 2 ? high_number(word) : low_number(word); };
    for (int i = 0; i < 4; i++) {
        int row = g, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const u32* a = warp.operands[row * 4 + k % 8 / 2];
            const u32* b = warp.operands[column * 4 + k % 8 / 2];
            c[i] += half(a[k / 8 * 2 + i / 2], k) * half(b[4 + k / 8], k);
        }
    }
    host::part();
}

inline u32 transpose(u32 word) {
    return host::exchanged(word, [](auto of) {
        int row = host::self->lane / 4, column = host::self->lane % 4 * 2;  // of the result
        u32 result = 0;
        for (int i = 0; i < 2; i++) {
            u32 from = of((column + i) * 4 + row / 2);
            result |= (row % 2 ? from >> 16 : from & 0xffffu) << (16 * i);
        }
        return result;
    });
}

inline float exp2_fast(float x) { return exp2f(x); }

inline float log2_fast(float x) { return log2f(x); }

inline float divide_fast(float x, float y) { return x / y; }

inline u32 smaller_pairs(u32 a, u32 b) {
    return pack(fminf(low_number(a), low_number(b)), fminf(high_number(a), high_number(b)));
}

inline u32 larger_pairs(u32 a, u32 b) {
    return pack(fmaxf(low_number(a), low_number(b)), fmaxf(high_number(a), high_number(b)));
}

#define REDUCES 1
inline std::mutex reducing;

template <class Join>
void reduce(u32* where, const u32* words, int count, Join join) {
    if (reinterpret_cast<uintptr_t>(where) % (4 * count)) std::abort();  // a GPU faults
    std::lock_guard guard(reducing);
    for (int i = 0; i < count; i++) where[i] = join(where[i], words[i]);
}

inline void reduce_to_smaller(u32* where, u32 word) { reduce(where, &word, 1, smaller_pairs); }
inline void reduce_to_larger(u32* where, u32 word) { reduce(where, &word, 1, larger_pairs); }
inline void reduce_to_smaller(Words* where, const Words& words) { reduce(where->w, words.w, 4, smaller_pairs); }
inline void reduce_to_larger(Words* where, const Words& words) { reduce(where->w, words.w, 4, larger_pairs); }

#if !BF16
inline u32 subtract_pairs(u32 a, u32 b) {
    return pack(low_number(a) - low_number(b), high_number(a) - high_number(b));
}

inline u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    return pack(low_number(a) * low_number(b) + low_number(c), high_number(a) * high_number(b) + high_number(c));
}
#endif

struct alignas(16) Posted {
    float first, second;
    u32 tag, unused;
};

inline std::mutex posting;  // sixteen bytes at once

inline void store_relaxed(Posted* where, const Posted& posted) {
    if (reinterpret_cast<uintptr_t>(where) % 16) std::abort();  // a GPU faults
    std::lock_guard guard(posting);
    *where = posted;
}

inline Posted load_relaxed(const Posted* where) {
    if (reinterpret_cast<uintptr_t>(where) % 16) std::abort();
    host::yield();  // whoever writes it may be of this block
    std::lock_guard guard(posting);
    return *where;
}

// What is copied is there when it has been waited for, and not before.
template <class T>
void copy_later(T* to, const T* from) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(T) || reinterpret_cast<uintptr_t>(from) % sizeof(T)) std::abort();
    host::self->copies.push_back([=] { *to = *from; });
}

inline void copy_word(void* shared, const void* global) { copy_later((u32*)shared, (const u32*)global); }
inline void copy_words(Words* shared, const Words* global) { copy_later(shared, global); }

inline void wait_for_copies() {
    for (auto& copy : host::self->copies) copy();
    host::self->copies.clear();
}

inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

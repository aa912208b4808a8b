// Kernels of array.random for one instruction set, which the file that includes this one has
// chosen. Each computes whole Philox blocks, two words each. The results are the same bits as those
// of the Go code on every instruction set: each operation is rounded on its own, in the same order.

#include "simd_random.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint64_t IN_SET(vu) __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t IN_SET(vi) __attribute__((vector_size(VECTOR_BYTES)));
typedef double IN_SET(vd) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t IN_SET(vw) __attribute__((vector_size(VECTOR_BYTES)));
typedef float IN_SET(vf) __attribute__((vector_size(VECTOR_BYTES)));
#define VU IN_SET(vu)
#define VI IN_SET(vi)
#define VD IN_SET(vd)
#define VW IN_SET(vw)
#define VF IN_SET(vf)
#define LANES (VECTOR_BYTES / 8)

// Interleaves two vectors: LOW and HIGH are the halves of a0 b0 a1 b1 ...
#if VECTOR_BYTES == 64
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#elif VECTOR_BYTES == 32
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define LANE_NUMBERS {0, 1, 2, 3}
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#define LANE_NUMBERS {0, 1}
#endif

#define LOW_HALF 0xffffffffull

// Multiplies the lower halves of the lanes.
static inline VU IN_SET(multiply)(VU a, VU b) {
#if defined(__AVX512F__) && VECTOR_BYTES == 64
  return (VU)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  return (VU)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && VECTOR_BYTES == 16
  return (VU)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & LOW_HALF) * (b & LOW_HALF);
#endif
}

static inline VD IN_SET(square_root)(VD a) {
#if defined(__AVX512F__) && VECTOR_BYTES == 64
  return (VD)_mm512_sqrt_pd((__m512d)a);
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  return (VD)_mm256_sqrt_pd((__m256d)a);
#else
  for (int i = 0; i < LANES; i++) a[i] = __builtin_sqrt(a[i]);
  return a;
#endif
}

// Converts numbers up to 2^53, exactly.
static inline VD IN_SET(to_double)(VU a) {
  VU high = (a >> 32) | 0x4530000000000000ull; // 2^84 + 2^32 * (a >> 32)
  VU low = (a & LOW_HALF) | 0x4330000000000000ull; // 2^52 + the lower half
  return ((VD)high - 0x1.00000001p84) + (VD)low;
}

// The even and the odd words of as many blocks as a vector has lanes.
struct IN_SET(words) {
  VU even, odd;
};

#define ROUNDS 10

// The keys of the rounds, in each lane.
struct IN_SET(keys) {
  VU even[ROUNDS], odd[ROUNDS];
};

static inline void IN_SET(schedule)(struct IN_SET(keys) *keys, uint64_t key) {
  uint32_t even = (uint32_t)key, odd = (uint32_t)(key >> 32);
  for (int round = 0; round < ROUNDS; round++) {
    keys->even[round] = (VU){0} + even;
    keys->odd[round] = (VU){0} + odd;
    even += 0x9E3779B9u;
    odd += 0xBB67AE85u;
  }
}

// Computes a block for each lane of counters.
static inline struct IN_SET(words) IN_SET(blocks)(const struct IN_SET(keys) *keys, VU counters) {
  VU c0 = counters, c1 = counters >> 32, c2 = {0}, c3 = {0};
  const VU m0 = (VU){0} + 0xD2511F53ull, m1 = (VU){0} + 0xCD9E8D57ull;
#pragma GCC unroll 10
  for (int round = 0; round < ROUNDS; round++) {
    // Only the lower halves of the lanes have a meaning.
    VU p0 = IN_SET(multiply)(m0, c0), p1 = IN_SET(multiply)(m1, c2);
    c0 = (p1 >> 32) ^ c1 ^ keys->even[round];
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ keys->odd[round];
    c3 = p0;
  }
  struct IN_SET(words) w = {(c0 & LOW_HALF) | (c1 << 32), (c2 & LOW_HALF) | (c3 << 32)};
  return w;
}

static inline void IN_SET(store)(void *to, VU a) { __builtin_memcpy(to, &a, sizeof a); }

// Computes n/2 blocks and calls body(i, w) with the words of blocks i to i+LANES-1. The last blocks
// may go beyond n: then the body stores into rest, which is copied.
#define EACH_BLOCKS(T, body)                                                      \
  T *out = d;                                                                     \
  VU counters = (VU)LANE_NUMBERS + r->block;                                      \
  struct IN_SET(keys) keys;                                                       \
  IN_SET(schedule)(&keys, r->key);                                                \
  int64_t i = 0;                                                                  \
  for (; i + 2 * LANES <= n; i += 2 * LANES) {                                    \
    struct IN_SET(words) w = IN_SET(blocks)(&keys, counters);                    \
    counters += LANES;                                                            \
    T *to = out + i;                                                              \
    body                                                                          \
  }                                                                               \
  if (i < n) {                                                                    \
    struct IN_SET(words) w = IN_SET(blocks)(&keys, counters);                    \
    T to[2 * LANES];                                                              \
    body                                                                          \
    __builtin_memcpy(out + i, to, (size_t)(n - i) * sizeof(T));                   \
  }

static void IN_SET(draw_words)(const struct simd_random *r, int64_t n, void *d) {
  EACH_BLOCKS(uint64_t, {
    IN_SET(store)(to, LOW(w.even, w.odd));
    IN_SET(store)(to + LANES, HIGH(w.even, w.odd));
  })
}

static void IN_SET(draw_uniform_float64)(const struct simd_random *r, int64_t n, void *d) {
  double low = r->low, span = r->high - r->low;
  EACH_BLOCKS(double, {
    VD a = low + span * (IN_SET(to_double)(w.even >> 11) * 0x1p-53);
    VD b = low + span * (IN_SET(to_double)(w.odd >> 11) * 0x1p-53);
    IN_SET(store)(to, (VU)LOW(a, b));
    IN_SET(store)(to + LANES, (VU)HIGH(a, b));
  })
}

static void IN_SET(draw_uniform_float32)(const struct simd_random *r, int64_t n, void *d) {
  float low = (float)r->low, span = (float)r->high - low;
  EACH_BLOCKS(float, {
    VU both = w.even >> 40 | (w.odd >> 40) << 32;
    VF a = low + span * (__builtin_convertvector((VW)both, VF) * 0x1p-24f);
    IN_SET(store)(to, (VU)a);
  })
}

// Returns the upper half of the product of each word and the number of values.
static inline VU IN_SET(scale_word)(VU word, uint64_t values) {
  const VU low = (VU){0} + (uint64_t)(values & LOW_HALF), high = (VU){0} + (values >> 32);
  VU upper = word >> 32;
  VU middle = IN_SET(multiply)(upper, low) + (IN_SET(multiply)(word, low) >> 32);
  if (values <= LOW_HALF) return middle >> 32;
  VU other = IN_SET(multiply)(word, high) + (middle & LOW_HALF);
  return IN_SET(multiply)(upper, high) + (middle >> 32) + (other >> 32);
}

static void IN_SET(draw_int64)(const struct simd_random *r, int64_t n, void *d) {
  uint64_t first = (uint64_t)r->first;
  EACH_BLOCKS(uint64_t, {
    VU a = first + IN_SET(scale_word)(w.even, r->values);
    VU b = first + IN_SET(scale_word)(w.odd, r->values);
    IN_SET(store)(to, LOW(a, b));
    IN_SET(store)(to + LANES, HIGH(a, b));
  })
}

static void IN_SET(draw_int32)(const struct simd_random *r, int64_t n, void *d) {
  uint64_t first = (uint64_t)r->first;
  EACH_BLOCKS(uint32_t, {
    VU a = first + IN_SET(scale_word)(w.even, r->values);
    VU b = first + IN_SET(scale_word)(w.odd, r->values);
    IN_SET(store)(to, (a & LOW_HALF) | b << 32);
  })
}

static void IN_SET(draw_uint8)(const struct simd_random *r, int64_t n, void *d) {
  uint64_t first = (uint64_t)r->first;
  EACH_BLOCKS(uint8_t, {
    VU a = first + IN_SET(scale_word)(w.even, r->values);
    VU b = first + IN_SET(scale_word)(w.odd, r->values);
    VU both = (a & 0xff) | (b & 0xff) << 8;
    uint16_t pairs[LANES];
    for (int lane = 0; lane < LANES; lane++) pairs[lane] = (uint16_t)both[lane];
    __builtin_memcpy(to, pairs, sizeof pairs);
  })
}

// Computes the radius sqrt(-2 ln(1-u)) of a word. The logarithm is that of FreeBSD's e_log.c
// (Copyright (C) 1993 by Sun Microsystems, Inc. Permission to use, copy, modify, and distribute
// this software is freely granted, provided that this notice is preserved). The function radius of
// package ops has the same steps.
static inline VD IN_SET(radius)(VU word) {
  VU x = (VU)(IN_SET(to_double)((1ull << 53) - (word >> 11)) * 0x1p-53);
  // x = f1 * 2^(k-1023), with f1 from sqrt(1/2) to sqrt(2)
  VU k = (x + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull)) >> 52;
  VD f = (VD)(x - (k << 52) + 0x3ff0000000000000ull) - 1;
  VD e = (VD)(k | 0x4330000000000000ull) - (0x1p52 + 1023);
  VD s = f / (2 + f);
  VD s2 = s * s, s4 = s2 * s2;
  VD t1 = s2 * (6.666666666666735130e-01 + s4 * (2.857142874366239149e-01 + s4 * (1.818357216161805012e-01 + s4 * 1.479819860511658591e-01)));
  VD t2 = s4 * (3.999999999940941908e-01 + s4 * (2.222219843214978396e-01 + s4 * 1.531383769920937332e-01));
  VD half = 0.5 * f * f;
  VD log = e * 6.93147180369123816490e-01 - ((half - (s * (half + (t1 + t2)) + e * 1.90821492927058770002e-10)) - f);
  return IN_SET(square_root)(-2 * log);
}

// Computes sine and cosine of 2 pi u of a word. The function sincos of package ops has the same
// steps.
static inline void IN_SET(sincos)(VU word, VD *sine, VD *cosine) {
  // u = q/4 + v, with v from -1/8 to 1/8
  VU u = word >> 11;
  VU q = (u + (1ull << 50)) >> 51;
  VD v = ((VD)(u - (q << 51) + 0x4338000000000000ull) - 0x1.8p52) * 0x1p-53;
  VD t = v * v;
  VD s = v * 0x1.921fb54442d18p+2 +
         v * (0x1.1a62633145c07p-52 +
              t * (-0x1.4abbce625be47p+5 +
                   t * (0x1.466bc67758d85p+6 +
                        t * (-0x1.32d2cce3332ccp+6 +
                             t * (0x1.5078301b61792p+5 + t * (-0x1.e300a6598bfb7p+3 + t * 0x1.e403d056e4915p+1))))));
  VD c = 1 + t * (-0x1.3bd3cc9be45dep+4 +
                  t * (0x1.03c1f081b5ab0p+6 +
                       t * (-0x1.55d3c7e3c95bcp+6 +
                            t * (0x1.e1f50683b42d0p+5 +
                                 t * (-0x1.a6d1ecb740509p+4 + t * (0x1.f9cc6acff3cc6p+2 + t * -0x1.b26fe86abf9f6p+0))))));
  VU odd = (VU)((q & 1) != 0);
  VU a = ((VU)s & ~odd) | ((VU)c & odd), b = ((VU)c & ~odd) | ((VU)s & odd);
  *sine = (VD)(a ^ (q & 2) << 62);
  *cosine = (VD)(b ^ ((q + 1) & 2) << 62);
}

static void IN_SET(draw_normal_float64)(const struct simd_random *r, int64_t n, void *d) {
  double loc = r->loc, scale = r->scale;
  EACH_BLOCKS(double, {
    VD radius = IN_SET(radius)(w.even);
    VD sine;
    VD cosine;
    IN_SET(sincos)(w.odd, &sine, &cosine);
    VD a = loc + scale * (radius * cosine);
    VD b = loc + scale * (radius * sine);
    IN_SET(store)(to, (VU)LOW(a, b));
    IN_SET(store)(to + LANES, (VU)HIGH(a, b));
  })
}

// The number of float64 that are made before they are rounded to float32.
#define NARROWED 256

static void IN_SET(draw_normal_float32)(const struct simd_random *r, int64_t n, void *d) {
  struct simd_random part = *r;
  double wide[NARROWED];
  float *to = d;
  for (int64_t i = 0; i < n; i += NARROWED, to += NARROWED, part.block += NARROWED / 2) {
    int64_t m = n - i < NARROWED ? n - i : NARROWED;
    IN_SET(draw_normal_float64)(&part, m, wide);
    EACH(k, m) to[k] = (float)wide[k];
  }
}

const simd_draw_function IN_SET(simd_draws)[] = {
    [DRAW_WORDS] = IN_SET(draw_words),
    [DRAW_UNIFORM_FLOAT64] = IN_SET(draw_uniform_float64),
    [DRAW_UNIFORM_FLOAT32] = IN_SET(draw_uniform_float32),
    [DRAW_INT64] = IN_SET(draw_int64),
    [DRAW_INT32] = IN_SET(draw_int32),
    [DRAW_UINT8] = IN_SET(draw_uint8),
    [DRAW_NORMAL_FLOAT64] = IN_SET(draw_normal_float64),
    [DRAW_NORMAL_FLOAT32] = IN_SET(draw_normal_float32),
};

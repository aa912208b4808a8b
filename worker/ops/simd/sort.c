//go:build cgo && linux && amd64

// Quicksort of signed integers with vectors. A pass over a segment compares a vector of elements
// with the pivot, brings the small ones and the large ones together by a permutation, and stores
// the vector in two places. Small segments are sorted in registers by bitonic networks (Batcher,
// "Sorting networks and their applications", 1968). The idea of the passes is that of Bramas, "A
// novel hybrid quicksort algorithm vectorized using AVX-512" (2017).
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2"), min_vector_width(512))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,prefer-vector-width=512")
#endif

#include <immintrin.h>
#include <string.h>

#include "simd.h"
#include "simd_sort.h"

// NETWORK_VECTORS is the number of vectors that the largest network sorts.
#define NETWORK_VECTORS 16
// PIVOT_SAMPLES is the number of elements of which the pivot is the median.
#define PIVOT_SAMPLES 64
// FEW_SAMPLES is that number for segments of less than FEW_BELOW elements.
#define FEW_SAMPLES 8
#define FEW_BELOW 2048

// orders[mask] has the lanes that the mask lacks, and then the lanes of the mask, one in each byte.
static uint64_t orders[256];

static __attribute__((constructor)) void fill_orders(void) {
  for (int mask = 0; mask < 256; mask++)
    for (int large = 0, at = 0; large < 2; large++)
      for (uint64_t lane = 0; lane < 8; lane++)
        if ((mask >> lane & 1) == large) orders[mask] |= lane << 8 * at++;
}

#define T int64_t
#define LANES 8
#define BITS 64
#define MASK __mmask8
#define OP(name) _mm512_##name##_epi64
#define REVERSED _mm512_set_epi64(0, 1, 2, 3, 4, 5, 6, 7)
#include "sort_bits.h"
#undef T
#undef LANES
#undef BITS
#undef MASK
#undef OP
#undef REVERSED

#define T int32_t
#define LANES 16
#define BITS 32
#define MASK __mmask16
#define OP(name) _mm512_##name##_epi32
#define REVERSED _mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#include "sort_bits.h"
#undef T
#undef LANES
#undef BITS
#undef MASK
#undef OP
#undef REVERSED

void simd_sort(int wide, const struct simd_segment *s) {
  if (wide) quicksort64(*s);
  else quicksort32(*s);
}

void simd_split(int wide, struct simd_segment *s, struct simd_segment *more) {
  if (wide) pass64(s, more);
  else pass32(s, more);
}

// The key of a float has the bits of the float, or if it is negative those bits with all but the
// sign inverted. Adding 0 turns -0.0 into 0.0.
#define KEYS(name, T, FROM, bits)                                                                  \
  static void name(int64_t n, T *keys, const T *from, int equal_zeros, T flip) {                   \
    EACH(i, n) {                                                                                   \
      FROM x;                                                                                      \
      memcpy(&x, from + i, sizeof x);                                                              \
      FROM y = equal_zeros ? x + 0 : x;                                                            \
      T b;                                                                                         \
      memcpy(&b, &y, sizeof b);                                                                    \
      b ^= (b >> (bits - 1)) & INT##bits##_MAX;                                                    \
      keys[i] = (x != x ? INT##bits##_MAX : b) ^ flip;                                             \
    }                                                                                              \
  }                                                                                                \
  static void name##_back(int64_t n, T *to, const T *keys, T nan, T flip) {                         \
    EACH(i, n) {                                                                                   \
      T k = keys[i] ^ flip;                                                                        \
      to[i] = k == INT##bits##_MAX ? nan : k ^ ((k >> (bits - 1)) & INT##bits##_MAX);              \
    }                                                                                              \
  }
KEYS(float_keys64, int64_t, double, 64)
KEYS(float_keys32, int32_t, float, 32)

#define PLAIN(name, T)                                                                             \
  static void name(int64_t n, T *to, const T *from, T flip) {                                      \
    EACH(i, n) to[i] = from[i] ^ flip;                                                             \
  }
PLAIN(plain64, int64_t)
PLAIN(plain32, int32_t)

void simd_sort_keys(int type, int64_t n, void *keys, const void *from, int equal_zeros, int descending) {
  switch (type) {
  case FLOAT64: float_keys64(n, keys, from, equal_zeros, -(int64_t)descending); break;
  case FLOAT32: float_keys32(n, keys, from, equal_zeros, -descending); break;
  case INT64: plain64(n, keys, from, -(int64_t)descending); break;
  case INT32: plain32(n, keys, from, -descending);
  }
}

void simd_sort_values(int type, int64_t n, void *to, const void *keys, int descending) {
  switch (type) {
  case FLOAT64: float_keys64_back(n, to, keys, 0x7ff8000000000001, -(int64_t)descending); break;
  case FLOAT32: float_keys32_back(n, to, keys, 0x7fc00000, -descending); break;
  case INT64: plain64(n, to, keys, -(int64_t)descending); break;
  case INT32: plain32(n, to, keys, -descending);
  }
}

int64_t simd_sort_distinct(int wide, int64_t n, void *to, const void *keys) {
  return wide ? distinct64(n, to, keys) : distinct32(n, to, keys);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

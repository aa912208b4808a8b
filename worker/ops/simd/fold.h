// Kernels of array.reduce for one instruction set. The results are the same bits as those of the Go
// code in reduce.go of package ops.
#include <string.h>

#include "simd_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// RUNS and LANES make the two kernels of a fold. name_run(a, n) folds a run. In LANES, the
// expression makes a new accumulator from s and an element x, and first makes one from x alone.
#define RUNS(name, S, A)                                                                           \
  static void name##_runs(const void *in, void *out, int64_t count, int64_t stride, int64_t n) {   \
    const char *from = in;                                                                         \
    A *to = out;                                                                                   \
    for (int64_t k = 0; k < count; k++, from += stride) to[k] = name##_run((const S *)from, n);    \
  }

// Four rows at a time, so that the accumulators are loaded and stored less often.
#define AT_ROW(r) ((const S_ *)(from + (r) * stride))[i]
#define LANES_OF(name, S, A, first, expression)                                                    \
  static inline A name##_first(const S x) { return first; }                                        \
  static inline A name##_next(const A s, const S x) { return expression; }                         \
  static void name##_lanes(void *accumulators, const void *in, int64_t n, int64_t stride,          \
                           int64_t rows, int begin) {                                              \
    typedef S S_;                                                                                  \
    const char *from = in;                                                                         \
    A *s = accumulators;                                                                           \
    if (begin) {                                                                                   \
      EACH(i, n) s[i] = name##_first(AT_ROW(0));                                                      \
      from += stride;                                                                              \
      rows--;                                                                                      \
    }                                                                                              \
    for (; rows >= 4; rows -= 4, from += 4 * stride) {                                             \
      EACH(i, n) s[i] = name##_next(name##_next(name##_next(name##_next(s[i], AT_ROW(0)), AT_ROW(1)), AT_ROW(2)), AT_ROW(3)); \
    }                                                                                              \
    for (; rows > 0; rows--, from += stride) {                                                     \
      EACH(i, n) s[i] = name##_next(s[i], AT_ROW(0));                                                 \
    }                                                                                              \
  }

// The sums of floats: the tree of the function pairwise. PARTS real numbers make an element, so a
// leaf has 8*PARTS partial sums.
#define LEAF_LENGTH 128
#define SUM_FLOATS(name, S, A, T, PARTS)                                                           \
  enum {                                                                                           \
    name##_width = 8 * PARTS * (int)sizeof(T),                                                     \
    name##_bytes = name##_width < VECTOR_BYTES ? name##_width : VECTOR_BYTES,                      \
    name##_lanes_of = name##_bytes / (int)sizeof(T),                                               \
    name##_vectors = name##_width / name##_bytes                                                   \
  };                                                                                               \
  typedef T name##_vector __attribute__((vector_size(name##_bytes)));                              \
  typedef S name##_source __attribute__((vector_size(name##_lanes_of * sizeof(S))));               \
  static inline name##_vector name##_load(const S *a) {                                            \
    name##_source x;                                                                               \
    memcpy(&x, a, sizeof x);                                                                       \
    return __builtin_convertvector(x, name##_vector);                                              \
  }                                                                                                \
  static void name##_add(const S *a, int64_t n, T *sum) {                                          \
    if (n < 8) {                                                                                   \
      for (int p = 0; p < PARTS; p++) {                                                            \
        T s = (T)a[p];                                                                             \
        for (int64_t i = 1; i < n; i++) s += (T)a[i * PARTS + p];                                  \
        sum[p] = s;                                                                                \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    if (n <= LEAF_LENGTH) {                                                                        \
      name##_vector r[name##_vectors];                                                             \
      for (int v = 0; v < name##_vectors; v++) r[v] = name##_load(a + v * name##_lanes_of);        \
      int64_t i = 8;                                                                               \
      for (; i + 8 <= n; i += 8)                                                                   \
        for (int v = 0; v < name##_vectors; v++) r[v] += name##_load(a + i * PARTS + v * name##_lanes_of); \
      T q[8 * PARTS];                                                                              \
      memcpy(q, r, sizeof q);                                                                      \
      for (int p = 0; p < PARTS; p++) {                                                            \
        const T *c = q + p;                                                                        \
        T s = ((c[0] + c[PARTS]) + (c[2 * PARTS] + c[3 * PARTS])) +                                \
              ((c[4 * PARTS] + c[5 * PARTS]) + (c[6 * PARTS] + c[7 * PARTS]));                     \
        for (int64_t k = i; k < n; k++) s += (T)a[k * PARTS + p];                                  \
        sum[p] = s;                                                                                \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    int64_t half = n / 2;                                                                          \
    half -= half % 8;                                                                              \
    T rest[PARTS];                                                                                 \
    name##_add(a, half, sum);                                                                      \
    name##_add(a + half * PARTS, n - half, rest);                                                  \
    for (int p = 0; p < PARTS; p++) sum[p] += rest[p];                                             \
  }                                                                                                \
  static inline A name##_run(const S *a, int64_t n) {                                              \
    A sum;                                                                                         \
    name##_add(a, n, (T *)&sum);                                                                   \
    return sum;                                                                                    \
  }                                                                                                \
  RUNS(name, S, A)

SUM_FLOATS(sum_f32, f32, f32, f32, 1)
SUM_FLOATS(sum_f64, f64, f64, f64, 1)
SUM_FLOATS(sum_u8_f64, u8, f64, f64, 1)
SUM_FLOATS(sum_i32_f64, i32, f64, f64, 1)
SUM_FLOATS(sum_i64_f64, i64, f64, f64, 1)
SUM_FLOATS(sum_f32_f64, f32, f64, f64, 1)
SUM_FLOATS(sum_c64, f32, c64, f32, 2)
SUM_FLOATS(sum_c128, f64, c128, f64, 2)
LANES_OF(sum_f32, f32, f32, x, s + x)
LANES_OF(sum_f64, f64, f64, x, s + x)
LANES_OF(sum_u8_f64, u8, f64, (f64)x, s + (f64)x)
LANES_OF(sum_i32_f64, i32, f64, (f64)x, s + (f64)x)
LANES_OF(sum_i64_f64, i64, f64, (f64)x, s + (f64)x)
LANES_OF(sum_f32_f64, f32, f64, (f64)x, s + (f64)x)

// A row of complex numbers is a row of twice as many real ones.
static void sum_c64_lanes(void *accumulators, const void *in, int64_t n, int64_t stride, int64_t rows, int begin) {
  sum_f32_lanes(accumulators, in, 2 * n, stride, rows, begin);
}
static void sum_c128_lanes(void *accumulators, const void *in, int64_t n, int64_t stride, int64_t rows, int begin) {
  sum_f64_lanes(accumulators, in, 2 * n, stride, rows, begin);
}

// Integers wrap around, so their order does not matter.
#define SUM_INTEGERS(name, S)                                                                      \
  static inline u64 name##_run(const S *a, int64_t n) {                                            \
    u64 sum = 0;                                                                                   \
    EACH(i, n) sum += (u64)(i64)a[i];                                                              \
    return sum;                                                                                    \
  }                                                                                                \
  RUNS(name, S, u64)                                                                               \
  LANES_OF(name, S, u64, (u64)(i64)x, s + (u64)(i64)x)
SUM_INTEGERS(sum_i32, i32)
SUM_INTEGERS(sum_i64, i64)

// Adds up the bytes, or counts those that are not zero.
static inline u64 add_bytes(const u8 *a, int64_t n, int count) {
  u64 sum = 0;
  int64_t i = 0;
#if defined(__AVX512BW__) && VECTOR_BYTES == 64
  __m512i sums = _mm512_setzero_si512();
  for (; i + 64 <= n; i += 64) {
    __m512i x = _mm512_loadu_si512(a + i);
    if (count) x = _mm512_min_epu8(x, _mm512_set1_epi8(1));
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(x, _mm512_setzero_si512()));
  }
  u64 parts[8];
  memcpy(parts, &sums, sizeof parts);
  for (int p = 0; p < 8; p++) sum += parts[p];
#elif defined(__AVX2__) && VECTOR_BYTES == 32
  __m256i sums = _mm256_setzero_si256();
  for (; i + 32 <= n; i += 32) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(a + i));
    if (count) x = _mm256_min_epu8(x, _mm256_set1_epi8(1));
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(x, _mm256_setzero_si256()));
  }
  u64 parts[4];
  memcpy(parts, &sums, sizeof parts);
  for (int p = 0; p < 4; p++) sum += parts[p];
#elif defined(__SSE2__)
  __m128i sums = _mm_setzero_si128();
  for (; i + 16 <= n; i += 16) {
    __m128i x = _mm_loadu_si128((const __m128i *)(a + i));
    if (count) x = _mm_min_epu8(x, _mm_set1_epi8(1));
    sums = _mm_add_epi64(sums, _mm_sad_epu8(x, _mm_setzero_si128()));
  }
  u64 parts[2];
  memcpy(parts, &sums, sizeof parts);
  for (int p = 0; p < 2; p++) sum += parts[p];
#endif
  for (; i < n; i++) sum += count ? a[i] != 0 : a[i];
  return sum;
}
static inline u64 sum_u8_run(const u8 *a, int64_t n) { return add_bytes(a, n, 0); }
static inline u64 count_u8_run(const u8 *a, int64_t n) { return add_bytes(a, n, 1); }
RUNS(sum_u8, u8, u64)
RUNS(count_u8, u8, u64)
LANES_OF(sum_u8, u8, u64, x, s + x)
LANES_OF(count_u8, u8, u64, x != 0, s + (x != 0))

// Products of floats are computed from left to right, as in the Go code.
#define PRODUCT(name, S, A, T)                                                                     \
  static inline A name##_run(const S *a, int64_t n) {                                              \
    A p = 1;                                                                                       \
    for (int64_t i = 0; i < n; i++) p *= (A)(T)a[i];                                               \
    return p;                                                                                      \
  }                                                                                                \
  RUNS(name, S, A)                                                                                 \
  LANES_OF(name, S, A, (A)(T)x, s * (A)(T)x)
PRODUCT(prod_f32, f32, f32, f32)
PRODUCT(prod_f64, f64, f64, f64)
PRODUCT(prod_u8, u8, u64, i64)
PRODUCT(prod_i32, i32, u64, i64)
PRODUCT(prod_i64, i64, u64, i64)

// Keeps the compiler from fusing a product and a sum. GCC 12 does so in complex products, although
// it is told not to.
static inline f64 rounded(f64 x) {
#if defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
  return x;
}

// Complex numbers are multiplied in float64, and compared by their real part first. The least one
// is the first NaN.
#define COMPLEX_FOLDS(type, T)                                                                     \
  static inline type prod_##type##_run(const type *a, int64_t n) {                                 \
    type s = {1, 0};                                                                               \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const f64 re = rounded((f64)s.re * a[i].re) - rounded((f64)s.im * a[i].im);                  \
      const f64 im = rounded((f64)s.re * a[i].im) + rounded((f64)s.im * a[i].re);                  \
      s = (type){(T)re, (T)im};                                                                    \
    }                                                                                              \
    return s;                                                                                      \
  }                                                                                                \
  RUNS(prod_##type, type, type)                                                                    \
  static void prod_##type##_lanes(void *accumulators, const void *in, int64_t n, int64_t stride,   \
                                  int64_t rows, int begin) {                                       \
    const char *from = in;                                                                         \
    if (begin) memcpy(accumulators, from, n * sizeof(type));                                       \
    for (int64_t row = begin != 0; row < rows; row++)                                              \
      multiply_##type(n, accumulators, accumulators, from + row * stride, 0);                      \
  }                                                                                                \
  static inline type min_of_##type(const type s, const type x) {                                   \
    const int keep = (s.re < x.re) | ((s.re == x.re) & (s.im <= x.im)) | (s.re != s.re) | (s.im != s.im); \
    return (type){keep ? s.re : x.re, keep ? s.im : x.im};                                         \
  }                                                                                                \
  static inline type max_of_##type(const type s, const type x) {                                   \
    const int keep = (x.re < s.re) | ((x.re == s.re) & (x.im <= s.im)) | (s.re != s.re) | (s.im != s.im); \
    return (type){keep ? s.re : x.re, keep ? s.im : x.im};                                         \
  }                                                                                                \
  COMPLEX_EXTREME(min_##type, type, min_of_##type)                                                 \
  COMPLEX_EXTREME(max_##type, type, max_of_##type)
#define COMPLEX_EXTREME(name, type, next)                                                          \
  static inline type name##_run(const type *a, int64_t n) {                                        \
    type s = a[0];                                                                                 \
    for (int64_t i = 1; i < n; i++) s = next(s, a[i]);                                             \
    return s;                                                                                      \
  }                                                                                                \
  RUNS(name, type, type)                                                                           \
  LANES_OF(name, type, type, x, next(s, x))
COMPLEX_FOLDS(c64, f32)
COMPLEX_FOLDS(c128, f64)

#define EXTREME_INTEGERS(name, S, before)                                                          \
  static inline S name##_run(const S *a, int64_t n) {                                              \
    S m = a[0];                                                                                    \
    EACH(i, n) m = a[i] before m ? a[i] : m;                                                       \
    return m;                                                                                      \
  }                                                                                                \
  RUNS(name, S, S)                                                                                 \
  LANES_OF(name, S, S, x, x before s ? x : s)
EXTREME_INTEGERS(min_u8, u8, <)
EXTREME_INTEGERS(min_i32, i32, <)
EXTREME_INTEGERS(min_i64, i64, <)
EXTREME_INTEGERS(max_u8, u8, >)
EXTREME_INTEGERS(max_i32, i32, >)
EXTREME_INTEGERS(max_i64, i64, >)

// VECTOR_MIN is x < m ? x : m in each lane, VECTOR_MAX alike. VECTOR_NAN is not zero if x or y has
// a NaN.
#if defined(__AVX512F__) && VECTOR_BYTES == 64
#define VECTOR_MIN(type, x, m) _mm512_min_##type(x, m)
#define VECTOR_MAX(type, x, m) _mm512_max_##type(x, m)
#define VECTOR_NAN(type, x, y) (u32)_mm512_cmp_##type##_mask(x, y, _CMP_UNORD_Q)
typedef __m512 vector_f32;
typedef __m512d vector_f64;
#elif defined(__AVX2__) && VECTOR_BYTES == 32
#define VECTOR_MIN(type, x, m) _mm256_min_##type(x, m)
#define VECTOR_MAX(type, x, m) _mm256_max_##type(x, m)
#define VECTOR_NAN(type, x, y) (u32)_mm256_movemask_##type(_mm256_cmp_##type(x, y, _CMP_UNORD_Q))
typedef __m256 vector_f32;
typedef __m256d vector_f64;
#elif defined(__SSE2__)
#define VECTOR_MIN(type, x, m) _mm_min_##type(x, m)
#define VECTOR_MAX(type, x, m) _mm_max_##type(x, m)
#define VECTOR_NAN(type, x, y) (u32)_mm_movemask_##type(_mm_cmpunord_##type(x, y))
typedef __m128 vector_f32;
typedef __m128d vector_f64;
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VECTOR_MIN(type, x, m) vbslq_##type(vcltq_##type(x, m), x, m)
#define VECTOR_MAX(type, x, m) vbslq_##type(vcgtq_##type(x, m), x, m)
#define VECTOR_NAN(type, x, y) nan_##type(x, y)
#define ps f32
#define pd f64
typedef float32x4_t vector_f32;
typedef float64x2_t vector_f64;
static inline u32 nan_f32(float32x4_t x, float32x4_t y) {
  return ~vminvq_u32(vandq_u32(vceqq_f32(x, x), vceqq_f32(y, y)));
}
static inline u32 nan_f64(float64x2_t x, float64x2_t y) {
  uint64x2_t same = vandq_u64(vceqq_f64(x, x), vceqq_f64(y, y));
  return (u32)~(vgetq_lane_u64(same, 0) & vgetq_lane_u64(same, 1));
}
#endif

// The least float, or the first NaN. Of zeros of both signs it is the first one: the vectors do not
// know which that is, so it is looked for afterwards.
#define EXTREME_FLOATS(name, S, before, reaches, VECTOR, type)                                          \
  static inline S name##_next(const S s, const S x) { return (s reaches x) | (s != s) ? s : x; }   \
  static inline S name##_run(const S *a, int64_t n) {                                              \
    enum { lanes = VECTOR_BYTES / sizeof(S), vectors = 4 };                                        \
    S m = a[0];                                                                                    \
    u32 undefined = m != m;                                                                        \
    int64_t i = 1;                                                                                 \
    if (n >= vectors * lanes) {                                                                    \
      vector_##S best[vectors], x[vectors];                                                        \
      memcpy(best, a, sizeof best);                                                                \
      for (int v = 0; v < vectors; v += 2) undefined |= VECTOR_NAN(type, best[v], best[v + 1]);    \
      for (i = vectors * lanes; i + vectors * lanes <= n; i += vectors * lanes) {                  \
        memcpy(x, a + i, sizeof x);                                                                \
        for (int v = 0; v < vectors; v++) best[v] = VECTOR(type, x[v], best[v]);                   \
        for (int v = 0; v < vectors; v += 2) undefined |= VECTOR_NAN(type, x[v], x[v + 1]);        \
      }                                                                                            \
      S each[vectors * lanes];                                                                     \
      memcpy(each, best, sizeof each);                                                             \
      for (int k = 0; k < vectors * (int)lanes; k++) m = each[k] before m ? each[k] : m;           \
    }                                                                                              \
    for (; i < n; i++) {                                                                           \
      undefined |= a[i] != a[i];                                                                   \
      m = a[i] before m ? a[i] : m;                                                                \
    }                                                                                              \
    if (undefined)                                                                                 \
      for (i = 0; a[i] == a[i];) i++;                                                              \
    else if (m == 0)                                                                               \
      for (i = 0; a[i] != 0;) i++;                                                                 \
    else                                                                                           \
      return m;                                                                                    \
    return a[i];                                                                                   \
  }                                                                                                \
  RUNS(name, S, S)                                                                                 \
  /* Folds four rows. Vectors without a NaN need no other test. */                                 \
  static void name##_four(S *s, const char *from, int64_t n, int64_t stride) {                     \
    enum { lanes = VECTOR_BYTES / sizeof(S) };                                                     \
    const S *rows[4] = {(const S *)from, (const S *)(from + stride), (const S *)(from + 2 * stride), \
                        (const S *)(from + 3 * stride)};                                           \
    int64_t i = 0;                                                                                 \
    for (; i + lanes <= n; i += lanes) {                                                           \
      vector_##S m, x[4];                                                                          \
      memcpy(&m, s + i, sizeof m);                                                                 \
      for (int r = 0; r < 4; r++) memcpy(&x[r], rows[r] + i, sizeof m);                            \
      if (VECTOR_NAN(type, x[0], x[1]) | VECTOR_NAN(type, x[2], x[3]) | VECTOR_NAN(type, m, m)) {  \
        for (int64_t k = i; k < i + lanes; k++)                                                    \
          for (int r = 0; r < 4; r++) s[k] = name##_next(s[k], rows[r][k]);                        \
        continue;                                                                                  \
      }                                                                                            \
      for (int r = 0; r < 4; r++) m = VECTOR(type, x[r], m);                                       \
      memcpy(s + i, &m, sizeof m);                                                                 \
    }                                                                                              \
    for (; i < n; i++)                                                                             \
      for (int r = 0; r < 4; r++) s[i] = name##_next(s[i], rows[r][i]);                            \
  }                                                                                                \
  static void name##_lanes(void *accumulators, const void *in, int64_t n, int64_t stride,          \
                           int64_t rows, int begin) {                                              \
    const char *from = in;                                                                         \
    S *s = accumulators;                                                                           \
    if (begin) {                                                                                   \
      memcpy(s, from, n * sizeof(S));                                                              \
      from += stride;                                                                              \
      rows--;                                                                                      \
    }                                                                                              \
    for (; rows >= 4; rows -= 4, from += 4 * stride) name##_four(s, from, n, stride);              \
    for (; rows > 0; rows--, from += stride)                                                       \
      EACH(i, n) s[i] = name##_next(s[i], ((const S *)from)[i]);                                   \
  }
EXTREME_FLOATS(min_f32, f32, <, <=, VECTOR_MIN, ps)
EXTREME_FLOATS(min_f64, f64, <, <=, VECTOR_MIN, pd)
EXTREME_FLOATS(max_f32, f32, >, >=, VECTOR_MAX, ps)
EXTREME_FLOATS(max_f64, f64, >, >=, VECTOR_MAX, pd)

// Tests of elements; U is an unsigned type of the same width. They look at CHUNK elements at a
// time, and stop when the result is known.
#define CHUNK 512
#define TRUTHS(type, S, U, nonzero)                                                                   \
  static inline int type##_is(const S x) { return nonzero; }                                       \
  static inline u8 any_##type##_run(const S *a, int64_t n) {                                       \
    for (int64_t i = 0; i < n; i += CHUNK) {                                                       \
      const int64_t m = n - i < CHUNK ? n - i : CHUNK;                                             \
      const S *part = a + i;                                                                       \
      U found = 0;                                                                                 \
      EACH(k, m) found |= type##_is(part[k]) ? 1 : 0;                                              \
      if (found) return 1;                                                                         \
    }                                                                                              \
    return 0;                                                                                      \
  }                                                                                                \
  static inline u8 all_##type##_run(const S *a, int64_t n) {                                       \
    for (int64_t i = 0; i < n; i += CHUNK) {                                                       \
      const int64_t m = n - i < CHUNK ? n - i : CHUNK;                                             \
      const S *part = a + i;                                                                       \
      U found = 0;                                                                                 \
      EACH(k, m) found |= type##_is(part[k]) ? 0 : 1;                                              \
      if (found) return 0;                                                                         \
    }                                                                                              \
    return 1;                                                                                      \
  }                                                                                                \
  RUNS(any_##type, S, u8)                                                                          \
  RUNS(all_##type, S, u8)                                                                          \
  LANES_OF(any_##type, S, u8, type##_is(x) ? 1 : 0, s | (type##_is(x) ? 1 : 0))                    \
  LANES_OF(all_##type, S, u8, type##_is(x) ? 1 : 0, s & (type##_is(x) ? 1 : 0))
TRUTHS(u8, u8, u8, x != 0)
TRUTHS(i32, i32, u32, x != 0)
TRUTHS(i64, i64, u64, x != 0)
TRUTHS(f32, f32, u32, x != 0)
TRUTHS(f64, f64, u64, x != 0)
TRUTHS(c64, c64, u64, (x.re != 0) | (x.im != 0))
TRUTHS(c128, c128, u64, (x.re != 0) | (x.im != 0))

#define COUNT(type, S, U)                                                                          \
  static inline u64 count_##type##_run(const S *a, int64_t n) {                                    \
    u64 sum = 0;                                                                                   \
    for (int64_t i = 0; i < n; i += 1 << 20) {                                                     \
      const int64_t m = n - i < 1 << 20 ? n - i : 1 << 20;                                         \
      const S *part = a + i;                                                                       \
      U found = 0;                                                                                 \
      EACH(k, m) found += type##_is(part[k]) ? 1 : 0;                                              \
      sum += found;                                                                                \
    }                                                                                              \
    return sum;                                                                                    \
  }                                                                                                \
  RUNS(count_##type, S, u64)                                                                       \
  LANES_OF(count_##type, S, u64, type##_is(x) ? 1 : 0, s + (type##_is(x) ? 1 : 0))
COUNT(i32, i32, u32)
COUNT(i64, i64, u64)
COUNT(f32, f32, u32)
COUNT(f64, f64, u64)
COUNT(c64, c64, u64)
COUNT(c128, c128, u64)

// The sums of complex numbers take pointers to real ones.
#define FOLD_ROW(function, from, to, name) {function, from, to, name##_runs, name##_lanes}
#define TRUTH_FOLDS(from, type) FOLD_ROW("any", from, BOOL, any_##type), FOLD_ROW("all", from, BOOL, all_##type), FOLD_ROW("count", from, INT64, count_##type)
#define INTEGER_FOLDS(from, type)                                                                  \
  FOLD_ROW("sum", from, INT64, sum_##type), FOLD_ROW("sum", from, FLOAT64, sum_##type##_f64), FOLD_ROW("prod", from, INT64, prod_##type), \
      FOLD_ROW("min", from, from, min_##type), FOLD_ROW("max", from, from, max_##type), TRUTH_FOLDS(from, type)
#define FLOAT_FOLDS(from, type)                                                                    \
  FOLD_ROW("sum", from, from, sum_##type), FOLD_ROW("prod", from, from, prod_##type), FOLD_ROW("min", from, from, min_##type), \
      FOLD_ROW("max", from, from, max_##type), TRUTH_FOLDS(from, type)

const struct simd_fold IN_SET(simd_folds)[] = {
    INTEGER_FOLDS(BOOL, u8),
    INTEGER_FOLDS(UINT8, u8),
    INTEGER_FOLDS(INT32, i32),
    INTEGER_FOLDS(INT64, i64),
    FLOAT_FOLDS(FLOAT32, f32),
    FLOAT_FOLDS(FLOAT64, f64),
    FOLD_ROW("sum", FLOAT32, FLOAT64, sum_f32_f64),
    FLOAT_FOLDS(COMPLEX64, c64),
    FLOAT_FOLDS(COMPLEX128, c128),
    {0},
};

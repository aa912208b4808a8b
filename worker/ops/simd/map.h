// The element-wise kernels: operators, functions and conversions. The comments of kernel.go,
// arith.go and cast.go in package ops say what each one computes.
#include <math.h>
#include <string.h>

#include "simd.h"

// Roots set no errno that anything reads: without this, GCC computes them one by one.
double sqrt(double) __attribute__((const));
float sqrtf(float) __attribute__((const));

typedef uint8_t u8;
typedef int32_t i32;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;
typedef struct { f32 re, im; } c64;
typedef struct { f64 re, im; } c128;
// Whole vectors.
typedef f32 v32 __attribute__((vector_size(VECTOR_BYTES)));
typedef f64 v64 __attribute__((vector_size(VECTOR_BYTES)));
typedef i64 vi64 __attribute__((vector_size(VECTOR_BYTES)));

// Kernels of one and two operands: the expression computes from x and y.
#define UNARY(name, D, A, expression)                                                          \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    D *d = dp;                                                                                 \
    const A *a = ap;                                                                           \
    (void)bp, (void)cp;                                                                        \
    EACH(i, n) {                                                                               \
      const A x = a[i];                                                                        \
      d[i] = (expression);                                                                     \
    }                                                                                          \
    return 0;                                                                                  \
  }
#define BINARY(name, D, A, expression)                                                         \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    D *d = dp;                                                                                 \
    const A *a = ap, *b = bp;                                                                  \
    (void)cp;                                                                                  \
    EACH(i, n) {                                                                               \
      const A x = a[i], y = b[i];                                                              \
      d[i] = (expression);                                                                     \
    }                                                                                          \
    return 0;                                                                                  \
  }

// Unsigned integers wrap around, as Go's integers do. T is the type, U the unsigned one.
#define NUMBERS(T, U)                                                                          \
  BINARY(add_##T, U, U, (U)(x + y))                                                            \
  BINARY(subtract_##T, U, U, (U)(x - y))                                                       \
  BINARY(multiply_##T, U, U, (U)(x * y))                                                       \
  UNARY(square_##T, U, U, (U)(x * x))                                                          \
  BINARY(equal_##T, u8, T, x == y)                                                             \
  BINARY(unequal_##T, u8, T, x != y)                                                           \
  BINARY(less_##T, u8, T, x < y)                                                               \
  BINARY(less_equal_##T, u8, T, x <= y)                                                        \
  BINARY(greater_##T, u8, T, x > y)                                                            \
  BINARY(greater_equal_##T, u8, T, x >= y)                                                     \
  BINARY(minimum_##T, T, T, x <= y || x != x ? x : y)                                          \
  BINARY(maximum_##T, T, T, x >= y || x != x ? x : y)

#define INTEGERS(T, U)                                                                         \
  NUMBERS(T, U)                                                                                \
  UNARY(negate_##T, U, U, (U)(0 - x))                                                          \
  BINARY(and_##T, T, T, x & y)                                                                 \
  BINARY(or_##T, T, T, x | y)                                                                  \
  BINARY(xor_##T, T, T, x ^ y)                                                                 \
  UNARY(not_##T, T, T, ~x)                                                                     \
  UNARY(abs_##T, U, T, x < 0 ? 0 - (U)x : (U)x)                                                \
  UNARY(sign_##T, T, T, (x > 0) - (x < 0))                                                     \
  static int power_##T(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {  \
    U *d = dp;                                                                                 \
    const U *a = ap;                                                                           \
    const T *b = bp;                                                                           \
    (void)cp;                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                          \
      U x = a[i], result = 1;                                                                  \
      if (b[i] < 0) return SIMD_NEGATIVE_POWER;                                                \
      for (U k = (U)b[i]; k > 0; k >>= 1) {                                                    \
        if (k & 1) result *= x;                                                                \
        x *= x;                                                                                \
      }                                                                                        \
      d[i] = result;                                                                           \
    }                                                                                          \
    return 0;                                                                                  \
  }

#define FLOATS(T, suffix)                                                                      \
  NUMBERS(T, T)                                                                                \
  UNARY(negate_##T, T, T, -x)                                                                  \
  BINARY(divide_##T, T, T, x / y)                                                              \
  UNARY(reciprocal_##T, T, T, 1 / x)                                                           \
  UNARY(sqrt_##T, T, T, sqrt##suffix(x))                                             \
  UNARY(abs_##T, T, T, __builtin_fabs##suffix(x))                                              \
  UNARY(sign_##T, T, T, x > 0 ? 1 : x < 0 ? -1 : x)                                            \
  UNARY(isnan_##T, u8, T, x != x)                                                              \
  UNARY(isfinite_##T, u8, T, x - x == 0)                                                       \
  UNARY(isinf_##T, u8, T, __builtin_fabs##suffix(x) == __builtin_inf##suffix())

INTEGERS(u8, u8)
INTEGERS(i32, u32)
INTEGERS(i64, u64)
FLOATS(f32, f)
FLOATS(f64, )

#ifdef HAS_ROUNDING
#define ROUNDING(T, suffix)                                                                    \
  UNARY(floor_##T, T, T, __builtin_floor##suffix(x))                                           \
  UNARY(ceil_##T, T, T, __builtin_ceil##suffix(x))                                             \
  UNARY(trunc_##T, T, T, __builtin_trunc##suffix(x))                                           \
  UNARY(round_##T, T, T, __builtin_rint##suffix(x))
ROUNDING(f32, f)
ROUNDING(f64, )
#endif

// The bytes of bools are 0 and 1.
UNARY(not_bool, u8, u8, x ^ 1)

// Blocks that no operand decides.
static int zeros1(int64_t n, void *d, const void *a, const void *b, const void *c) {
  (void)a, (void)b, (void)c;
  memset(d, 0, n);
  return 0;
}
static int ones1(int64_t n, void *d, const void *a, const void *b, const void *c) {
  (void)a, (void)b, (void)c;
  memset(d, 1, n);
  return 0;
}

#define MOVES(bytes)                                                                           \
  static int copy##bytes(int64_t n, void *d, const void *a, const void *b, const void *c) {    \
    (void)b, (void)c;                                                                          \
    memmove(d, a, n *bytes);                                                                   \
    return 0;                                                                                  \
  }
MOVES(1)
MOVES(4)
MOVES(8)
MOVES(16)

#define CHOICE(name, T)                                                                        \
  static int name(int64_t n, void *dp, const void *cp, const void *ap, const void *bp) {       \
    T *d = dp;                                                                                 \
    const u8 *c = cp;                                                                          \
    const T *a = ap, *b = bp;                                                                  \
    EACH(i, n) {                                                                               \
      const T x = a[i], y = b[i];                                                              \
      d[i] = c[i] ? x : y;                                                                     \
    }                                                                                          \
    return 0;                                                                                  \
  }
CHOICE(choose1, u8)
CHOICE(choose4, u32)
CHOICE(choose8, u64)
CHOICE(choose16, c128)

// Quotients that are rounded down, and remainders with the sign of the divisor. Division by zero
// gives zero. An int32 is exact as a float64, and rounding never brings a quotient of two of them
// to the next integer.
#ifdef HAS_ROUNDING
static inline i32 quotient_i32(i32 x, i32 y) {
  f64 q = __builtin_floor((f64)x / (f64)y);
  return y == 0 ? 0 : q > INT32_MAX ? INT32_MIN : (i32)q;
}
BINARY(floor_divide_i32, i32, i32, quotient_i32(x, y))
BINARY(modulo_i32, i32, i32, y == 0 ? 0 : (i32)((u32)x - (u32)quotient_i32(x, y) * (u32)y))

static inline u8 quotient_u8(u8 x, u8 y) { return y == 0 ? 0 : (u8)(i32)((f32)x / (f32)y); }
BINARY(floor_divide_u8, u8, u8, quotient_u8(x, y))
BINARY(modulo_u8, u8, u8, y == 0 ? 0 : (u8)(x - quotient_u8(x, y) * y))

static inline i64 quotient_i64(i64 x, i64 y) {
  if (y == 0) return 0;
  if (y == -1) return (i64)(0 - (u64)x);
  i64 q = x / y;
  return q - (x % y != 0 && (x < 0) != (y < 0));
}

// The same holds for the int64 below 2^52. Groups of them are divided as float64; other groups are
// divided one by one.
enum { GROUP = 64 };
#define WIDE_DIVISION(name, fast, slow)                                                        \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    i64 *d = dp;                                                                               \
    const i64 *a = ap, *b = bp;                                                                \
    (void)cp;                                                                                  \
    for (int64_t at = 0; at < n; at += GROUP, d += GROUP, a += GROUP, b += GROUP) {            \
      const int64_t m = n - at < GROUP ? n - at : GROUP;                                       \
      const u64 half = (u64)1 << 52;                                                           \
      u64 large = 0;                                                                           \
      for (int64_t i = 0; i < m; i++)                                                          \
        large |= (((u64)a[i] + half) | ((u64)b[i] + half)) >> 53;                              \
      if (large) {                                                                             \
        for (int64_t i = 0; i < m; i++) {                                                      \
          const i64 x = a[i], y = b[i];                                                        \
          d[i] = (slow);                                                                       \
        }                                                                                      \
        continue;                                                                              \
      }                                                                                        \
      EACH(i, m) {                                                                             \
        const f64 x = (f64)a[i], y = (f64)b[i];                                                \
        const f64 q = y == 0 ? 0 : __builtin_floor(x / y);                                     \
        d[i] = (i64)(fast);                                                                    \
      }                                                                                        \
    }                                                                                          \
    return 0;                                                                                  \
  }
WIDE_DIVISION(floor_divide_i64, q, quotient_i64(x, y))
WIDE_DIVISION(modulo_i64, y == 0 ? 0 : x - q * y, y == 0 ? 0 : (i64)((u64)x - (u64)quotient_i64(x, y) * (u64)y))
#endif

// Floats follow Python: see divmod in package ops. The quotient of a fast division is either right
// or one too far from zero, and its remainder is then exact. Groups with larger quotients, or with
// infinite numbers, call fmod.
#ifdef HAS_FMA
#define FLOAT_DIVISION(T, suffix, limit)                                                       \
  static inline T rest_##T(T a, T b) {                                                         \
    const T r = __builtin_fma##suffix(-__builtin_trunc##suffix(a / b), b, a);                  \
    return r != 0 && (r < 0) != (a < 0) ? r + __builtin_copysign##suffix(b, a) : r;            \
  }                                                                                            \
  static inline T floored_##T(T a, T b, T rest) {                                              \
    T q = (a - rest) / b;                                                                      \
    q = rest != 0 && (rest < 0) != (b < 0) ? q - 1 : q;                                        \
    T whole = __builtin_floor##suffix(q);                                                      \
    whole = q - whole > (T)0.5 ? whole + 1 : whole;                                            \
    whole = q == 0 ? __builtin_copysign##suffix(0, a / b) : whole;                             \
    return b == 0 ? a / b : whole;                                                             \
  }                                                                                            \
  static inline T signed_##T(T b, T rest) {                                                    \
    T r = rest == 0 ? __builtin_copysign##suffix(0, b) : (rest < 0) != (b < 0) ? rest + b : rest; \
    return b == 0 ? rest : r;                                                                  \
  }                                                                                            \
  static inline int groups_##T(int64_t n, T *d, const T *a, const T *b, int modulo) {          \
    for (int64_t at = 0; at < n; at += GROUP, d += GROUP, a += GROUP, b += GROUP) {            \
      const int64_t m = n - at < GROUP ? n - at : GROUP;                                       \
      int slow = 0;                                                                            \
      for (int64_t i = 0; i < m; i++)                                                          \
        slow |= !(__builtin_fabs##suffix(a[i] / b[i]) < (T)limit) | (__builtin_fabs##suffix(b[i]) == __builtin_inf##suffix()); \
      T rest[GROUP];                                                                           \
      if (slow)                                                                                \
        for (int64_t i = 0; i < m; i++) rest[i] = fmod##suffix(a[i], b[i]);                    \
      else                                                                                     \
        EACH(i, m) rest[i] = rest_##T(a[i], b[i]);                                             \
      if (modulo)                                                                              \
        EACH(i, m) d[i] = signed_##T(b[i], rest[i]);                                           \
      else                                                                                     \
        EACH(i, m) d[i] = floored_##T(a[i], b[i], rest[i]);                                    \
    }                                                                                          \
    return 0;                                                                                  \
  }                                                                                            \
  static int floor_divide_##T(int64_t n, void *d, const void *a, const void *b, const void *c) { \
    (void)c;                                                                                   \
    return groups_##T(n, d, a, b, 0);                                                          \
  }                                                                                            \
  static int modulo_##T(int64_t n, void *d, const void *a, const void *b, const void *c) {     \
    (void)c;                                                                                   \
    return groups_##T(n, d, a, b, 1);                                                          \
  }
FLOAT_DIVISION(f32, f, (1 << 22))
FLOAT_DIVISION(f64, , ((i64)1 << 51))
#endif

// Distances from zero, which do not overflow on the way.
static inline f64 hypotenuse(f64 x, f64 y) {
  const f64 a = __builtin_fabs(x), b = __builtin_fabs(y), p = a > b ? a : b, q = a > b ? b : a, ratio = q / p;
  const f64 h = p * sqrt(1 + ratio * ratio);
  const f64 finite = p == 0 ? 0 : h;
  const f64 undefined = x != x || y != y ? x + y : finite;
  return a == __builtin_inf() || b == __builtin_inf() ? __builtin_inf() : undefined;
}
BINARY(hypot_f32, f32, f32, (f32)hypotenuse(x, y))
BINARY(hypot_f64, f64, f64, hypotenuse(x, y))

// Complex numbers. Products and quotients of c64 are computed in float64, as Go does.
#define PARTS2(name, T, C)                                                                     \
  static int name##_##C(int64_t n, void *d, const void *a, const void *b, const void *c) {     \
    return name##_##T(2 * n, d, a, b, c);                                                      \
  }
static inline c128 product(f64 a, f64 b, f64 c, f64 d) { return (c128){a * c - b * d, a * d + b * c}; }
static inline c128 quotient(f64 a, f64 b, f64 c, f64 d) {
  const int wide = __builtin_fabs(c) >= __builtin_fabs(d);
  const f64 large = wide ? c : d, small = wide ? d : c, u = wide ? a : b, v = wide ? b : a, ratio = small / large;
  const f64 scale = 1 / (large + small * ratio), w = u * ratio;
  const f64 re = (u + v * ratio) * scale, im = (wide ? v - w : w - v) * scale, zero = __builtin_fabs(c);
  const int none = c == 0 && d == 0;
  return (c128){none ? a / zero : re, none ? b / zero : im};
}
#define LESS(x, y) (x.re < y.re || (x.re == y.re && x.im < y.im))
#define LESS_EQUAL(x, y) (x.re < y.re || (x.re == y.re && x.im <= y.im))
#define UNDEFINED(x) (x.re != x.re || x.im != x.im)
#define INFINITE(x) (__builtin_fabs(x.re) == __builtin_inf() || __builtin_fabs(x.im) == __builtin_inf())
#define COMPLEX_LOOP2(name, C, T, function)                                                    \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    C *d = dp;                                                                                 \
    const C *a = ap, *b = bp;                                                                  \
    (void)cp;                                                                                  \
    EACH(i, n) {                                                                               \
      const c128 z = function(a[i].re, a[i].im, b[i].re, b[i].im);                             \
      d[i].re = (T)z.re;                                                                       \
      d[i].im = (T)z.im;                                                                       \
    }                                                                                          \
    return 0;                                                                                  \
  }
#define COMPLEX_LOOP1(name, C, T, expression)                                                  \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    C *d = dp;                                                                                 \
    const C *a = ap;                                                                           \
    (void)bp, (void)cp;                                                                        \
    EACH(i, n) {                                                                               \
      const C x = a[i];                                                                        \
      const c128 z = (expression);                                                             \
      d[i].re = (T)z.re;                                                                       \
      d[i].im = (T)z.im;                                                                       \
    }                                                                                          \
    return 0;                                                                                  \
  }
#define COMPLEXES(C, T)                                                                        \
  PARTS2(add, T, C)                                                                            \
  PARTS2(subtract, T, C)                                                                       \
  PARTS2(negate, T, C)                                                                         \
  COMPLEX_LOOP2(divide_##C, C, T, quotient)                                                    \
  COMPLEX_LOOP1(reciprocal_##C, C, T, quotient(1, 0, x.re, x.im))                              \
  COMPLEX_LOOP1(conj_##C, C, T, ((c128){x.re, -x.im}))                                         \
  UNARY(abs_##C, T, C, (T)hypotenuse(x.re, x.im))                                              \
  UNARY(real_##C, T, C, x.re)                                                                  \
  UNARY(imag_##C, T, C, x.im)                                                                  \
  UNARY(isnan_##C, u8, C, UNDEFINED(x))                                                        \
  UNARY(isinf_##C, u8, C, INFINITE(x))                                                         \
  UNARY(isfinite_##C, u8, C, (x.re - x.re == 0) & (x.im - x.im == 0))                          \
  BINARY(equal_##C, u8, C, (x.re == y.re) & (x.im == y.im))                                    \
  BINARY(unequal_##C, u8, C, (x.re != y.re) | (x.im != y.im))                                  \
  BINARY(less_##C, u8, C, LESS(x, y))                                                          \
  BINARY(less_equal_##C, u8, C, LESS_EQUAL(x, y))                                              \
  BINARY(greater_##C, u8, C, LESS(y, x))                                                       \
  BINARY(greater_equal_##C, u8, C, LESS_EQUAL(y, x))                                           \
  BINARY(minimum_##C, C, C, LESS_EQUAL(x, y) || UNDEFINED(x) ? x : y)                          \
  BINARY(maximum_##C, C, C, LESS_EQUAL(y, x) || UNDEFINED(x) ? x : y)
COMPLEXES(c64, f32)
COMPLEXES(c128, f64)
COMPLEX_LOOP2(multiply_c64, c64, f32, product)
COMPLEX_LOOP1(square_c64, c64, f32, product(x.re, x.im, x.re, x.im))

// The vectors are written out, because GCC 12 turns the loop into fused instructions, which round
// once less, whatever the options say.
#if VECTOR_BYTES == 64
#define REAL_PARTS(x) __builtin_shufflevector(x, x, 0, 0, 2, 2, 4, 4, 6, 6)
#define IMAGINARY_PARTS(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7)
#define SWAPPED_PARTS(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define REAL_SIGNS ((vi64){INT64_MIN, 0, INT64_MIN, 0, INT64_MIN, 0, INT64_MIN, 0})
#elif VECTOR_BYTES == 32
#define REAL_PARTS(x) __builtin_shufflevector(x, x, 0, 0, 2, 2)
#define IMAGINARY_PARTS(x) __builtin_shufflevector(x, x, 1, 1, 3, 3)
#define SWAPPED_PARTS(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#define REAL_SIGNS ((vi64){INT64_MIN, 0, INT64_MIN, 0})
#else
#define REAL_PARTS(x) __builtin_shufflevector(x, x, 0, 0)
#define IMAGINARY_PARTS(x) __builtin_shufflevector(x, x, 1, 1)
#define SWAPPED_PARTS(x) __builtin_shufflevector(x, x, 1, 0)
#define REAL_SIGNS ((vi64){INT64_MIN, 0})
#endif
static inline v64 products(v64 x, v64 y) {
  const v64 p = REAL_PARTS(x) * y, q = IMAGINARY_PARTS(x) * SWAPPED_PARTS(y);
  return p + (v64)((vi64)q ^ REAL_SIGNS);
}
static int multiply_c128(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {
  c128 *d = dp;
  const c128 *a = ap, *b = bp;
  (void)cp;
  const int64_t lanes = sizeof(v64) / sizeof(c128);
  int64_t i = 0;
  v64 x = {0}, y = {0};
  for (; i + lanes <= n; i += lanes) {
    memcpy(&x, a + i, sizeof x);
    memcpy(&y, b + i, sizeof y);
    x = products(x, y);
    memcpy(d + i, &x, sizeof x);
  }
  memcpy(&x, a + i, (n - i) * sizeof *a);
  memcpy(&y, b + i, (n - i) * sizeof *b);
  x = products(x, y);
  memcpy(d + i, &x, (n - i) * sizeof *d);
  return 0;
}
static int square_c128(int64_t n, void *d, const void *a, const void *b, const void *c) {
  (void)b;
  return multiply_c128(n, d, a, a, c);
}

// Conversions. A float that the integer cannot hold becomes the smallest integer.
static inline i64 truncated(f64 x) { return x >= -0x1p63 && x < 0x1p63 ? (i64)x : INT64_MIN; }
static inline i32 truncated32(f64 x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (i32)x : INT32_MIN; }

#define FROM(A)                                                                                \
  UNARY(A##_to_bool, u8, A, x != 0)                                                            \
  UNARY(A##_to_f32, f32, A, (f32)x)                                                            \
  UNARY(A##_to_f64, f64, A, (f64)x)                                                            \
  UNARY(A##_to_c64, c64, A, ((c64){(f32)x, 0}))                                                \
  UNARY(A##_to_c128, c128, A, ((c128){(f64)x, 0}))
#define FROM_INTEGER(A)                                                                        \
  FROM(A)                                                                                      \
  UNARY(A##_to_u8, u8, A, (u8)x)                                                               \
  UNARY(A##_to_i32, i32, A, (i32)x)                                                            \
  UNARY(A##_to_i64, i64, A, (i64)x)
#define FROM_FLOAT(A)                                                                          \
  FROM(A)                                                                                      \
  UNARY(A##_to_u8, u8, A, (u8)truncated(x))                                                    \
  UNARY(A##_to_i32, i32, A, truncated32(x))                                                    \
  UNARY(A##_to_i64, i64, A, truncated(x))
#define FROM_COMPLEX(A)                                                                        \
  UNARY(A##_to_bool, u8, A, (x.re != 0) | (x.im != 0))                                         \
  UNARY(A##_to_u8, u8, A, (u8)truncated(x.re))                                                 \
  UNARY(A##_to_i32, i32, A, truncated32(x.re))                                                 \
  UNARY(A##_to_i64, i64, A, truncated(x.re))                                                   \
  UNARY(A##_to_f32, f32, A, (f32)x.re)                                                         \
  UNARY(A##_to_f64, f64, A, (f64)x.re)                                                         \
  UNARY(A##_to_c64, c64, A, ((c64){(f32)x.re, (f32)x.im}))                                     \
  UNARY(A##_to_c128, c128, A, ((c128){(f64)x.re, (f64)x.im}))
FROM_INTEGER(u8)
FROM_INTEGER(i32)
FROM_INTEGER(i64)
FROM_FLOAT(f32)
FROM_FLOAT(f64)
FROM_COMPLEX(c64)
FROM_COMPLEX(c128)

// Functions of libmvec: they take and return whole vectors. The last vector of a block is filled up
// with copies of the last element.

#define MATH1(name, T, V)                                                                      \
  static void *slot_##name;                                                                    \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    V (*const function)(V) = (V(*)(V))slot_##name;                                             \
    T *d = dp;                                                                                 \
    const T *a = ap;                                                                           \
    (void)bp, (void)cp;                                                                        \
    const int64_t lanes = sizeof(V) / sizeof(T);                                               \
    int64_t i = 0;                                                                             \
    V x = {0};                                                                                 \
    for (; i + lanes <= n; i += lanes) {                                                       \
      memcpy(&x, a + i, sizeof x);                                                             \
      x = function(x);                                                                         \
      memcpy(d + i, &x, sizeof x);                                                             \
    }                                                                                          \
    if (i == n) return 0;                                                                      \
    T last[sizeof(V) / sizeof(T)];                                                             \
    for (int64_t k = 0; k < lanes; k++) last[k] = a[i + k < n ? i + k : n - 1];                \
    name(lanes, last, last, 0, 0);                                                             \
    memcpy(d + i, last, (n - i) * sizeof(T));                                                  \
    return 0;                                                                                  \
  }
// apply(function, x, y) computes a vector; the function of libmvec may be a part of it.
#define CALLED(function, x, y) function(x, y)
#define MATH2(name, T, V, apply)                                                               \
  static void *slot_##name;                                                                    \
  static int name(int64_t n, void *dp, const void *ap, const void *bp, const void *cp) {       \
    V (*const function)(V, V) = (V(*)(V, V))slot_##name;                                       \
    T *d = dp;                                                                                 \
    const T *a = ap, *b = bp;                                                                  \
    (void)cp;                                                                                  \
    const int64_t lanes = sizeof(V) / sizeof(T);                                               \
    int64_t i = 0;                                                                             \
    V x = {0}, y = {0};                                                                        \
    for (; i + lanes <= n; i += lanes) {                                                       \
      memcpy(&x, a + i, sizeof x);                                                             \
      memcpy(&y, b + i, sizeof y);                                                             \
      x = apply(function, x, y);                                                               \
      memcpy(d + i, &x, sizeof x);                                                             \
    }                                                                                          \
    if (i == n) return 0;                                                                      \
    T last[2][sizeof(V) / sizeof(T)];                                                          \
    for (int64_t k = 0; k < lanes; k++) {                                                      \
      last[0][k] = a[i + k < n ? i + k : n - 1];                                               \
      last[1][k] = b[i + k < n ? i + k : n - 1];                                               \
    }                                                                                          \
    name(lanes, last[0], last[0], last[1], 0);                                                 \
    memcpy(d + i, last[0], (n - i) * sizeof(T));                                               \
    return 0;                                                                                  \
  }
#define MATH(function)                                                                         \
  MATH1(function##_f32, f32, v32)                                                              \
  MATH1(function##_f64, f64, v64)
MATH(exp) MATH(exp2) MATH(expm1) MATH(log) MATH(log2) MATH(log10) MATH(log1p)
MATH(sin) MATH(cos) MATH(tan) MATH(asin) MATH(acos) MATH(atan)
MATH(sinh) MATH(cosh) MATH(tanh) MATH(asinh) MATH(acosh) MATH(atanh)
MATH(cbrt)
MATH2(atan2_f32, f32, v32, CALLED) MATH2(atan2_f64, f64, v64, CALLED) MATH2(pow_f32, f32, v32, CALLED)
#if VECTOR_BYTES == 64
#include "powers.h"
MATH2(pow_f64, f64, v64, powers)
#else
MATH2(pow_f64, f64, v64, CALLED)
#endif

// A row of the table for a function that is the same for all types, or for one type.
#define ROW(function, type, run) {function, type, 0, run, 0, 0}
#define CAST_ROW(from, to, run) {"cast", from, to, run, 0, 0}

#define NUMBER_ROWS(type, T)                                                                   \
  ROW("+", type, add_##T), ROW("-", type, subtract_##T), ROW("*", type, multiply_##T),         \
      ROW("square", type, square_##T), ROW("neg", type, negate_##T)

#define ORDER_ROWS(type, T)                                                                    \
  ROW("==", type, equal_##T), ROW("!=", type, unequal_##T), ROW("<", type, less_##T),          \
      ROW("<=", type, less_equal_##T), ROW(">", type, greater_##T),                            \
      ROW(">=", type, greater_equal_##T)

#define REAL_ROWS(type, T)                                                                     \
  NUMBER_ROWS(type, T), ORDER_ROWS(type, T), ROW("minimum", type, minimum_##T),                \
      ROW("maximum", type, maximum_##T), ROW("abs", type, abs_##T), ROW("sign", type, sign_##T)

#define BIT_ROWS(type, T) ROW("&", type, and_##T), ROW("|", type, or_##T), ROW("^", type, xor_##T)

#define COPY_ROWS(type, run)                                                                   \
  ROW("copy", type, run), ROW("conj", type, run), ROW("real", type, run)

#define INTEGER_ROWS(type, T, copy)                                                            \
  REAL_ROWS(type, T), BIT_ROWS(type, T), COPY_ROWS(type, copy), ROW("~", type, not_##T),       \
      ROW("**", type, power_##T), ROW("floor", type, copy), ROW("ceil", type, copy),           \
      ROW("trunc", type, copy), ROW("round", type, copy), ROW("isfinite", type, ones1),        \
      ROW("isinf", type, zeros1), ROW("isnan", type, zeros1)

#define FLOAT_ROWS(type, T, copy)                                                              \
  REAL_ROWS(type, T), COPY_ROWS(type, copy), ROW("/", type, divide_##T),                       \
      ROW("reciprocal", type, reciprocal_##T), ROW("sqrt", type, sqrt_##T),                    \
      ROW("isnan", type, isnan_##T), ROW("isfinite", type, isfinite_##T),                      \
      ROW("isinf", type, isinf_##T)

#ifdef HAS_ROUNDING
#define ROUNDING_ROWS(type, T)                                                                 \
  ROW("floor", type, floor_##T), ROW("ceil", type, ceil_##T), ROW("trunc", type, trunc_##T),   \
      ROW("round", type, round_##T),
#else
#define ROUNDING_ROWS(type, T)
#endif

#define MATH_ROWS(name, letters, function)                                           \
  {name, FLOAT32, 0, function##_f32, VECTOR_NAME32 letters "_" #function "f", &slot_##function##_f32}, \
  {name, FLOAT64, 0, function##_f64, VECTOR_NAME64 letters "_" #function, &slot_##function##_f64}

#define COMPLEX_ROWS(type, C)                                                                  \
  NUMBER_ROWS(type, C), ORDER_ROWS(type, C), ROW("minimum", type, minimum_##C),                \
      ROW("maximum", type, maximum_##C), ROW("abs", type, abs_##C), ROW("/", type, divide_##C), \
      ROW("reciprocal", type, reciprocal_##C), ROW("conj", type, conj_##C),                    \
      ROW("real", type, real_##C), ROW("imag", type, imag_##C), ROW("isnan", type, isnan_##C), \
      ROW("isinf", type, isinf_##C), ROW("isfinite", type, isfinite_##C)

#define DIVISION_ROWS(type, T) ROW("//", type, floor_divide_##T), ROW("%", type, modulo_##T),

// The conversion of a type to itself is a copy.
#define CAST_ROWS(type, A)                                                                     \
  CAST_ROW(type, BOOL, A##_to_bool), CAST_ROW(type, UINT8, A##_to_u8), CAST_ROW(type, INT32, A##_to_i32), \
      CAST_ROW(type, INT64, A##_to_i64), CAST_ROW(type, FLOAT32, A##_to_f32),                  \
      CAST_ROW(type, FLOAT64, A##_to_f64), CAST_ROW(type, COMPLEX64, A##_to_c64),              \
      CAST_ROW(type, COMPLEX128, A##_to_c128)

static const struct simd_kernel IN_SET(simd_map)[] = {
    INTEGER_ROWS(UINT8, u8, copy1),
    INTEGER_ROWS(INT32, i32, copy4),
    INTEGER_ROWS(INT64, i64, copy8),
    FLOAT_ROWS(FLOAT32, f32, copy4),
    FLOAT_ROWS(FLOAT64, f64, copy8),
    ROUNDING_ROWS(FLOAT32, f32) ROUNDING_ROWS(FLOAT64, f64)
    // Bools.
    ROW("+", BOOL, or_u8), ROW("maximum", BOOL, or_u8), ROW("*", BOOL, and_u8),
    ROW("minimum", BOOL, and_u8), ROW("~", BOOL, not_bool), BIT_ROWS(BOOL, u8),
    ORDER_ROWS(BOOL, u8), COPY_ROWS(BOOL, copy1), ROW("abs", BOOL, copy1),
    ROW("floor", BOOL, copy1), ROW("ceil", BOOL, copy1), ROW("trunc", BOOL, copy1),
    ROW("isfinite", BOOL, ones1), ROW("isinf", BOOL, zeros1), ROW("isnan", BOOL, zeros1),
    // Choices.
    ROW("where", BOOL, choose1), ROW("where", UINT8, choose1), ROW("where", INT32, choose4),
    ROW("where", FLOAT32, choose4), ROW("where", INT64, choose8), ROW("where", FLOAT64, choose8),
    ROW("where", COMPLEX64, choose8), ROW("where", COMPLEX128, choose16),
    ROW("copy", COMPLEX64, copy8), ROW("copy", COMPLEX128, copy16),
    COMPLEX_ROWS(COMPLEX64, c64), COMPLEX_ROWS(COMPLEX128, c128),
    ROW("hypot", FLOAT32, hypot_f32), ROW("hypot", FLOAT64, hypot_f64),
#ifdef HAS_ROUNDING
    DIVISION_ROWS(UINT8, u8) DIVISION_ROWS(INT32, i32) DIVISION_ROWS(INT64, i64)
#endif
#ifdef HAS_FMA
    DIVISION_ROWS(FLOAT32, f32) DIVISION_ROWS(FLOAT64, f64)
#endif
    CAST_ROWS(BOOL, u8), CAST_ROWS(UINT8, u8), CAST_ROWS(INT32, i32), CAST_ROWS(INT64, i64),
    CAST_ROWS(FLOAT32, f32), CAST_ROWS(FLOAT64, f64), CAST_ROWS(COMPLEX64, c64), CAST_ROWS(COMPLEX128, c128),
    MATH_ROWS("exp", "v", exp), MATH_ROWS("exp2", "v", exp2), MATH_ROWS("expm1", "v", expm1),
    MATH_ROWS("log", "v", log), MATH_ROWS("log2", "v", log2), MATH_ROWS("log10", "v", log10),
    MATH_ROWS("log1p", "v", log1p), MATH_ROWS("sin", "v", sin), MATH_ROWS("cos", "v", cos),
    MATH_ROWS("tan", "v", tan), MATH_ROWS("arcsin", "v", asin), MATH_ROWS("arccos", "v", acos),
    MATH_ROWS("arctan", "v", atan), MATH_ROWS("sinh", "v", sinh), MATH_ROWS("cosh", "v", cosh),
    MATH_ROWS("tanh", "v", tanh), MATH_ROWS("arcsinh", "v", asinh), MATH_ROWS("arccosh", "v", acosh),
    MATH_ROWS("arctanh", "v", atanh), MATH_ROWS("cbrt", "v", cbrt), MATH_ROWS("**", "vv", pow),
    MATH_ROWS("arctan2", "vv", atan2),
    {0, 0, 0, 0, 0, 0},
};

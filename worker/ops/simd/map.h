// The element-wise kernels: operators, functions and conversions. The comments of kernel.go,
// arith.go and cast.go in package ops say what each one computes.
#include <math.h>
#include <string.h>

#include "simd.h"

typedef uint8_t u8;
typedef int32_t i32;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;
typedef struct { f32 re, im; } c64;
typedef struct { f64 re, im; } c128;

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
  UNARY(sqrt_##T, T, T, __builtin_sqrt##suffix(x))                                             \
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

// A row of the table for a function that is the same for all types, or for one type.
#define ROW(function, type, run) {function, type, 0, run, 0, 0, 0}
#define CAST_ROW(from, to, run) {"cast", from, to, run, 0, 0, 0}

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

const struct simd_kernel IN_SET(simd_map)[] = {
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
    {0, 0, 0, 0, 0, 0, 0},
};

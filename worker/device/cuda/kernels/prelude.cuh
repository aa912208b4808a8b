// The parts of generated kernels: the element types, and the functions of expressions. The
// functions have the names of those of worker/ops, and give the same results. Functions of complex
// numbers compute in double precision. The compiler must not contract operations to fused ones,
// which round differently (--fmad=false).
typedef unsigned char u8;
typedef int i32;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

template <class R>
struct alignas(2 * sizeof(R)) cx {
  R re, im;
};
typedef cx<float> c64;
typedef cx<double> c128;

// clang-format off
template <class T> struct unsigned_of { typedef T type; };
template <> struct unsigned_of<i32> { typedef u32 type; };
template <> struct unsigned_of<i64> { typedef u64 type; };
// clang-format on
#define FN template <class T> __device__ __forceinline__
#define REALS template <class T> __device__ __forceinline__
#define COMPLEX template <class R> __device__ __forceinline__

__device__ __forceinline__ c128 wide(c128 z) { return z; }
__device__ __forceinline__ c128 wide(c64 z) { return {z.re, z.im}; }
COMPLEX cx<R> narrow(c128 z) { return {(R)z.re, (R)z.im}; }

// Integers wrap around.
FN T f_add(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a + (U)b); }
FN T f_sub(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a - (U)b); }
FN T f_mul(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a * (U)b); }
FN T f_neg(T a) { typedef typename unsigned_of<T>::type U; return (T)(-(U)a); }
COMPLEX cx<R> f_add(cx<R> a, cx<R> b) { return {a.re + b.re, a.im + b.im}; }
COMPLEX cx<R> f_sub(cx<R> a, cx<R> b) { return {a.re - b.re, a.im - b.im}; }
COMPLEX cx<R> f_mul(cx<R> a, cx<R> b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
COMPLEX cx<R> f_neg(cx<R> a) { return {-a.re, -a.im}; }
FN T f_square(T a) { return f_mul(a, a); }
FN T f_copy(T a) { return a; }

__device__ __forceinline__ f32 f_div(f32 a, f32 b) { return a / b; }
__device__ __forceinline__ f64 f_div(f64 a, f64 b) { return a / b; }
// Divides by the method of Smith, in which intermediate results do not overflow so easily.
__device__ inline c128 divide(c128 a, c128 b) {
  if (b.re == 0 && b.im == 0) return {a.re / fabs(b.re), a.im / fabs(b.re)};
  if (fabs(b.re) >= fabs(b.im)) {
    f64 ratio = b.im / b.re, scale = 1 / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  f64 ratio = b.re / b.im, scale = 1 / (b.im + b.re * ratio);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
COMPLEX cx<R> f_div(cx<R> a, cx<R> b) { return narrow<R>(divide(wide(a), wide(b))); }

FN T f_floordiv(T a, T b) {
  if (b == 0) return 0;
  if (b == (T)-1) return f_neg(a);
  T q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
FN T f_mod(T a, T b) {
  if (b == 0 || b == (T)-1 && (T)-1 < (T)0) return 0;
  T m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
template <class T> __device__ inline void divmod(T a, T b, T &quotient, T &rest) {
  rest = fmod(a, b);
  if (b == 0) { quotient = a / b; return; }
  quotient = (a - rest) / b;
  if (rest == 0) rest = copysign((T)0, b);
  else if ((rest < 0) != (b < 0)) { rest += b; quotient -= 1; }
  if (quotient == 0) { quotient = copysign((T)0, a / b); return; }
  T low = floor(quotient);
  if (quotient - low > (T)0.5) low += 1;
  quotient = low;
}
template <> __device__ __forceinline__ f32 f_floordiv(f32 a, f32 b) { f32 q, r; divmod(a, b, q, r); return q; }
template <> __device__ __forceinline__ f64 f_floordiv(f64 a, f64 b) { f64 q, r; divmod(a, b, q, r); return q; }
template <> __device__ __forceinline__ f32 f_mod(f32 a, f32 b) { f32 q, r; divmod(a, b, q, r); return r; }
template <> __device__ __forceinline__ f64 f_mod(f64 a, f64 b) { f64 q, r; divmod(a, b, q, r); return r; }

// Sets *negative if an exponent is negative; the result is then 0.
FN T f_ipow(T a, T b, int *negative) {
  if (b < 0) { *negative = 1; return 0; }
  T result = 1;
  for (; b > 0; b >>= 1) {
    if (b & 1) result = f_mul(result, a);
    a = f_mul(a, a);
  }
  return result;
}
__device__ __forceinline__ f32 f_pow(f32 a, f32 b) { return (f32)pow((f64)a, (f64)b); }
__device__ __forceinline__ f64 f_pow(f64 a, f64 b) { return pow(a, b); }

FN T f_minimum(T a, T b) { return a <= b || a != a ? a : b; }
FN T f_maximum(T a, T b) { return a >= b || a != a ? a : b; }
// Complex numbers are ordered by their real part, then by the imaginary one.
COMPLEX bool less(cx<R> a, cx<R> b) { return a.re < b.re || a.re == b.re && a.im < b.im; }
COMPLEX bool less_equal(cx<R> a, cx<R> b) { return a.re < b.re || a.re == b.re && a.im <= b.im; }
COMPLEX bool is_nan(cx<R> a) { return a.re != a.re || a.im != a.im; }
COMPLEX cx<R> f_minimum(cx<R> a, cx<R> b) { return less_equal(a, b) || is_nan(a) ? a : b; }
COMPLEX cx<R> f_maximum(cx<R> a, cx<R> b) { return less_equal(b, a) || is_nan(a) ? a : b; }
FN u8 f_eq(T a, T b) { return a == b; }
FN u8 f_ne(T a, T b) { return a != b; }
FN u8 f_lt(T a, T b) { return a < b; }
FN u8 f_le(T a, T b) { return a <= b; }
FN u8 f_gt(T a, T b) { return a > b; }
FN u8 f_ge(T a, T b) { return a >= b; }
COMPLEX u8 f_eq(cx<R> a, cx<R> b) { return a.re == b.re && a.im == b.im; }
COMPLEX u8 f_ne(cx<R> a, cx<R> b) { return a.re != b.re || a.im != b.im; }
COMPLEX u8 f_lt(cx<R> a, cx<R> b) { return less(a, b); }
COMPLEX u8 f_le(cx<R> a, cx<R> b) { return less_equal(a, b); }
COMPLEX u8 f_gt(cx<R> a, cx<R> b) { return less(b, a); }
COMPLEX u8 f_ge(cx<R> a, cx<R> b) { return less_equal(b, a); }

FN T f_and(T a, T b) { return a & b; }
FN T f_or(T a, T b) { return a | b; }
FN T f_xor(T a, T b) { return a ^ b; }
FN T f_not(T a) { return ~a; }
FN T f_lnot(T a) { return a ^ 1; }
FN T f_where(u8 c, T a, T b) { return c ? a : b; }

FN T f_abs(T a) { return a < 0 ? f_neg(a) : a; }
template <> __device__ __forceinline__ f32 f_abs(f32 a) { return fabsf(a); }
template <> __device__ __forceinline__ f64 f_abs(f64 a) { return fabs(a); }
__device__ __forceinline__ f64 modulus(c128 z) { return hypot(z.re, z.im); }
COMPLEX R f_abs(cx<R> a) { return (R)modulus(wide(a)); }
FN T f_sign(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a; }
COMPLEX cx<R> f_sign(cx<R> a) {
  c128 z = wide(a);
  if (z.re == 0 && z.im == 0) return {0, 0};
  if (isinf(z.im) != isinf(z.re)) {
    if (isinf(z.re)) return {(R)copysign(1.0, z.re), 0};
    return {0, (R)copysign(1.0, z.im)};
  }
  f64 m = modulus(z);
  return {(R)(z.re / m), (R)(z.im / m)};
}
REALS u8 f_isnan(T a) { return a != a; }
REALS u8 f_isinf(T) { return 0; }
REALS u8 f_isfinite(T) { return 1; }
template <> __device__ __forceinline__ u8 f_isinf(f32 a) { return isinf(a); }
template <> __device__ __forceinline__ u8 f_isinf(f64 a) { return isinf(a); }
template <> __device__ __forceinline__ u8 f_isfinite(f32 a) { return isfinite(a); }
template <> __device__ __forceinline__ u8 f_isfinite(f64 a) { return isfinite(a); }
COMPLEX u8 f_isnan(cx<R> a) { return is_nan(a); }
COMPLEX u8 f_isinf(cx<R> a) { return isinf(a.re) || isinf(a.im); }
COMPLEX u8 f_isfinite(cx<R> a) { return isfinite(a.re) && isfinite(a.im); }
REALS T f_conj(T a) { return a; }
REALS T f_real(T a) { return a; }
REALS T f_imag(T) { return 0; }
COMPLEX cx<R> f_conj(cx<R> a) { return {a.re, -a.im}; }
COMPLEX R f_real(cx<R> a) { return a.re; }
COMPLEX R f_imag(cx<R> a) { return a.im; }
REALS T f_angle(T a) { return atan2((T)0, a); }
COMPLEX R f_angle(cx<R> a) { return (R)atan2((f64)a.im, (f64)a.re); }
FN T f_arctan2(T a, T b) { return atan2(a, b); }
FN T f_hypot(T a, T b) { return hypot(a, b); }
FN T f_reciprocal(T a) { return 1 / a; }
COMPLEX cx<R> f_reciprocal(cx<R> a) { return narrow<R>(divide({1, 0}, wide(a))); }

// Rounding leaves integers as they are.
#define ROUNDING(name, function)                                             \
  FN T f_##name(T a) { return a; }                                           \
  template <> __device__ __forceinline__ f32 f_##name(f32 a) { return function##f(a); } \
  template <> __device__ __forceinline__ f64 f_##name(f64 a) { return function(a); }
ROUNDING(floor, floor)
ROUNDING(ceil, ceil)
ROUNDING(trunc, trunc)
ROUNDING(round, rint)

#define FLOATS(name, function)                                                          \
  __device__ __forceinline__ f32 f_##name(f32 a) { return function##f(a); }             \
  __device__ __forceinline__ f64 f_##name(f64 a) { return function(a); }
FLOATS(exp, exp)
FLOATS(exp2, exp2)
FLOATS(expm1, expm1)
FLOATS(log, log)
FLOATS(log2, log2)
FLOATS(log10, log10)
FLOATS(log1p, log1p)
FLOATS(sin, sin)
FLOATS(cos, cos)
FLOATS(tan, tan)
FLOATS(arcsin, asin)
FLOATS(arccos, acos)
FLOATS(arctan, atan)
FLOATS(sinh, sinh)
FLOATS(cosh, cosh)
FLOATS(tanh, tanh)
FLOATS(arcsinh, asinh)
FLOATS(arccosh, acosh)
FLOATS(arctanh, atanh)
FLOATS(cbrt, cbrt)
FLOATS(sqrt, sqrt)

__device__ inline c128 z_sqrt(c128 z) {
  if (z.re == 0 && z.im == 0) return {0, z.im};
  if (isinf(z.im)) return {fabs(z.im), z.im};
  if (isinf(z.re)) return z.re > 0 ? c128{z.re, copysign(0.0, z.im)} : c128{0, copysign(fabs(z.re), z.im)};
  // Large numbers are scaled by 1/4, because their modulus could overflow.
  f64 s = fabs(z.re) > 1e300 || fabs(z.im) > 1e300 ? 0.25 : 1;
  f64 x = z.re * s, y = z.im * s;
  f64 t = sqrt((fabs(x) + hypot(x, y)) * 0.5) / sqrt(s);
  if (z.re >= 0) return {t, z.im / (2 * t)};
  return {fabs(z.im) / (2 * t), copysign(t, z.im)};
}
__device__ inline c128 z_exp(c128 z) {
  f64 r = exp(z.re), s, c;
  if (z.im == 0) return {r, z.im};
  sincos(z.im, &s, &c);
  return {r * c, r * s};
}
__device__ inline c128 z_log(c128 z) { return {log(modulus(z)), atan2(z.im, z.re)}; }
__device__ inline c128 z_log10(c128 z) { c128 l = z_log(z); return {l.re * 0.43429448190325182765, l.im * 0.43429448190325182765}; }
__device__ inline c128 z_log2(c128 z) { c128 l = z_log(z); return {l.re * 1.44269504088896340736, l.im * 1.44269504088896340736}; }
__device__ inline c128 z_sin(c128 z) { return {sin(z.re) * cosh(z.im), cos(z.re) * sinh(z.im)}; }
__device__ inline c128 z_cos(c128 z) { return {cos(z.re) * cosh(z.im), -(sin(z.re) * sinh(z.im))}; }
__device__ inline c128 z_sinh(c128 z) { return {sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im)}; }
__device__ inline c128 z_cosh(c128 z) { return {cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im)}; }
__device__ inline c128 z_tanh(c128 z) {
  if (fabs(z.re) > 350) return {copysign(1.0, z.re), copysign(0.0, sin(z.im) * cos(z.im))};
  f64 sh = sinh(z.re), c = cos(z.im), d = sh * sh + c * c;
  return {sh * cosh(z.re) / d, sin(z.im) * c / d};
}
__device__ inline c128 z_tan(c128 z) { c128 t = z_tanh({-z.im, z.re}); return {t.im, -t.re}; }
__device__ inline c128 z_arcsin(c128 z) {
  c128 a = z_sqrt({1 - z.re, -z.im}), b = z_sqrt({1 + z.re, z.im});
  return {atan2(z.re, a.re * b.re - a.im * b.im), asinh(a.re * b.im - a.im * b.re)};
}
__device__ inline c128 z_arccos(c128 z) {
  c128 a = z_sqrt({1 - z.re, -z.im}), b = z_sqrt({1 + z.re, z.im});
  return {2 * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re)};
}
__device__ inline c128 z_arcsinh(c128 z) { c128 w = z_arcsin({-z.im, z.re}); return {w.im, -w.re}; }
__device__ inline c128 z_arccosh(c128 z) {
  c128 a = z_sqrt({z.re - 1, z.im}), b = z_sqrt({z.re + 1, z.im});
  return {asinh(a.re * b.re + a.im * b.im), 2 * atan2(a.im, b.re)};
}
__device__ inline c128 z_arctanh(c128 z) {
  f64 x = z.re, y = z.im;
  return {0.25 * log1p(4 * x / ((1 - x) * (1 - x) + y * y)), 0.5 * atan2(2 * y, (1 - x) * (1 + x) - y * y)};
}
__device__ inline c128 z_arctan(c128 z) { c128 w = z_arctanh({-z.im, z.re}); return {w.im, -w.re}; }
__device__ inline c128 z_pow(c128 a, c128 b) {
  int n = fabs(b.re) < 100 ? (int)b.re : 100;
  if (b.im == 0 && b.re == n && n > -100 && n < 100) {
    c128 result = {1, 0}, factor = a;
    for (int k = n < 0 ? -n : n; k > 0; k >>= 1) {
      if (k & 1) result = f_mul(result, factor);
      factor = f_mul(factor, factor);
    }
    return n < 0 ? divide({1, 0}, result) : result;
  }
  if (a.re == 0 && a.im == 0) {
    if (b.re == 0 && b.im == 0) return {1, 0};
    f64 inf = 1.0 / 0.0;
    if (b.re < 0) return {inf, b.im == 0 ? 0 : inf};
    return {0, 0};
  }
  f64 m = modulus(a);
  if (m == 0) return {0, 0};
  f64 r = pow(m, b.re), arg = atan2(a.im, a.re), theta = b.re * arg, s, c;
  if (b.im != 0) {
    r *= exp(-b.im * arg);
    theta += b.im * log(m);
  }
  sincos(theta, &s, &c);
  return {r * c, r * s};
}
COMPLEX cx<R> f_pow(cx<R> a, cx<R> b) { return narrow<R>(z_pow(wide(a), wide(b))); }
#define COMPLEXES(name) \
  COMPLEX cx<R> f_##name(cx<R> a) { return narrow<R>(z_##name(wide(a))); }
COMPLEXES(sqrt)
COMPLEXES(exp)
COMPLEXES(log)
COMPLEXES(log2)
COMPLEXES(log10)
COMPLEXES(sin)
COMPLEXES(cos)
COMPLEXES(tan)
COMPLEXES(sinh)
COMPLEXES(cosh)
COMPLEXES(tanh)
COMPLEXES(arcsin)
COMPLEXES(arccos)
COMPLEXES(arctan)
COMPLEXES(arcsinh)
COMPLEXES(arccosh)
COMPLEXES(arctanh)

// Conversions. Floats are truncated towards zero. A value that the integer type cannot hold becomes
// its smallest value; u8 takes the low byte. A complex number loses its imaginary part if the
// target is real.
template <class To, class From> struct caster {
  static __device__ __forceinline__ To of(From x) { return (To)x; }
};
__device__ __forceinline__ i64 truncate64(f64 x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (i64)x : (i64)0x8000000000000000ull;
}
__device__ __forceinline__ i32 truncate32(f64 x) { return x > -2147483649.0 && x < 2147483648.0 ? (i32)x : (i32)0x80000000u; }
#define FROM_FLOAT(F)                                                                                               \
  template <> struct caster<u8, F> { static __device__ __forceinline__ u8 of(F x) { return (u8)truncate64(x); } };  \
  template <> struct caster<i32, F> { static __device__ __forceinline__ i32 of(F x) { return truncate32(x); } };    \
  template <> struct caster<i64, F> { static __device__ __forceinline__ i64 of(F x) { return truncate64(x); } };
FROM_FLOAT(f32)
FROM_FLOAT(f64)
template <class To, class R> struct caster<To, cx<R>> {
  static __device__ __forceinline__ To of(cx<R> z) { return caster<To, f64>::of((f64)z.re); }
};
template <class S, class From> struct caster<cx<S>, From> {
  static __device__ __forceinline__ cx<S> of(From x) { return {(S)x, 0}; }
};
template <class S, class R> struct caster<cx<S>, cx<R>> {
  static __device__ __forceinline__ cx<S> of(cx<R> z) { return {(S)z.re, (S)z.im}; }
};
template <class To, class From> __device__ __forceinline__ To cast(From x) { return caster<To, From>::of(x); }
FN u8 truth(T x) { return x != 0; }
COMPLEX u8 truth(cx<R> z) { return z.re != 0 || z.im != 0; }

template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) pack {
  T v[V];
};

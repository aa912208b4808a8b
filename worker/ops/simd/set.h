// Each instruction set has a file, such as avx2.c, that defines SET, a suffix for names, includes
// this file and then the kernels. So the same source is compiled once for each set.
#ifndef MILLRACE_SIMD_SET_H
#define MILLRACE_SIMD_SET_H

#include <stdint.h>

// The sets, from the least to the best.
enum { SIMD_BASE, SIMD_AVX2, SIMD_AVX512, SIMD_SETS };

#define SIMD_JOIN2(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN2(a, b)
// The name of an object that each set has.
#define IN_SET(name) SIMD_JOIN(name, SET)

// A loop whose rounds do not depend on each other. The destination may be exactly the same block as
// an operand whose elements have the same size.
#if defined(__clang__)
#define EACH(i, n) _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC ivdep") for (int64_t i = 0; i < (n); i++)
#endif

// A product is always rounded before it is added to something, as in Go on x86-64.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wpass-failed" // it tells which loops have no vectors
#else
#pragma GCC optimize("fp-contract=off", "no-trapping-math", "no-math-errno")
#endif

#endif

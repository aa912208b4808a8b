//go:build cgo && linux && amd64

// AVX2 with fused multiply-add, of processors since 2013.
#define SET avx2
#define VECTOR_BYTES 32
#define VECTOR_NAME32 "_ZGVdN8"
#define VECTOR_NAME64 "_ZGVdN4"
#define HAS_ROUNDING
#define HAS_FMA
#include "set.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif

#include "map.h"
#include "run.h"
#include "random.h"
#include "fold.h"
#include "fft.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

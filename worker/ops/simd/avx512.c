//go:build cgo && linux && amd64

// The parts of AVX-512 that processors for servers have had since 2017.
#include <immintrin.h>

#define SET avx512
#define VECTOR_BYTES 64
#define VECTOR_NAME32 "_ZGVeN16"
#define VECTOR_NAME64 "_ZGVeN8"
#define HAS_ROUNDING
#define HAS_FMA
#include "set.h"
#if defined(__clang__)
#if __clang_major__ >= 18 && __clang_major__ < 22 // these have a feature for vectors of 512 bits
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,evex512,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi,bmi2"))), apply_to = function)
#endif
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi,bmi2,prefer-vector-width=512")
#endif

#include "map.h"
#include "run.h"
#include "random.h"
#include "fold.h"
#include "fft.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

//go:build cgo && linux

#include "set.h"
#include "simd_fold.h"

extern const struct simd_fold simd_folds_base[];
#if defined(__x86_64__)
extern const struct simd_fold simd_folds_avx2[], simd_folds_avx512[];
static const struct simd_fold *const tables[SIMD_SETS] = {simd_folds_base, simd_folds_avx2, simd_folds_avx512};
#else
static const struct simd_fold *const tables[SIMD_SETS] = {simd_folds_base};
#endif

const struct simd_fold *simd_folds(int set) { return tables[set]; }

void simd_fold_runs(uint64_t kernel, const void *in, void *out, int64_t count, int64_t stride, int64_t n) {
  ((void (*)(const void *, void *, int64_t, int64_t, int64_t))(uintptr_t)kernel)(in, out, count, stride, n);
}

void simd_fold_lanes(uint64_t kernel, void *accumulators, const void *in, int64_t n, int64_t stride, int64_t rows, int begin) {
  ((void (*)(void *, const void *, int64_t, int64_t, int64_t, int))(uintptr_t)kernel)(accumulators, in, n, stride, rows, begin);
}

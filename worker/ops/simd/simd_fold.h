// Folds of array.reduce: see fold.h for the kernels.
#ifndef MILLRACE_SIMD_FOLD_H
#define MILLRACE_SIMD_FOLD_H

#include <stdint.h>

// The kernels of a fold for elements of one type and an accumulator of another. The table of an
// instruction set ends with a function of NULL.
struct simd_fold {
  const char *function;
  int from, to; // types as in ops.DType
  // Folds count runs of n elements each, n >= 1. The elements of a run lie side by side, and the
  // runs begin stride bytes after each other. Stores count accumulators.
  void (*runs)(const void *in, void *out, int64_t count, int64_t stride, int64_t n);
  // Folds rows of n elements into n accumulators, one row after the other. The rows begin stride
  // bytes after each other. If begin is not zero, the first row replaces the accumulators.
  void (*lanes)(void *accumulators, const void *in, int64_t n, int64_t stride, int64_t rows, int begin);
};

const struct simd_fold *simd_folds(int set);
void simd_fold_runs(uint64_t kernel, const void *in, void *out, int64_t count, int64_t stride, int64_t n);
void simd_fold_lanes(uint64_t kernel, void *accumulators, const void *in, int64_t n, int64_t stride, int64_t rows, int begin);

#endif

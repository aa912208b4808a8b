//go:build cgo && linux

#include "simd_fft.h"

extern const struct simd_fft simd_fft_base[];
#if defined(__x86_64__)
extern const struct simd_fft simd_fft_avx2[], simd_fft_avx512[];
static const struct simd_fft *const tables[SIMD_SETS] = {simd_fft_base, simd_fft_avx2, simd_fft_avx512};
#else
static const struct simd_fft *const tables[SIMD_SETS] = {simd_fft_base};
#endif

const struct simd_fft *simd_fft(int set, int wide) { return &tables[set][wide]; }

int simd_transform(const struct simd_fft *f, void *x, void *y, const int32_t *radices, const void *table, int64_t n) {
  return f->transform(x, y, radices, table, n) == y;
}
void simd_gather(const struct simd_fft *f, void *to, const void *from, const struct simd_lines *g, int64_t n) { f->gather(to, from, g, n); }
void simd_scatter(const struct simd_fft *f, void *to, const void *from, const struct simd_lines *g, double factor) { f->scatter(to, from, g, factor); }
void simd_turn(const struct simd_fft *f, void *x, const void *coarse, const void *fine, int64_t n) { f->turn(x, coarse, fine, n); }
void simd_multiply(const struct simd_fft *f, void *to, const void *a, const void *b, int64_t n, int conjugate) { f->multiply(to, a, b, n, conjugate); }
void simd_unfold(const struct simd_fft *f, void *x, const void *roots, int64_t h, int single) { f->unfold(x, roots, h, single); }
void simd_fold(const struct simd_fft *f, void *x, const void *roots, int64_t h, int single) { f->fold(x, roots, h, single); }

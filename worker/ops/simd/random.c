//go:build cgo && linux

#include "set.h"
#include "simd_random.h"

extern const simd_draw_function simd_draws_base[];
#if defined(__x86_64__)
extern const simd_draw_function simd_draws_avx2[], simd_draws_avx512[];
static const simd_draw_function *const tables[SIMD_SETS] = {simd_draws_base, simd_draws_avx2, simd_draws_avx512};
#else
static const simd_draw_function *const tables[SIMD_SETS] = {simd_draws_base};
#endif

void simd_draw(int set, int draw, const struct simd_random *r, int64_t n, void *d) { tables[set][draw](r, n, d); }

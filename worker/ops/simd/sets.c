//go:build cgo && linux

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "simd.h"

extern const struct simd_set simd_set_base;
#if defined(__x86_64__)
extern const struct simd_set simd_set_avx2, simd_set_avx512;
static const struct simd_set *const sets[SIMD_SETS] = {&simd_set_base, &simd_set_avx2, &simd_set_avx512};
#else
static const struct simd_set *const sets[SIMD_SETS] = {&simd_set_base};
#endif

// The processor is asked directly: __builtin_cpu_supports needs a library that some compilers lack.
int simd_has(int set) {
  if (set == SIMD_BASE) return 1;
#if defined(__x86_64__)
  const unsigned needed = bit_OSXSAVE | bit_AVX | bit_FMA, avx2 = bit_AVX2 | bit_BMI | bit_BMI2;
  const unsigned avx512 = avx2 | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  unsigned a, b, c, d, kept, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & needed) != needed || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  // The registers that the operating system saves: those of AVX, and those of AVX-512.
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if (set == SIMD_AVX2) return (b & avx2) == avx2 && (kept & 0x6) == 0x6;
  if (set == SIMD_AVX512) return (b & avx512) == avx512 && (kept & 0xe6) == 0xe6;
#endif
  return 0;
}

const struct simd_kernel *simd_kernels(int set) { return sets[set]->kernels; }

void simd_set_vector(int set, int64_t index, uint64_t address) { *sets[set]->kernels[index].slot = (void *)(uintptr_t)address; }

int simd_call(uint64_t kernel, int64_t n, void *d, const void *a, const void *b, const void *c) { return ((simd_function)(uintptr_t)kernel)(n, d, a, b, c); }

int simd_run(int set, const struct simd_step *steps, int64_t count, struct simd_register *registers, int64_t used, int64_t n, int64_t block) {
  return sets[set]->run(steps, count, registers, used, n, block);
}

void simd_copy(int set, void *to, uint64_t source, struct simd_axis *axes, int64_t count, int64_t size, int64_t n) {
  sets[set]->copy(to, source, axes, count, size, n);
}

void simd_transpose(int set, const struct simd_transposition *t, int64_t begin, int64_t end) { sets[set]->transpose(t, begin, end); }

void simd_count(int set, int type, void *to, int64_t begin, int64_t n, const void *values) { sets[set]->count(type, to, begin, n, values); }

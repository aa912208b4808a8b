//go:build cgo && linux

#include <string.h>

#include "simd.h"

extern const struct simd_kernel simd_map_base[];
#if defined(__x86_64__)
extern const struct simd_kernel simd_map_avx2[], simd_map_avx512[];
static const struct simd_kernel *const tables[SIMD_SETS] = {simd_map_base, simd_map_avx2, simd_map_avx512};
#else
static const struct simd_kernel *const tables[SIMD_SETS] = {simd_map_base};
#endif

const struct simd_kernel *simd_kernels(int set) { return tables[set]; }

int simd_has(int set) {
  if (set == SIMD_BASE) return 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (set == SIMD_AVX2) return avx2;
  if (set == SIMD_AVX512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#endif
  return 0;
}

void simd_set_vector(int set, int64_t index, uint64_t address) { *tables[set][index].slot = (void *)(uintptr_t)address; }

#define GATHER(T)                                          \
  for (int64_t i = 0; i < n; i++, from += stride) {        \
    T x;                                                   \
    memcpy(&x, from, sizeof x);                            \
    memcpy(to + i * (int64_t)sizeof x, &x, sizeof x);      \
  }

// Copies n elements that lie stride bytes apart.
static void gather(char *to, const char *from, int64_t n, int64_t stride, int64_t size) {
  struct wide { uint64_t a, b; };
  if (stride == size) {
    memcpy(to, from, n * size);
    return;
  }
  switch (size) {
  case 1: GATHER(uint8_t) break;
  case 4: GATHER(uint32_t) break;
  case 8: GATHER(uint64_t) break;
  default: GATHER(struct wide)
  }
}

// Copies the next n elements of a strided tensor to the block of the register.
static void next(struct simd_register *r, int64_t n) {
  struct simd_axis *axes = (struct simd_axis *)(uintptr_t)r->axes, *last = &axes[r->dimensions - 1];
  char *to = (char *)(uintptr_t)r->address;
  while (n > 0) {
    int64_t run = last->length - last->index;
    if (run > n) run = n;
    gather(to, (const char *)(uintptr_t)r->source, run, last->stride, r->size);
    to += run * r->size;
    n -= run;
    last->index += run;
    r->source += run * last->stride;
    for (struct simd_axis *axis = last; axis > axes && axis->index == axis->length; axis--) {
      r->source += axis[-1].stride - axis->length * axis->stride;
      axis->index = 0;
      axis[-1].index++;
    }
  }
}

static void *at(const struct simd_register *registers, const struct simd_step *step, int operand) {
  return (void *)(uintptr_t)registers[step->registers[operand]].address;
}

int simd_run(const struct simd_step *steps, int64_t count, struct simd_register *registers, int64_t used, int64_t n, int64_t block) {
  for (int64_t done = 0; done < n;) {
    int64_t m = n - done < block ? n - done : block;
    for (int64_t i = 0; i < used; i++)
      if (registers[i].source) next(&registers[i], m);
    for (const struct simd_step *s = steps; s < steps + count; s++) {
      int failed = ((simd_function)(uintptr_t)s->kernel)(m, at(registers, s, 0), at(registers, s, 1), at(registers, s, 2), at(registers, s, 3));
      if (failed) return failed;
    }
    done += m;
    for (int64_t i = 0; i < used; i++) registers[i].address += registers[i].step;
  }
  return 0;
}

int simd_call(uint64_t kernel, int64_t n, void *d, const void *a, const void *b, const void *c) { return ((simd_function)(uintptr_t)kernel)(n, d, a, b, c); }

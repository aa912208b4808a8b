// Discrete Fourier transforms of several lanes at once; see fft.h for the layout of their buffers.
#ifndef MILLRACE_SIMD_FFT_H
#define MILLRACE_SIMD_FFT_H

#include <stdint.h>

#include "set.h"

// The places of complex numbers in memory: number k of lane l has its real part k*step + l*lane
// bytes behind the address, and its imaginary part `part` bytes behind that. If part is 0 there are
// no imaginary parts. count is the number of complex numbers in each of lanes lanes. If swap is not
// 0, the parts are exchanged: a transform between two exchanges is the inverse one.
struct simd_lines {
  int64_t count, step, lane, part, lanes, swap;
};

// The functions of an instruction set, in one precision. fft.h says what they do.
struct simd_fft {
  void *(*transform)(void *x, void *y, const int32_t *radices, const void *table, int64_t n);
  void (*gather)(void *to, const void *from, const struct simd_lines *g, int64_t n);
  void (*scatter)(void *to, const void *from, const struct simd_lines *g, double factor);
  void (*turn)(void *x, const void *coarse, const void *fine, int64_t n);
  void (*multiply)(void *to, const void *a, const void *b, int64_t n, int conjugate);
  void (*unfold)(void *x, const void *roots, int64_t h, int single);
  void (*fold)(void *x, const void *roots, int64_t h, int single);
  int64_t lanes; // in a buffer
};

// The functions of a set; wide is 1 for double precision and 0 for single.
const struct simd_fft *simd_fft(int set, int wide);

// The calls of the functions. simd_transform reports whether the result is in y.
int simd_transform(const struct simd_fft *f, void *x, void *y, const int32_t *radices, const void *table, int64_t n);
void simd_gather(const struct simd_fft *f, void *to, const void *from, const struct simd_lines *g, int64_t n);
void simd_scatter(const struct simd_fft *f, void *to, const void *from, const struct simd_lines *g, double factor);
void simd_turn(const struct simd_fft *f, void *x, const void *coarse, const void *fine, int64_t n);
void simd_multiply(const struct simd_fft *f, void *to, const void *a, const void *b, int64_t n, int conjugate);
void simd_unfold(const struct simd_fft *f, void *x, const void *roots, int64_t h, int single);
void simd_fold(const struct simd_fft *f, void *x, const void *roots, int64_t h, int single);

#endif

// Random numbers: see random.h for the kernels.
#ifndef MILLRACE_SIMD_RANDOM_H
#define MILLRACE_SIMD_RANDOM_H

#include <stdint.h>

// A range of the stream of words of a seed, which is the key. block is the first Philox block.
struct simd_random {
  uint64_t key, block;
  double low, high;    // of uniform numbers
  double loc, scale;   // of normal numbers
  int64_t first;       // of integers: first + floor(word * values / 2^64)
  uint64_t values;
};

// Stores n elements, of the words of the blocks from r->block on.
typedef void (*simd_draw_function)(const struct simd_random *r, int64_t n, void *d);

// The draws, in the order of simd.Draw.
enum {
  DRAW_WORDS,
  DRAW_UNIFORM_FLOAT64,
  DRAW_UNIFORM_FLOAT32,
  DRAW_INT64,
  DRAW_INT32,
  DRAW_UINT8,
  DRAW_NORMAL_FLOAT64,
  DRAW_NORMAL_FLOAT32,
  SIMD_DRAWS,
};

// Calls the kernel of an instruction set.
void simd_draw(int set, int draw, const struct simd_random *r, int64_t n, void *d);

#endif

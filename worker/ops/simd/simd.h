// Programs of kernels over blocks of elements; see set.h for the instruction sets.
#ifndef MILLRACE_SIMD_H
#define MILLRACE_SIMD_H

#include <stdint.h>

#include "set.h"

// The types of elements, as in ops.DType.
enum { BOOL = 1, UINT8, INT32, INT64, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128 };

// Computes n elements of d from the operands a, b and c. Returns 0, or SIMD_NEGATIVE_POWER.
typedef int (*simd_function)(int64_t n, void *d, const void *a, const void *b, const void *c);

enum { SIMD_NEGATIVE_POWER = 1 };

// One kernel of a set. A table of kernels ends with a function of NULL.
struct simd_kernel {
  const char *function;
  int work, to; // to is 0 unless the function is "cast"
  simd_function run;
  const char *vector; // the name of the function of libmvec that it calls; NULL: none
  void **slot;        // holds the address of that function
};

// A register of a program. The elements of an input that is read in place, and of the result, lie
// at address, and each block begins step bytes after the one before it. Constants and temporaries
// have a step of 0. An input with axes is copied to address, block by block, from a strided tensor.
struct simd_register {
  uint64_t address;
  int64_t step;
  uint64_t source; // the address of its next element; 0: the input is read in place
  uint64_t axes;   // the address of struct simd_axis[count]
  int64_t count, size;
};

// An axis of a strided tensor, with the position of the next element.
struct simd_axis {
  int64_t length, stride, index;
};

// One instruction of a program: registers[0] = kernel(registers[1], ...).
struct simd_step {
  uint64_t kernel;
  uint32_t registers[4];
};

// A 16-byte element.
struct simd_wide {
  uint64_t a, b;
};

enum { SIMD_BAND = 256 };

// The copy of a tensor that is contiguous along another axis than the last one: it consists of
// transposed matrices, one for each index of the outer axes. In each, to[i][j] = from[j][i].
struct simd_transposition {
  uint64_t to, from; // the first elements
  int64_t rows, columns, to_step, from_step, size;
  uint64_t outer; // the address of struct simd_outer[count]
  int64_t count;
};

struct simd_outer {
  int64_t length, to_step, from_step;
};

// The functions of an instruction set.
struct simd_set {
  const struct simd_kernel *kernels;
  // Computes n elements with a program, in blocks of at most block elements. It changes the
  // registers. Returns 0, or the result of the first kernel that fails.
  int (*run)(const struct simd_step *steps, int64_t count, struct simd_register *registers, int64_t used, int64_t n, int64_t block);
  // Copies n elements of a strided tensor, from source on, to contiguous memory.
  void (*copy)(void *to, uint64_t source, struct simd_axis *axes, int64_t count, int64_t size, int64_t n);
  // Copies the units from begin to end. A unit is up to SIMD_BAND rows of one matrix.
  void (*transpose)(const struct simd_transposition *t, int64_t begin, int64_t end);
  // Counts: values are the first two elements of the tensor, begin is the index of to[0].
  void (*count)(int type, void *to, int64_t begin, int64_t n, const void *values);
};

// Reports whether the processor has the instructions.
int simd_has(int set);
// The kernels of a set.
const struct simd_kernel *simd_kernels(int set);
// Stores the address of the function of libmvec that a kernel calls.
void simd_set_vector(int set, int64_t index, uint64_t address);

// These call a kernel, or a function of a set.
int simd_call(uint64_t kernel, int64_t n, void *d, const void *a, const void *b, const void *c);
int simd_run(int set, const struct simd_step *steps, int64_t count, struct simd_register *registers, int64_t used, int64_t n, int64_t block);
void simd_copy(int set, void *to, uint64_t source, struct simd_axis *axes, int64_t count, int64_t size, int64_t n);
void simd_transpose(int set, const struct simd_transposition *t, int64_t begin, int64_t end);
void simd_count(int set, int type, void *to, int64_t begin, int64_t n, const void *values);

#endif

// Sorting with AVX-512; see sort.c. The keys of numbers are signed integers in the same order, of
// 32 bits, or of 64 bits if wide is set.
#ifndef MILLRACE_SIMD_SORT_H
#define MILLRACE_SIMD_SORT_H

#include <stdint.h>

// A segment to sort. Its n keys are at from, and other has room for n keys. The sorted keys will be
// at other if across is set, otherwise at from.
struct simd_segment {
  uint64_t from, other;
  int64_t n;
  uint64_t seed; // of the choice of pivots
  int32_t across;
  int32_t depth; // the number of passes after which heapsort takes over
};

void simd_sort(int wide, const struct simd_segment *s);
// Parts a segment: *s becomes the one with the small keys, *more that with the large ones. *more is
// empty if the largest keys are in their place already.
void simd_split(int wide, struct simd_segment *s, struct simd_segment *more);

// The keys of n numbers of a type. All NaNs have the largest key. descending inverts the keys, and
// equal_zeros makes 0.0 of -0.0. simd_sort_values is the reverse.
void simd_sort_keys(int type, int64_t n, void *keys, const void *from, int equal_zeros, int descending);
void simd_sort_values(int type, int64_t n, void *to, const void *keys, int descending);

// Copies the keys that differ from the one before them to to, unless that is NULL. Returns their
// number. The first key counts.
int64_t simd_sort_distinct(int wide, int64_t n, void *to, const void *keys);

#endif

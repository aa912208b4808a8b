// Programs and copies: see simd.h.
#include <string.h>

#include "simd.h"

// Runs of elements whose distance is a constant are copied by vectors.
#define SPACED(T, distance)                                                                    \
  {                                                                                            \
    T *d = (T *)(void *)to;                                                                    \
    const T *s = (const T *)(const void *)from;                                                \
    EACH(i, n) d[i] = s[(distance) * i];                                                       \
    return;                                                                                    \
  }
#define GATHER(T)                                                                              \
  {                                                                                            \
    if (stride == 0) SPACED(T, 0)                                                              \
    if (stride == 2 * (int64_t)sizeof(T)) SPACED(T, 2)                                         \
    if (stride == -(int64_t)sizeof(T)) SPACED(T, -1)                                           \
    for (int64_t i = 0; i < n; i++, from += stride) memcpy(to + i * (int64_t)sizeof(T), from, sizeof(T)); \
    return;                                                                                    \
  }

// Copies n elements that lie stride bytes apart.
static void gather(char *to, const char *from, int64_t n, int64_t stride, int64_t size) {
  if (stride == size) {
    memcpy(to, from, n * size);
    return;
  }
  switch (size) {
  case 1: GATHER(uint8_t)
  case 4: GATHER(uint32_t)
  case 8: GATHER(uint64_t)
  default: GATHER(struct simd_wide)
  }
}

// Copies the next n elements of a strided tensor.
static void IN_SET(simd_next)(char *to, uint64_t *source, struct simd_axis *axes, int64_t count, int64_t size, int64_t n) {
  struct simd_axis *last = &axes[count - 1];
  while (n > 0) {
    int64_t run = last->length - last->index;
    if (run > n) run = n;
    gather(to, (const char *)(uintptr_t)*source, run, last->stride, size);
    to += run * size;
    n -= run;
    last->index += run;
    *source += run * last->stride;
    for (struct simd_axis *axis = last; axis > axes && axis->index == axis->length; axis--) {
      *source += axis[-1].stride - axis->length * axis->stride;
      axis->index = 0;
      axis[-1].index++;
    }
  }
}

static void *at(const struct simd_register *registers, const struct simd_step *step, int operand) {
  return (void *)(uintptr_t)registers[step->registers[operand]].address;
}

static int IN_SET(simd_run)(const struct simd_step *steps, int64_t count, struct simd_register *registers, int64_t used, int64_t n, int64_t block) {
  for (int64_t done = 0; done < n;) {
    const int64_t m = n - done < block ? n - done : block;
    for (struct simd_register *r = registers; r < registers + used; r++)
      if (r->source) IN_SET(simd_next)((char *)(uintptr_t)r->address, &r->source, (struct simd_axis *)(uintptr_t)r->axes, r->count, r->size, m);
    for (const struct simd_step *s = steps; s < steps + count; s++) {
      int failed = ((simd_function)(uintptr_t)s->kernel)(m, at(registers, s, 0), at(registers, s, 1), at(registers, s, 2), at(registers, s, 3));
      if (failed) return failed;
    }
    for (struct simd_register *r = registers; r < registers + used; r++) r->address += r->step;
    done += m;
  }
  return 0;
}

static void IN_SET(simd_copy)(void *to, uint64_t source, struct simd_axis *axes, int64_t count, int64_t size, int64_t n) {
  IN_SET(simd_next)(to, &source, axes, count, size, n);
}

// Squares of elements are transposed in registers: each round interleaves the vectors of both
// halves, until the rows have become columns.
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t longs __attribute__((vector_size(VECTOR_BYTES)));
#define LOW16(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH16(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW8(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH8(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW4(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH4(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define LOW2(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH2(a, b) __builtin_shufflevector(a, b, 1, 3)

#define SQUARE(name, V, T, side, rounds, LOW, HIGH)                                            \
  static inline void name(char *to, int64_t to_step, const char *from, int64_t from_step) {    \
    V x[side], y[side];                                                                        \
    for (int i = 0; i < side; i++) memcpy(&x[i], from + i * from_step, sizeof(V));             \
    for (int round = 0; round < rounds; round++) {                                             \
      for (int i = 0; i < side / 2; i++) {                                                     \
        y[2 * i] = LOW(x[i], x[i + side / 2]);                                                 \
        y[2 * i + 1] = HIGH(x[i], x[i + side / 2]);                                            \
      }                                                                                        \
      for (int i = 0; i < side; i++) x[i] = y[i];                                              \
    }                                                                                          \
    for (int i = 0; i < side; i++) memcpy(to + i * to_step, &x[i], sizeof(V));                 \
  }
SQUARE(square1, bytes16, uint8_t, 16, 4, LOW16, HIGH16)
#if VECTOR_BYTES == 64
SQUARE(square4, words, uint32_t, 16, 4, LOW16, HIGH16)
SQUARE(square8, longs, uint64_t, 8, 3, LOW8, HIGH8)
#elif VECTOR_BYTES == 32
SQUARE(square4, words, uint32_t, 8, 3, LOW8, HIGH8)
SQUARE(square8, longs, uint64_t, 4, 2, LOW4, HIGH4)
#else
SQUARE(square4, words, uint32_t, 4, 2, LOW4, HIGH4)
SQUARE(square8, longs, uint64_t, 2, 1, LOW2, HIGH2)
#endif
static inline void square16(char *to, int64_t to_step, const char *from, int64_t from_step) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) memcpy(to + i * to_step + j * 16, from + j * from_step + i * 16, 16);
}

// to[i][j] = from[j][i] for all i below rows and j below columns.
#define TRANSPOSE(name, square, side, size)                                                    \
  static void name(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t columns) { \
    int64_t j = 0;                                                                             \
    for (; j + side <= columns; j += side) {                                                   \
      int64_t i = 0;                                                                           \
      for (; i + side <= rows; i += side) square(to + i * to_step + j * size, to_step, from + j * from_step + i * size, from_step); \
      for (; i < rows; i++)                                                                    \
        for (int64_t k = j; k < j + side; k++) memcpy(to + i * to_step + k * size, from + k * from_step + i * size, size); \
    }                                                                                          \
    for (int64_t i = 0; i < rows; i++)                                                         \
      for (int64_t k = j; k < columns; k++) memcpy(to + i * to_step + k * size, from + k * from_step + i * size, size); \
  }
TRANSPOSE(transpose1, square1, 16, 1)
TRANSPOSE(transpose4, square4, VECTOR_BYTES / 4, 4)
TRANSPOSE(transpose8, square8, VECTOR_BYTES / 8, 8)
TRANSPOSE(transpose16, square16, 4, 16)

static void IN_SET(simd_transpose)(const struct simd_transposition *t, int64_t begin, int64_t end) {
  enum { COLUMNS = 16 };
  for (int64_t unit = begin; unit < end; unit++) {
    char *to = (char *)(uintptr_t)t->to;
    const char *from = (const char *)(uintptr_t)t->from;
    const int64_t bands = (t->rows + SIMD_BAND - 1) / SIMD_BAND;
    int64_t rest = unit / bands;
    const int64_t first = unit % bands * SIMD_BAND, rows = t->rows - first < SIMD_BAND ? t->rows - first : SIMD_BAND;
    const struct simd_outer *outer = (const struct simd_outer *)(uintptr_t)t->outer;
    for (int64_t i = t->count - 1; i >= 0; i--) {
      const int64_t index = rest % outer[i].length;
      rest /= outer[i].length;
      to += index * outer[i].to_step;
      from += index * outer[i].from_step;
    }
    to += first * t->to_step;
    from += first * t->size;
    for (int64_t j = 0; j < t->columns; j += COLUMNS) {
      const int64_t columns = t->columns - j < COLUMNS ? t->columns - j : COLUMNS;
      char *d = to + j * t->size;
      const char *s = from + j * t->from_step;
      switch (t->size) {
      case 1: transpose1(d, t->to_step, s, t->from_step, rows, columns); break;
      case 4: transpose4(d, t->to_step, s, t->from_step, rows, columns); break;
      case 8: transpose8(d, t->to_step, s, t->from_step, rows, columns); break;
      default: transpose16(d, t->to_step, s, t->from_step, rows, columns);
      }
    }
  }
}

// d[i] = first + (T)(begin + i) * step, with a rounding after each operation.
#define COUNT_UP(T, U)                                                                            \
  {                                                                                            \
    U *d = to, start, next;                                                                    \
    memcpy(&start, values, sizeof start);                                                      \
    memcpy(&next, (const char *)values + sizeof start, sizeof next);                           \
    const U step = next - start;                                                               \
    EACH(i, n) d[i] = start + (U)((U)(T)(begin + i) * step);                                   \
    return;                                                                                    \
  }
static void IN_SET(simd_count)(int type, void *to, int64_t begin, int64_t n, const void *values) {
  switch (type) {
  case UINT8: COUNT_UP(uint8_t, uint8_t)
  case INT32: COUNT_UP(int32_t, uint32_t)
  case INT64: COUNT_UP(int64_t, uint64_t)
  case FLOAT32: COUNT_UP(float, float)
  default: COUNT_UP(double, double)
  }
}

const struct simd_set IN_SET(simd_set) = {
    IN_SET(simd_map), IN_SET(simd_run), IN_SET(simd_copy), IN_SET(simd_transpose), IN_SET(simd_count),
};

// The kernel of array.take. The generated source defines these names before it:
//
//   word_t   the unit that is copied: an element, or several that are contiguous
//   index_t  the type of the indices
//   at_t     an unsigned integer that can count the words of the output
//   NO, NI   the numbers of axes of x before and behind the axis that is selected along

// The first index that is out of the axis. The host looks at set first.
struct outside {
  u32 set, unused;
  u64 before;  // the bits of its position, inverted: the largest value is that of the first one
};
struct take_args {
  const char *x;
  const index_t *indices;
  word_t *out;
  outside *wrong;
  u64 words, count, inner;  // words of the output; indices; words behind the axis
  i64 length, stride;       // of the axis
  i64 outer_shape[NO], outer_stride[NO], inner_shape[NI], inner_stride[NI];
};

template <int N> __device__ __forceinline__ i64 offset_of(at_t i, const i64 (&shape)[N], const i64 (&stride)[N]) {
  i64 offset = 0;
#pragma unroll
  for (int d = N - 1; d > 0; d--) {
    at_t q = i / (at_t)shape[d];
    offset += (i64)(i - q * (at_t)shape[d]) * stride[d];
    i = q;
  }
  return offset + (i64)i * stride[0];
}

extern "C" __global__ void __launch_bounds__(256) take(const take_args a) {
  u64 word = (u64)blockIdx.x * 256 + threadIdx.x;
  if (word >= a.words) return;
  at_t row = (at_t)word, inner = 0;
  if (a.inner > 1) {
    row = (at_t)word / (at_t)a.inner;
    inner = (at_t)word - row * (at_t)a.inner;
  }
  at_t outer = row / (at_t)a.count, position = row - outer * (at_t)a.count;
  i64 index = (i64)a.indices[position];
  if (index < 0) index += a.length;
  if (index < 0 || index >= a.length) {
    a.wrong->set = 1;
    atomicMax(&a.wrong->before, ~(u64)position);
    return;
  }
  const char *from = a.x + index * a.stride + offset_of<NO>(outer, a.outer_shape, a.outer_stride) + offset_of<NI>(inner, a.inner_shape, a.inner_stride);
  a.out[word] = *(const word_t *)from;
}

// Looks for an index that is out of the axis, if the output has no elements.
struct check_args {
  const index_t *indices;
  outside *wrong;
  u64 count;
  i64 length;
};
extern "C" __global__ void __launch_bounds__(256) check(const check_args a) {
  u64 position = (u64)blockIdx.x * 256 + threadIdx.x;
  if (position >= a.count) return;
  i64 index = (i64)a.indices[position];
  if (index >= -a.length && index < a.length) return;
  a.wrong->set = 1;
  atomicMax(&a.wrong->before, ~position);
}

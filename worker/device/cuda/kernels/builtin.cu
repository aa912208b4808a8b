// The kernels that are the same for all users: fills, copies, sequences, random numbers, products
// of integers, and others. Generated kernels are not here. Kernels that only move elements exist
// once for each element size, not for each type.
#include "prelude.cuh"

struct fill_args {
  char *out;
  u64 n;
  pack<u64, 2> value;  // the element, repeated to 16 bytes
};

// Fills n bytes.
extern "C" __global__ void __launch_bounds__(256) fill(const fill_args a) {
  // Each thread fills four times 16 bytes, so that there are fewer blocks to start.
#pragma unroll
  for (int round = 0; round < 4; round++) {
    u64 i = (((u64)blockIdx.x * 4 + round) * 256 + threadIdx.x) * 16;
    if (i + 16 <= a.n)
      *(ulonglong2 *)(a.out + i) = make_ulonglong2(a.value.v[0], a.value.v[1]);
    else
      for (u64 k = i; k < a.n; k++) a.out[k] = ((const char *)&a.value)[k % 16];
  }
}

enum { AXES = 8 };
struct copy_args {
  const char *from;
  char *to;
  u64 n;
  i32 axes, tile;  // tile: for turn, the axis that is contiguous in from
  i64 shape[AXES], from_stride[AXES], to_stride[AXES];  // strides in bytes
};

// Copies n elements of type T between any strides.
template <class T> __device__ __forceinline__ void copy(const copy_args &a) {
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < a.n; i += (u64)gridDim.x * 256) {
    i64 from = 0, to = 0;
    u64 r = i;
    for (int d = a.axes - 1; d > 0; d--) {
      u64 q, m;
      if (r >> 32 || a.shape[d] >> 32) {
        q = r / (u64)a.shape[d];
      } else {
        q = (u32)r / (u32)a.shape[d];
      }
      m = r - q * a.shape[d];
      from += (i64)m * a.from_stride[d];
      to += (i64)m * a.to_stride[d];
      r = q;
    }
    from += (i64)r * a.from_stride[0];
    to += (i64)r * a.to_stride[0];
    *(T *)(a.to + to) = *(const T *)(a.from + from);
  }
}

// Transposes: copies tiles of 32 by 32 elements through shared memory, so that reads and writes are
// both contiguous. The last axis is contiguous in to, the axis tile in from. The grid's z counts
// the tiles along the other axes.
template <class T> __device__ __forceinline__ void turn(const copy_args &a) {
  __shared__ T shared[32][33];
  int last = a.axes - 1;
  i64 from = 0, to = 0;
  u64 r = blockIdx.z;
  for (int d = last - 1; d >= 0; d--) {
    if (d == a.tile) continue;
    u64 q = r / a.shape[d], m = r - q * a.shape[d];
    from += (i64)m * a.from_stride[d];
    to += (i64)m * a.to_stride[d];
    r = q;
  }
  u64 rows = a.shape[a.tile], columns = a.shape[last];
  u64 i0 = (u64)blockIdx.y * 32, j0 = (u64)blockIdx.x * 32;
  u32 tx = threadIdx.x % 32, ty = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < 32; k += 8)
    if (i0 + tx < rows && j0 + ty + k < columns)
      shared[ty + k][tx] = *(const T *)(a.from + from + (i64)(i0 + tx) * a.from_stride[a.tile] + (i64)(j0 + ty + k) * a.from_stride[last]);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 32; k += 8)
    if (i0 + ty + k < rows && j0 + tx < columns)
      *(T *)(a.to + to + (i64)(i0 + ty + k) * a.to_stride[a.tile] + (i64)(j0 + tx) * a.to_stride[last]) = shared[tx][ty + k];
}

#define MOVES(bytes, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) copy_##bytes(const copy_args a) { copy<T>(a); }           \
  extern "C" __global__ void __launch_bounds__(256) turn_##bytes(const copy_args a) { turn<T>(a); }
struct alignas(16) sixteen { u64 a, b; };
MOVES(1, u8)
MOVES(4, u32)
MOVES(8, u64)
MOVES(16, sixteen)

// Element i is first + T(i)*step. The product and the sum are each rounded.
template <class T> struct count_args {
  T *out;
  u64 n;
  T first, step;
};
template <class T> __device__ __forceinline__ T count_at(const count_args<T> &a, u64 i) { return f_add(a.first, f_mul((T)i, a.step)); }
#define COUNT(name, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) count_##name(const count_args<T> a) {                 \
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;                                                          \
    if (i < a.n) a.out[i] = count_at(a, i);                                                               \
  }
COUNT(uint8, u8)
COUNT(int32, i32)
COUNT(int64, i64)
COUNT(float32, f32)
COUNT(float64, f64)
#define COUNT_COMPLEX(name, R)                                                                            \
  extern "C" __global__ void __launch_bounds__(256) count_##name(const count_args<R> a) {                 \
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;                                                          \
    if (i < a.n) ((cx<R> *)a.out)[i] = {count_at(a, i), 0};                                               \
  }
COUNT_COMPLEX(complex64, f32)
COUNT_COMPLEX(complex128, f64)

// The generator Philox4x32-10. Each counter gives a block of two random words of 64 bits.
struct words {
  u64 even, odd;
};
__device__ __forceinline__ words philox(u64 counter, u64 seed) {
  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; i++) {
    u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0 | (u64)c1 << 32, c2 | (u64)c3 << 32};
}
__device__ __forceinline__ f64 unit(u64 word) { return (f64)(word >> 11) * 0x1p-53; }

struct draw_args {
  char *out;
  u64 first, n, seed;  // the first word and the number of words in the seed's sequence
  f64 a, b;            // uniform: low and high; normal: mean and standard deviation
  i64 base;            // integers: the smallest
  u64 span;            // integers: how many different ones
};

__device__ __forceinline__ void draw(const draw_args &g, u64 w, f64 *out) {
  f64 scaled = (g.b - g.a) * unit(w);
  *out = g.a + scaled;
}
__device__ __forceinline__ void draw(const draw_args &g, u64 w, f32 *out) {
  f32 low = (f32)g.a, span = (f32)g.b - low, scaled = span * ((f32)(w >> 40) * 0x1p-24f);
  *out = low + scaled;
}
template <class T> __device__ __forceinline__ void draw_integer(const draw_args &g, u64 w, T *out) {
  *out = (T)(g.base + (i64)__umul64hi(w, g.span));
}

// Each thread makes one block of two words. The first block may begin before the output, the last
// one may end behind it.
#define DRAW(name, T, EVEN, ODD)                                                          \
  extern "C" __global__ void __launch_bounds__(256) draw_##name(const draw_args g) {      \
    u64 block = g.first / 2 + (u64)blockIdx.x * 256 + threadIdx.x;                        \
    if (2 * block >= g.first + g.n) return;                                               \
    words w = philox(block, g.seed);                                                      \
    T *out = (T *)g.out, even, odd;                                                       \
    EVEN;                                                                                 \
    ODD;                                                                                  \
    if (g.first % 2 == 0 && 2 * block + 1 < g.first + g.n) {                              \
      pack<T, 2> both = {even, odd};                                                      \
      *(pack<T, 2> *)(out + (2 * block - g.first)) = both;                                \
      return;                                                                             \
    }                                                                                     \
    if (2 * block >= g.first) out[2 * block - g.first] = even;                            \
    if (2 * block + 1 < g.first + g.n) out[2 * block + 1 - g.first] = odd;                \
  }
DRAW(uniform_float32, f32, draw(g, w.even, &even), draw(g, w.odd, &odd))
DRAW(uniform_float64, f64, draw(g, w.even, &even), draw(g, w.odd, &odd))
DRAW(integers_uint8, u8, draw_integer(g, w.even, &even), draw_integer(g, w.odd, &odd))
DRAW(integers_int32, i32, draw_integer(g, w.even, &even), draw_integer(g, w.odd, &odd))
DRAW(integers_int64, i64, draw_integer(g, w.even, &even), draw_integer(g, w.odd, &odd))

#define NORMAL(T)                                                    \
  f64 radius = sqrt(-2 * log(1 - unit(w.even))), s, c;               \
  sincos(2 * 3.14159265358979323846 * unit(w.odd), &s, &c);          \
  f64 e = g.b * (radius * c), o = g.b * (radius * s);                \
  even = (T)(g.a + e);                                               \
  odd = (T)(g.a + o)
DRAW(normal_float32, f32, NORMAL(f32), )
DRAW(normal_float64, f64, NORMAL(f64), )

// Draws n bytes; first is not used.
extern "C" __global__ void __launch_bounds__(256) draw_bytes(const draw_args g) {
  u64 i = ((u64)blockIdx.x * 256 + threadIdx.x) * 16;
  if (i >= g.n) return;
  words w = philox(i / 16, g.seed);
  if (i + 16 <= g.n)
    *(words *)(g.out + i) = w;
  else
    for (u64 k = 0; i + k < g.n; k++) g.out[i + k] = ((const char *)&w)[k];
}

// A point of a Task Bench graph. Pair i of the output is computed from pair i of each input. If one
// of those is wrong, it is (-1, -1). So the host needs no report of an error: later points see it
// and pass it on.
struct pair {
  i64 step, point;
};
struct point_input {
  const pair *data;
  u64 pairs;
  i64 point;
};
struct point_args {
  pair *out;
  u64 pairs;
  i64 step, point;
  u64 iterations, inputs;
  point_input input[64];
};
extern "C" __global__ void __launch_bounds__(256) bench_point(const point_args a) {
  u64 first = (u64)blockIdx.x * 256 + threadIdx.x, threads = (u64)gridDim.x * 256;
  f64 lane[8];
  for (int k = 0; k < 8; k++) lane[k] = 1.2345 + k;
  for (u64 n = 0; n < a.iterations; n++)
#pragma unroll
    for (int k = 0; k < 64; k++) lane[k % 8] = lane[k % 8] * 0.9999 + 0.0001;
  f64 sum = 0;
  for (int k = 0; k < 8; k++) sum += lane[k];
  for (u64 i = first; i < a.pairs; i += threads) {
    // sum is never negative; the compiler does not know it, so it cannot remove the computation.
    bool right = !(sum < 0);
    for (u64 n = 0; n < a.inputs; n++) {
      const point_input &x = a.input[n];
      pair p = i < x.pairs ? x.data[i] : pair{-1, -1};
      right = right && p.step == a.step - 1 && p.point == x.point;
    }
    a.out[i] = right ? pair{a.step, a.point} : pair{-1, -1};
  }
}

// For factorisations: copies the upper triangle of a matrix, and sets the elements below it to
// zero. from is in column order, with from_distance elements from one column to the next. to is in
// row order, without gaps.
struct triangle_args {
  const char *from;
  char *to;
  u64 rows, columns, from_distance;
};
template <class T> __device__ __forceinline__ void upper(const triangle_args &a) {
  u64 n = (u64)blockIdx.x * 256 + threadIdx.x;
  if (n >= a.rows * a.columns) return;
  u64 i = n / a.columns, j = n - i * a.columns;
  ((T *)a.to)[n] = j < i ? (T)0 : ((const T *)a.from)[j * a.from_distance + i];
}
extern "C" __global__ void __launch_bounds__(256) upper_float32(const triangle_args a) { upper<f32>(a); }
extern "C" __global__ void __launch_bounds__(256) upper_float64(const triangle_args a) { upper<f64>(a); }

// The largest difference between a square matrix and the identity, in the lower triangle. NaN
// counts as 1e300.
struct off_args {
  const char *from;
  f64 *worst;  // compared as an integer: the bits of numbers that are not negative have their order
  u64 n;
};
template <class T> __device__ __forceinline__ void off(const off_args &a) {
  u64 k = (u64)blockIdx.x * 256 + threadIdx.x;
  f64 d = 0;
  if (k < a.n * a.n) {
    u64 i = k / a.n, j = k - i * a.n;
    if (j <= i) d = fabs((f64)((const T *)a.from)[k] - (i == j ? 1.0 : 0.0));
    if (d != d) d = 1e300;
  }
  for (int s = 16; s > 0; s >>= 1) d = fmax(d, __shfl_xor_sync(~0u, d, s));
  if (threadIdx.x % 32 == 0 && d > 0) atomicMax((u64 *)a.worst, (u64)__double_as_longlong(d));
}
extern "C" __global__ void __launch_bounds__(256) off_float32(const off_args a) { off<f32>(a); }
extern "C" __global__ void __launch_bounds__(256) off_float64(const off_args a) { off<f64>(a); }

// Products of integer matrices. Strides are in elements and arbitrary, but the rows of c are
// contiguous. The grid's z counts the matrices of a batch.
struct product_args {
  const char *a, *b;
  char *c;
  u64 m, n, k;
  i64 a_row, a_column, b_row, b_column, a_next, b_next, c_next;
};
enum { TILE = 16 };
template <class T, class Sum, bool logical> __device__ __forceinline__ void product(const product_args &g) {
  __shared__ T left[TILE][TILE], right[TILE][TILE + 1];
  const T *a = (const T *)g.a + (i64)blockIdx.z * g.a_next, *b = (const T *)g.b + (i64)blockIdx.z * g.b_next;
  T *c = (T *)g.c + (i64)blockIdx.z * g.c_next;
  u32 tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
  u64 i = (u64)blockIdx.y * TILE + ty, j = (u64)blockIdx.x * TILE + tx;
  Sum sum = 0;
  for (u64 l = 0; l < g.k; l += TILE) {
    left[ty][tx] = i < g.m && l + tx < g.k ? a[(i64)i * g.a_row + (i64)(l + tx) * g.a_column] : (T)0;
    right[ty][tx] = j < g.n && l + ty < g.k ? b[(i64)(l + ty) * g.b_row + (i64)j * g.b_column] : (T)0;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < TILE; e++) {
      if (logical)
        sum |= (Sum)(left[ty][e] && right[e][tx]);
      else
        sum += (Sum)left[ty][e] * (Sum)right[e][tx];
    }
    __syncthreads();
  }
  if (i < g.m && j < g.n) c[i * g.n + j] = (T)sum;
}
#define PRODUCT(name, T, Sum, logical) \
  extern "C" __global__ void __launch_bounds__(256) product_##name(const product_args g) { product<T, Sum, logical>(g); }
PRODUCT(bool, u8, u32, true)
PRODUCT(uint8, u8, u32, false)
PRODUCT(int32, i32, u32, false)
PRODUCT(int64, i64, u64, false)

// Copies many ranges of bytes. Each block copies one row of the table after the other.
struct gather_row {
  char *to;
  const char *from;
  u64 bytes;
};
template <class W> __device__ __forceinline__ void gather_words(char *to, const char *from, u64 bytes) {
  const u64 count = bytes / sizeof(W), step = blockDim.x;
  u64 at = threadIdx.x;
  for (; at + 3 * step < count; at += 4 * step) {
    W w[4];  // outstanding loads, because memory of a peer or of the host takes long to answer
#pragma unroll
    for (int k = 0; k < 4; k++) w[k] = ((const W *)from)[at + k * step];
#pragma unroll
    for (int k = 0; k < 4; k++) ((W *)to)[at + k * step] = w[k];
  }
  for (; at < count; at += step) ((W *)to)[at] = ((const W *)from)[at];
}
// Copies a row by words of type W, and the bytes before the first and after the last whole word one
// by one. REQUIRES: to and from have the same alignment within a word.
template <class W> __device__ __forceinline__ void gather_aligned(const gather_row &r) {
  u64 head = (0 - (u64)r.to) & (sizeof(W) - 1);
  if (head > r.bytes) head = r.bytes;
  const u64 body = (r.bytes - head) / sizeof(W) * sizeof(W);
  gather_words<u8>(r.to, r.from, head);
  gather_words<W>(r.to + head, r.from + head, body);
  gather_words<u8>(r.to + head + body, r.from + head + body, r.bytes - head - body);
}
extern "C" __global__ void __launch_bounds__(512) gather(const gather_row *table, u32 rows) {
  for (u32 i = blockIdx.x; i < rows; i += gridDim.x) {
    const gather_row r = table[i];
    const u64 apart = (u64)r.to ^ (u64)r.from;
    if (!(apart & 15))
      gather_aligned<pack<u64, 2>>(r);
    else if (!(apart & 3))
      gather_aligned<u32>(r);
    else
      gather_words<u8>(r.to, r.from, r.bytes);
  }
}

// The kernels of array.unique, for n elements that are sorted. The generated source defines in_t,
// the type of the elements, before it.
enum { WARP_ITEMS = 8, TILE = 256 * WARP_ITEMS };

// All NaNs are equal, and so are all complex numbers with NaN in either part.
FN bool same(T a, T b) { return a == b || (a != a && b != b); }
COMPLEX bool same(cx<R> a, cx<R> b) { return (a.re == b.re && a.im == b.im) || (is_nan(a) && is_nan(b)); }
// The value that stands for all that are the same. -0.0 becomes 0.0. A sum with 0 would change the
// bits of NaN.
FN T value_of(T x) { return x == 0 ? (T)0 : x; }
COMPLEX cx<R> value_of(cx<R> z) {
  if (is_nan(z)) return z.re != z.re ? cx<R>{z.re, z.re} : cx<R>{z.im, z.im};
  return {value_of(z.re), value_of(z.im)};
}

struct distinct_args {
  const in_t *x;
  const u32 *order;  // the index of each element before it was sorted; NULL: no inverse is wanted
  u32 *starts;       // for each tile: the number of its values; then that of the tiles before it
  u32 *many;         // the number of values
  u64 n, tiles;
  in_t *values;
  u32 *firsts;  // for each value: the index of its first element
  i64 *inverse;
};

// Whether each element is the first of its value. A warp looks at WARP_ITEMS times 32 neighbours.
struct marks {
  u32 bits[WARP_ITEMS], count;
};
__device__ __forceinline__ u64 index_of(int i) { return (u64)blockIdx.x * TILE + (threadIdx.x / 32 * WARP_ITEMS + i) * 32 + threadIdx.x % 32; }
__device__ __forceinline__ marks marks_of(const distinct_args &a) {
  marks m;
  m.count = 0;
#pragma unroll
  for (int i = 0; i < WARP_ITEMS; i++) {
    u64 at = index_of(i);
    m.bits[i] = __ballot_sync(~0u, at < a.n && (at == 0 || !same(a.x[at], a.x[at - 1])));
    m.count += __popc(m.bits[i]);
  }
  return m;
}

extern "C" __global__ void __launch_bounds__(256) distinct_tiles(const distinct_args a) {
  __shared__ u32 counts[8];
  marks m = marks_of(a);
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = m.count;
  __syncthreads();
  if (threadIdx.x > 0) return;
  u32 sum = 0;
  for (int w = 0; w < 8; w++) sum += counts[w];
  a.starts[blockIdx.x] = sum;
}

// Replaces the counts of the tiles by the sums of those before, and stores the sum of all. One
// block does it.
extern "C" __global__ void __launch_bounds__(1024) distinct_starts(const distinct_args a) {
  __shared__ u32 sums[32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = 0;
  for (u64 first = 0; first < a.tiles; first += 1024) {
    u64 tile = first + threadIdx.x;
    u32 own = tile < a.tiles ? a.starts[tile] : 0, sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      u32 other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 start = 0;
    for (u32 w = 0; w < 32; w++) {
      if (w == warp) start = before;
      before += sums[w];
    }
    if (tile < a.tiles) a.starts[tile] = start + sum - own;
    __syncthreads();
  }
  if (threadIdx.x == 0) *a.many = before;
}

extern "C" __global__ void __launch_bounds__(256) distinct_values(const distinct_args a) {
  __shared__ u32 counts[8];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  marks m = marks_of(a);
  if (lane == 0) counts[warp] = m.count;
  __syncthreads();
  u32 before = a.starts[blockIdx.x];
  for (u32 w = 0; w < warp; w++) before += counts[w];
#pragma unroll
  for (int i = 0; i < WARP_ITEMS; i++) {
    u64 at = index_of(i);
    if (at < a.n) {
      u32 value = before + __popc(m.bits[i] & ((2u << lane) - 1)) - 1;
      if (m.bits[i] >> lane & 1) {
        a.values[value] = value_of(a.x[at]);
        if (a.firsts) a.firsts[value] = (u32)at;
      }
      if (a.order) a.inverse[a.order[at]] = value;
    }
    before += __popc(m.bits[i]);
  }
}

struct counts_args {
  const u32 *firsts;
  i64 *counts;
  u64 many, n;
};
extern "C" __global__ void __launch_bounds__(256) distinct_counts(const counts_args a) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.many) a.counts[i] = (i64)(i + 1 < a.many ? a.firsts[i + 1] : a.n) - a.firsts[i];
}

// The kernels of array.cumsum. The generated source defines these names before it:
//
//   in_t, acc_t, out_t   types of elements, accumulators and results
//   load, join, finish   make an accumulator of an element, add two, and make a result
//   ZERO                 the accumulator of no elements
//   V                    elements per load and per store
//   ROUNDS               loads of a thread in a tile
//
// The order in which elements are added depends on the shape alone.
enum { SPAN = 32 * V * ROUNDS, TILE = 8 * SPAN };  // the elements of a warp and of a block

__device__ __forceinline__ acc_t shuffle(acc_t x, u32 from) {
  union words {
    acc_t value;
    u32 word[sizeof(acc_t) < 4 ? 1 : sizeof(acc_t) / 4];
    __device__ words() {}
  } w;
  w.word[0] = 0;
  w.value = x;
#pragma unroll
  for (u32 i = 0; i < sizeof(w.word) / 4; i++) w.word[i] = __shfl_sync(~0u, w.word[i], from);
  return w.value;
}

// The sum of a range of elements from the last beginning of a lane in it on. begins says that there
// is one.
struct run_t {
  acc_t sum;
  bool begins;
};
__device__ __forceinline__ run_t join_runs(run_t a, run_t b) {
  if (!b.begins) b.sum = join(a.sum, b.sum), b.begins = a.begins;
  return b;
}
__device__ __forceinline__ run_t shuffle(run_t r, u32 from) {
  bool begins = __shfl_sync(~0u, (u32)r.begins, from);
  return {shuffle(r.sum, from), begins};
}
// Replaces the run of each thread of a warp by that of all threads up to it.
__device__ __forceinline__ run_t up_to(run_t r) {
  u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) {
    run_t other = shuffle(r, lane >= d ? lane - d : lane);
    if (lane >= d) r = join_runs(other, r);
  }
  return r;
}

// Lanes that are contiguous and lie one after the other: n elements in all. The elements are
// divided into tiles, which need not begin where a lane begins.
struct runs_args {
  const in_t *x;
  out_t *out;
  acc_t *parts;  // for each tile: its run, then that of the tiles before it; NULL: there is one tile
  u64 n, length, tiles;
};

// Returns the index of the first element of the lane of element e.
__device__ __forceinline__ u64 begin_of(const runs_args &a, u64 e) {
  if (a.length == a.n) return 0;
  return e >> 32 || a.length >> 32 ? e / a.length * a.length : (u32)e / (u32)a.length * (u32)a.length;
}

// Sums up the last lane of each tile.
extern "C" __global__ void __launch_bounds__(256) tile_sums(const runs_args a) {
  __shared__ acc_t shared[256];
  u64 first = (u64)blockIdx.x * TILE, end = min(first + TILE, a.n), begin = max(first, begin_of(a, end - 1));
  acc_t sum = ZERO;
  for (u64 e = begin + threadIdx.x; e < end; e += 256) sum = join(sum, load(a.x[e]));
  shared[threadIdx.x] = sum;
  for (u32 s = 128; s > 0; s >>= 1) {
    __syncthreads();
    if (threadIdx.x < s) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + s]);
  }
  if (threadIdx.x == 0) a.parts[blockIdx.x] = shared[0];
}

// Replaces the run of each tile by that of the tiles before it. One block does it.
extern "C" __global__ void __launch_bounds__(1024) tile_starts(const runs_args a) {
  __shared__ run_t shared[32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  run_t before = {ZERO, false};
  for (u64 first = 0; first < a.tiles; first += 1024) {
    u64 tile = first + threadIdx.x;
    run_t own = {ZERO, false};
    if (tile < a.tiles) own = {a.parts[tile], begin_of(a, min((tile + 1) * TILE, a.n) - 1) >= tile * TILE};
    run_t sum = up_to(own);
    if (lane == 31) shared[warp] = sum;
    run_t left = shuffle(sum, lane ? lane - 1 : 0);
    __syncthreads();
    run_t start = before;
    for (u32 w = 0; w < 32; w++) {
      if (w == warp) start = before;
      before = join_runs(before, shared[w]);
    }
    if (lane) start = join_runs(start, left);
    if (tile < a.tiles) a.parts[tile] = start.sum;
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256) tile_scan(const runs_args a) {
  __shared__ run_t shared[8];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 tile = (u64)blockIdx.x * TILE, span = tile + warp * SPAN;
  acc_t sums[ROUNDS][V];
  u64 begins[ROUNDS];  // of the lane of the first element of each load
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    u64 e = span + (r * 32 + lane) * V;
    if (e + V <= a.n) {
      pack<in_t, V> p = *(const pack<in_t, V> *)(a.x + e);
#pragma unroll
      for (int v = 0; v < V; v++) sums[r][v] = load(p.v[v]);
    } else {
#pragma unroll
      for (int v = 0; v < V; v++) sums[r][v] = e + v < a.n ? load(a.x[e + v]) : (acc_t)ZERO;
    }
    begins[r] = begin_of(a, e);
  }
  run_t before = {ZERO, false};  // the elements of the warp before this load
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    u64 e = span + (r * 32 + lane) * V, begin = begins[r], next = begin + a.length;
    run_t own = {sums[r][0], begin == e};
#pragma unroll
    for (int v = 1; v < V; v++) {
      if (e + v == next)
        own.begins = true, next += a.length;
      else
        sums[r][v] = join(sums[r][v - 1], sums[r][v]);
      own.sum = sums[r][v];
    }
    run_t all = up_to(own), left = shuffle(all, lane ? lane - 1 : 0);
    run_t start = lane ? join_runs(before, left) : before;
#pragma unroll
    for (int v = 0; v < V; v++)
      if (e + v < begin + a.length && begin < e) sums[r][v] = join(start.sum, sums[r][v]);
    before = join_runs(before, shuffle(all, 31));
  }
  if (lane == 0) shared[warp] = before;
  __syncthreads();
  run_t start = {a.parts ? a.parts[blockIdx.x] : (acc_t)ZERO, false};
  for (u32 w = 0; w < warp; w++) start = join_runs(start, shared[w]);
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    u64 e = span + (r * 32 + lane) * V;
    pack<out_t, V> p;
#pragma unroll
    for (int v = 0; v < V; v++) {
      // The elements of the lane that reaches into the warp's range from before it.
      if (begins[r] < span && e + v < begins[r] + a.length) sums[r][v] = join(start.sum, sums[r][v]);
      p.v[v] = finish(sums[r][v]);
    }
    if (e + V <= a.n) {
      *(pack<out_t, V> *)(a.out + e) = p;
    } else {
#pragma unroll
      for (int v = 0; v < V; v++)
        if (e + v < a.n) a.out[e + v] = p.v[v];
    }
  }
}

// Lanes that lie side by side: outer times rows times inner elements, summed along the rows. The
// rows are divided into chunks of per rows. A thread does one chunk of one lane.
struct columns_args {
  const in_t *x;
  out_t *out;
  acc_t *parts;  // for each lane and chunk: its sum, then that of the chunks before it; NULL: there is one chunk
  u64 outer, rows, inner, chunks, per;
};
struct place_t {
  u64 column, chunk, outer;
  u64 at, begin, end;  // the index of the lane's first element, and the rows of the chunk
  bool inside;
};
__device__ __forceinline__ place_t place_of(const columns_args &a) {
  place_t p;
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x, r = i / a.inner;
  p.column = i - r * a.inner;
  p.outer = r / a.chunks;
  p.chunk = r - p.outer * a.chunks;
  p.inside = p.outer < a.outer;
  p.at = p.outer * a.rows * a.inner + p.column;
  p.begin = p.chunk * a.per;
  p.end = min(p.begin + a.per, a.rows);
  return p;
}
__device__ __forceinline__ u64 part_of(const columns_args &a, const place_t &p) { return (p.outer * a.chunks + p.chunk) * a.inner + p.column; }

extern "C" __global__ void __launch_bounds__(256) column_sums(const columns_args a) {
  place_t p = place_of(a);
  if (!p.inside) return;
  acc_t sum = ZERO;
#pragma unroll 8
  for (u64 r = p.begin; r < p.end; r++) sum = join(sum, load(a.x[p.at + r * a.inner]));
  a.parts[part_of(a, p)] = sum;
}

extern "C" __global__ void __launch_bounds__(256) column_starts(const columns_args a) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x, outer = i / a.inner;
  if (outer >= a.outer) return;
  acc_t *part = a.parts + outer * a.chunks * a.inner + (i - outer * a.inner), sum = ZERO;
#pragma unroll 8
  for (u64 c = 0; c < a.chunks; c++) {
    acc_t own = part[c * a.inner];
    part[c * a.inner] = sum;
    sum = join(sum, own);
  }
}

extern "C" __global__ void __launch_bounds__(256) column_scan(const columns_args a) {
  place_t p = place_of(a);
  if (!p.inside) return;
  acc_t sum = a.parts ? a.parts[part_of(a, p)] : (acc_t)ZERO;
#pragma unroll 8
  for (u64 r = p.begin; r < p.end; r++) {
    u64 at = p.at + r * a.inner;
    sum = join(sum, load(a.x[at]));
    a.out[at] = finish(sum);
  }
}

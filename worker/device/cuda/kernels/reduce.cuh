// The kernels of array.reduce. The generated source defines these names before it:
//
//   in_t, acc_t, out_t   types of elements, accumulators and results
//   load                 makes an accumulator from an element
//   join                 combines two accumulators
//   finish               makes a result from an accumulator and the number of elements
//   IDENTITY             the accumulator of no elements
//   V                    elements per load
//   G                    threads that share one output
//   NK, NR               the numbers of axes that are kept and that are folded
//   RUN                  1: the folded elements of an output are contiguous
struct reduce_args {
  const char *x;
  char *out;  // results; with several splits: accumulators, for join_splits or join_wide
  // outs is the number of outputs, rows the number of elements of each. Each of the splits folds
  // per of them.
  u64 outs, rows, per, splits;
  f64 count;  // the number of elements, for finish
  i64 kept_shape[NK], kept_stride[NK], row_shape[NR], row_stride[NR];
};

__device__ __forceinline__ i64 kept_at(const reduce_args &a, u64 o) {
  i64 at = 0;
#pragma unroll
  for (int d = NK - 1; d > 0; d--) {
    u64 q = o / a.kept_shape[d];
    at += (i64)(o - q * a.kept_shape[d]) * a.kept_stride[d];
    o = q;
  }
  return at + (i64)o * a.kept_stride[0];
}

__device__ __forceinline__ i64 row_at(const reduce_args &a, u64 r) {
  i64 at = 0;
#pragma unroll
  for (int d = NR - 1; d > 0; d--) {
    u64 q = r / a.row_shape[d];
    at += (i64)(r - q * a.row_shape[d]) * a.row_stride[d];
    r = q;
  }
  return at + (i64)r * a.row_stride[0];
}

__device__ __forceinline__ void store(const reduce_args &a, u64 o, acc_t value) {
  if (a.splits > 1)
    ((acc_t *)a.out)[blockIdx.y * a.outs + o] = value;
  else
    ((out_t *)a.out)[o] = finish(value, a.count);
}

// Used if contiguous elements belong to the same output: G threads fold one output.
extern "C" __global__ void __launch_bounds__(256) runs(const reduce_args a) {
  __shared__ acc_t shared[256];
  u64 o = ((u64)blockIdx.x * 256 + threadIdx.x) / G;
  u32 lane = threadIdx.x % G;
  acc_t sum[4];
#pragma unroll
  for (int k = 0; k < 4; k++) sum[k] = IDENTITY;
  if (o < a.outs) {
    const char *x = a.x + kept_at(a, o);
    u64 r = blockIdx.y * a.per, end = min(r + a.per, a.rows);
#if RUN
    const pack<in_t, V> *p = (const pack<in_t, V> *)(x + r * sizeof(in_t));
    u64 packs = (end - r) / V, i = lane;
    for (; i + 3 * G < packs; i += 4 * G) {
      pack<in_t, V> e[4];
#pragma unroll
      for (int k = 0; k < 4; k++) e[k] = p[i + k * G];
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int v = 0; v < V; v++) sum[k] = join(sum[k], load(e[k].v[v]));
    }
    for (; i < packs; i += G) {
      pack<in_t, V> e = p[i];
#pragma unroll
      for (int v = 0; v < V; v++) sum[0] = join(sum[0], load(e.v[v]));
    }
    for (u64 k = r + packs * V + lane; k < end; k += G) sum[1] = join(sum[1], load(((const in_t *)x)[k]));
#else
    u64 k = r + lane;
    for (; k + 3 * G < end; k += 4 * G) {
      in_t e[4];
#pragma unroll
      for (int j = 0; j < 4; j++) e[j] = *(const in_t *)(x + row_at(a, k + j * G));
#pragma unroll
      for (int j = 0; j < 4; j++) sum[j] = join(sum[j], load(e[j]));
    }
    for (; k < end; k += G) sum[0] = join(sum[0], load(*(const in_t *)(x + row_at(a, k))));
#endif
  }
  acc_t all = join(join(sum[0], sum[1]), join(sum[2], sum[3]));
  shared[threadIdx.x] = all;
  for (u32 s = G / 2; s > 0; s >>= 1) {
    __syncthreads();
    if (lane < s) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + s]);
  }
  if (lane == 0 && o < a.outs) store(a, o, shared[threadIdx.x]);
}

// Used if contiguous elements belong to different outputs: a block folds 32 neighbouring outputs, 8
// rows at a time.
extern "C" __global__ void __launch_bounds__(256) lanes(const reduce_args a) {
  __shared__ acc_t shared[256];
  u32 tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  u64 o = (u64)blockIdx.x * 32 + tx;
  acc_t sum[4];
#pragma unroll
  for (int k = 0; k < 4; k++) sum[k] = IDENTITY;
  if (o < a.outs) {
    const char *x = a.x + kept_at(a, o);
    u64 r = blockIdx.y * a.per, end = min(r + a.per, a.rows), k = r + ty;
    for (; k + 24 < end; k += 32) {
      in_t e[4];
#pragma unroll
      for (int j = 0; j < 4; j++) e[j] = *(const in_t *)(x + row_at(a, k + 8 * j));
#pragma unroll
      for (int j = 0; j < 4; j++) sum[j] = join(sum[j], load(e[j]));
    }
    for (; k < end; k += 8) sum[0] = join(sum[0], load(*(const in_t *)(x + row_at(a, k))));
  }
  shared[threadIdx.x] = join(join(sum[0], sum[1]), join(sum[2], sum[3]));
  for (u32 s = 4; s > 0; s >>= 1) {
    __syncthreads();
    if (ty < s) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + 32 * s]);
  }
  if (ty == 0 && o < a.outs) store(a, o, shared[threadIdx.x]);
}

struct join_args {
  const acc_t *parts;  // one row for each split
  out_t *out;
  u64 outs, splits;
  f64 count;
};

// Two kernels that join the accumulators of the splits. join_splits has a block for each output,
// for few outputs; join_wide has a thread for each.
extern "C" __global__ void __launch_bounds__(256) join_splits(const join_args a) {
  __shared__ acc_t shared[256];
  acc_t sum = IDENTITY;
  for (u64 s = threadIdx.x; s < a.splits; s += 256) sum = join(sum, a.parts[s * a.outs + blockIdx.x]);
  shared[threadIdx.x] = sum;
  for (u32 s = 128; s > 0; s >>= 1) {
    __syncthreads();
    if (threadIdx.x < s) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + s]);
  }
  if (threadIdx.x == 0) a.out[blockIdx.x] = finish(shared[0], a.count);
}

extern "C" __global__ void __launch_bounds__(256) join_wide(const join_args a) {
  u64 o = (u64)blockIdx.x * 256 + threadIdx.x;
  if (o >= a.outs) return;
  acc_t sum = IDENTITY;
  for (u64 s = 0; s < a.splits; s++) sum = join(sum, a.parts[s * a.outs + o]);
  a.out[o] = finish(sum, a.count);
}

// Kernels for linear algebra: see stack.go, solver.go and svd.go.

struct addresses_args {
  u64 *to, n, first, step;
};
extern "C" __global__ void __launch_bounds__(256) addresses(const addresses_args a) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.n) a.to[i] = a.first + i * a.step;
}

// Notes a failure at a row, counted from 1, of a matrix. The first failure of the first matrix is
// kept.
__device__ __forceinline__ void note(u64 *failure, u64 matrix, u32 row) { atomicMin(failure, matrix << 32 | row); }

struct failures_args {
  const i32 *infos;
  u64 n, *failure;
};
extern "C" __global__ void __launch_bounds__(256) failures(const failures_args a) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.n && a.infos[i] != 0) note(a.failure, i, (u32)a.infos[i]);
}

__device__ __forceinline__ bool positive(f32 x) { return x > 0; }
__device__ __forceinline__ bool positive(f64 x) { return x > 0; }
COMPLEX bool positive(cx<R> x) { return x.re > 0; }

// Sets everything above the diagonals of row-major matrices to zero. An element on a diagonal that
// is not positive is a failure: routines do not always report NaN.
struct lower_args {
  char *at;
  u64 n, elements, *failure;
};
template <class T> __device__ __forceinline__ void lower(const lower_args &a) {
  u64 k = (u64)blockIdx.x * 256 + threadIdx.x;
  if (k >= a.elements) return;
  u64 matrix = k / (a.n * a.n), r = k - matrix * a.n * a.n, i = r / a.n, j = r - i * a.n;
  T *at = (T *)a.at + k;
  if (j > i)
    *at = T{};
  else if (i == j && !positive(*at))
    note(a.failure, matrix, (u32)(i + 1));
}
#define LOWER(name, T) \
  extern "C" __global__ void __launch_bounds__(256) lower_##name(const lower_args a) { lower<T>(a); }
LOWER(float32, f32)
LOWER(float64, f64)
LOWER(complex64, c64)
LOWER(complex128, c128)

// Replaces a square matrix by the identity if the factorisation that made it cannot be used: then a
// routine that reads it does not meet NaN.
struct usable_args {
  f64 *r;
  u64 n;
  const u64 *answers;  // two info values, and the distance from the identity
  f64 most;            // the largest distance
};
extern "C" __global__ void __launch_bounds__(256) usable(const usable_args a) {
  u64 k = (u64)blockIdx.x * 256 + threadIdx.x;
  if (k >= a.n * a.n || ((i32)a.answers[0] == 0 && (i32)a.answers[1] == 0 && __longlong_as_double((i64)a.answers[2]) <= a.most)) return;
  a.r[k] = k / a.n == k % a.n ? 1 : 0;
}

// The largest absolute value. NaN is larger than all numbers.
struct largest_args {
  const f64 *from;
  u64 n, *largest;  // compared as an integer: the bits of numbers that are not negative have their order
};
extern "C" __global__ void __launch_bounds__(256) largest(const largest_args a) {
  u64 most = 0;
  for (u64 k = (u64)blockIdx.x * 256 + threadIdx.x; k < a.n; k += (u64)gridDim.x * 256) {
    u64 bits = (u64)__double_as_longlong(fabs(a.from[k]));
    most = bits > most ? bits : most;
  }
  for (int s = 16; s > 0; s >>= 1) {
    u64 other = __shfl_xor_sync(~0u, most, s);
    most = other > most ? other : most;
  }
  if (threadIdx.x % 32 == 0 && most > 0) atomicMax(a.largest, most);
}

// Kernels for stacks of matrices: see stack.go.

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

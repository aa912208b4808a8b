// Assigns each of the n points to the nearest of the k centres, and sums the points of each centre.
// A point and a centre are rows of d numbers. Row c of out gets d + 1 numbers: the sum of the
// points of centre c, and their number. The kernel adds to out, so out must be zero before.
//
// The dynamic shared memory has k * (d + 1) doubles for the block's sums, then k * d floats for the
// centres.
extern "C" __global__ void assign(const float *points, const float *centres, long long n, int d, int k, double *out) {
  extern __shared__ double sums[];
  float *near = (float *)(sums + k * (d + 1));
  for (int i = threadIdx.x; i < k * (d + 1); i += blockDim.x) sums[i] = 0;
  for (int i = threadIdx.x; i < k * d; i += blockDim.x) near[i] = centres[i];
  __syncthreads();
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long p = (long long)blockIdx.x * blockDim.x + threadIdx.x; p < n; p += step) {
    const float *x = points + p * d;
    int best = 0;
    float least = 0;
    for (int c = 0; c < k; c++) {
      float distance = 0;
      for (int i = 0; i < d; i++) {
        const float difference = x[i] - near[c * d + i];
        distance += difference * difference;
      }
      if (c == 0 || distance < least) {
        best = c;
        least = distance;
      }
    }
    double *row = sums + best * (d + 1);
    for (int i = 0; i < d; i++) atomicAdd(row + i, (double)x[i]);
    atomicAdd(row + d, 1.0);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < k * (d + 1); i += blockDim.x)
    if (sums[i] != 0) atomicAdd(out + i, sums[i]);
}

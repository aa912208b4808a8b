// Copies many ranges by one launch: frames in the mapped memory of a peer, or pieces of a slab and
// of pinned host memory. Each block copies one row of the table after the other. The host cuts long
// ranges into several rows, so that all blocks have work. build.py compiles this file, and names
// the architectures.

struct row {
  unsigned long long to, from, bytes;
};

// The number of loads that a thread has outstanding at a time. One load from a peer takes about a
// microsecond, so a thread must not wait for each.
constexpr unsigned flight = 2;

// Copies count words. All loads of a round are issued before its first store. This holds in the
// last round too, because for a short row the last round is the only one.
template <typename word>
__device__ __forceinline__ void copy_words(word *to, const word *from, unsigned count) {
  const unsigned step = blockDim.x;
  for (unsigned at = threadIdx.x; at < count; at += flight * step) {
    word w[flight];
#pragma unroll
    for (unsigned k = 0; k < flight; k++)
      if (at + k * step < count) w[k] = __ldcs(from + at + k * step);
#pragma unroll
    for (unsigned k = 0; k < flight; k++)
      if (at + k * step < count) to[at + k * step] = w[k];
  }
}

// Copies a row by words, and the bytes before the first and after the last whole word one by one.
// REQUIRES: to and from have the same alignment within a word.
template <typename word>
__device__ __forceinline__ void copy_aligned(const row &r) {
  const unsigned bytes = r.bytes;  // a row has at most GatherRow bytes (64 KiB)
  unsigned head = (0 - (unsigned)r.to) & (sizeof(word) - 1);
  if (head > bytes) head = bytes;
  const unsigned words = (bytes - head) / sizeof(word), body = words * sizeof(word);
  copy_words((char *)r.to, (const char *)r.from, head);
  copy_words((word *)(r.to + head), (const word *)(r.from + head), words);
  copy_words((char *)(r.to + head + body), (const char *)(r.from + head + body), bytes - head - body);
}

__device__ __forceinline__ void copy_row(const row &r) {
  const unsigned long long apart = r.to ^ r.from;
  if (!(apart & 15))
    copy_aligned<uint4>(r);
  else if (!(apart & 3))
    copy_aligned<unsigned int>(r);
  else
    copy_words((char *)r.to, (const char *)r.from, r.bytes);
}

// Copies the rows of the table. The table lies in host memory: each row is read once, which takes
// no longer than an upload of the table.
//
// over points into host memory, or is null. The last block to finish writes number there. The host
// sees the number sooner than it would see an event: a query of an event takes the driver longer
// than the rest of a short copy. through counts the blocks that have finished; it is 0 before and
// after the launch.
extern "C" __global__ void __launch_bounds__(512, 4)
    millrace_gather(const row *table, unsigned rows, unsigned *through, volatile unsigned long long *over, unsigned long long number) {
  for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) copy_row(table[i]);
  if (!over) return;
  __syncthreads();
  if (threadIdx.x) return;
  // This block's stores become visible before its count in through, and so before number.
  __threadfence();
  if (atomicAdd(through, 1) + 1 < gridDim.x) return;
  *through = 0;
  __threadfence_system();
  *over = number;
}

// Copies frames through the mapped memory of a peer. A block takes one row after
// the other; the host cuts long frames into rows, so that all blocks have work.
// Built by build.py, which also says for which architectures.

struct row {
  unsigned long long to, from, bytes;
};

// How many loads a thread has under way: the link's latency is a microsecond.
constexpr unsigned flight = 2;

// All loads of a round are under way before the first store, in the last round, too: what is
// short is one round.
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

// Whole words where both sides are aligned alike; what is left at both ends goes by
// bytes.
template <typename word>
__device__ __forceinline__ void copy_aligned(const row &r) {
  const unsigned bytes = r.bytes;  // a row is short
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

// The table lies in the host's memory: each row is read once, which takes no longer than
// to upload them all.
//
// If over is not null the last block to be through writes a number there, in the host's memory:
// who looks for it finds it sooner than an event, for each look at which the driver takes longer
// than for all else. through counts the blocks that are, and is 0 before and after.
extern "C" __global__ void __launch_bounds__(512, 4)
    millrace_gather(const row *table, unsigned rows, unsigned *through, volatile unsigned long long *over, unsigned long long number) {
  for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) copy_row(table[i]);
  if (!over) return;
  __syncthreads();
  if (threadIdx.x) return;
  // What this block has written is seen by whoever sees that it is through, and so by the host.
  __threadfence();
  if (atomicAdd(through, 1) + 1 < gridDim.x) return;
  *through = 0;
  __threadfence_system();
  *over = number;
}

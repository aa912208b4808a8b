// Copies frames through the mapped memory of a peer. A block takes one row after
// the other; the host cuts long frames into rows, so that all blocks have work.
// Built by build.py, which also says for which architectures.

struct row {
  unsigned long long to, from, bytes;
};

// How many loads a thread has under way: the link's latency is a microsecond.
constexpr unsigned flight = 4;

template <typename word>
__device__ __forceinline__ void copy_words(word *to, const word *from, unsigned long long count) {
  const unsigned long long step = blockDim.x;
  unsigned long long at = threadIdx.x;
  for (; at + (flight - 1) * step < count; at += flight * step) {
    word w[flight];
#pragma unroll
    for (unsigned k = 0; k < flight; k++) w[k] = __ldcs(from + at + k * step);
#pragma unroll
    for (unsigned k = 0; k < flight; k++) to[at + k * step] = w[k];
  }
  for (; at < count; at += step) to[at] = __ldcs(from + at);
}

// Whole words where both sides are aligned alike; what is left at both ends goes by
// bytes.
template <typename word>
__device__ __forceinline__ void copy_aligned(const row &r) {
  unsigned long long head = (0 - r.to) & (sizeof(word) - 1);
  if (head > r.bytes) head = r.bytes;
  const unsigned long long words = (r.bytes - head) / sizeof(word), body = words * sizeof(word);
  copy_words((char *)r.to, (const char *)r.from, head);
  copy_words((word *)(r.to + head), (const word *)(r.from + head), words);
  copy_words((char *)(r.to + head + body), (const char *)(r.from + head + body), r.bytes - head - body);
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
extern "C" __global__ void __launch_bounds__(512) millrace_gather(const row *table, unsigned rows) {
  for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) copy_row(table[i]);
}

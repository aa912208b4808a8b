// Lets a C++ compiler compile the kernels for the CPU: it defines CUDA's names that they use.
// Blocks run one after the other; the threads of a block are fibers, which take turns at barriers.
// So races between threads stay hidden, and results are those of the GPU otherwise.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)

struct dim {
  unsigned x, y, z;
};
static dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
enum { THREADS = 1024, STACK = 128 << 10, PARAMETERS = 4096 };
enum waiting { NOTHING, WARP, BLOCK, END };
struct parameters {
  alignas(16) unsigned char bytes[PARAMETERS];
};
// A function gets a structure of up to 16 bytes in two registers, a larger one in memory.
typedef void (*kernel)(parameters);
typedef void (*small_kernel)(uint64_t, uint64_t);

struct fiber {
  jmp_buf at;
  waiting waits;
  unsigned parity;
  bool begun;
};
static fiber fibers[THREADS];
static char *stacks;
static jmp_buf scheduler;
static unsigned present, threads;
static uint64_t slots[2][THREADS];
static kernel running;
static parameters given;
static size_t given_bytes;

static void pause(waiting what) {
  fibers[present].waits = what;
  if (!_setjmp(fibers[present].at)) _longjmp(scheduler, 1);
}
static void body() {
  if (given_bytes > 16) {
    running(given);
  } else {
    uint64_t words[2];
    memcpy(words, given.bytes, sizeof words);
    ((small_kernel)running)(words[0], words[1]);
  }
  fibers[present].waits = END;
  _longjmp(scheduler, 1);
}
static void resume(unsigned t) {
  present = t;
  threadIdx = {t, 0, 0};
  fiber &f = fibers[t];
  f.waits = NOTHING;
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.at, 1);
  f.begun = true;
  ucontext_t c;
  getcontext(&c);
  c.uc_stack.ss_sp = stacks + (size_t)t * STACK;
  c.uc_stack.ss_size = STACK;
  makecontext(&c, body, 0);
  setcontext(&c);
}
// Runs a warp until all of its threads have ended or wait for the block.
static void run_warp(unsigned first) {
  for (;;) {
    unsigned at_warp = 0, at_block = 0;
    for (unsigned t = first; t < first + 32 && t < threads; t++) {
      if (fibers[t].waits == NOTHING) resume(t);
      at_warp += fibers[t].waits == WARP;
      at_block += fibers[t].waits == BLOCK;
    }
    if (at_warp == 0) return;
    if (at_block) fprintf(stderr, "emulator: threads of warp %u wait at different barriers\n", first / 32), abort();
    for (unsigned t = first; t < first + 32 && t < threads; t++)
      if (fibers[t].waits == WARP) fibers[t].waits = NOTHING;
  }
}
static void run_block() {
  for (unsigned t = 0; t < threads; t++) fibers[t] = fiber();
  for (;;) {
    for (unsigned t = 0; t < threads; t += 32) run_warp(t);
    bool over = true;
    for (unsigned t = 0; t < threads; t++)
      if (fibers[t].waits == BLOCK) fibers[t].waits = NOTHING, over = false;
    if (over) return;
  }
}
// Gives the word of another thread of the warp.
static uint64_t exchange(uint64_t word, unsigned from) {
  unsigned own = present, parity = fibers[own].parity++ % 2;
  slots[parity][own] = word;
  pause(WARP);
  return slots[parity][own / 32 * 32 + from % 32];
}
template <class To, class From> static To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
}  // namespace emulator

extern "C" void emulate(void *function, const void *parameters, size_t bytes, const unsigned *grid, const unsigned *block) {
  using namespace emulator;
  if (!stacks) stacks = (char *)mmap(NULL, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  running = (kernel)function;
  memcpy(given.bytes, parameters, bytes);
  given_bytes = bytes;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  threads = block[0];
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        run_block();
      }
}

static inline void __syncthreads() { emulator::pause(emulator::BLOCK); }
static inline void __syncwarp() { emulator::pause(emulator::WARP); }
static inline unsigned __ballot_sync(unsigned, bool set) {
  emulator::exchange(set, 0);
  unsigned own = emulator::present, parity = (emulator::fibers[own].parity - 1) % 2, mask = 0;
  for (unsigned i = 0; i < 32; i++) mask |= (unsigned)(emulator::slots[parity][own / 32 * 32 + i] != 0) << i;
  return mask;
}
static inline bool __all_sync(unsigned m, bool set) { return __ballot_sync(m, set) == ~0u; }
template <class T> static inline T __shfl_sync(unsigned, T x, unsigned from) {
  uint64_t word = 0;
  memcpy(&word, &x, sizeof x);
  word = emulator::exchange(word, from);
  memcpy(&x, &word, sizeof x);
  return x;
}
template <class T> static inline T __shfl_up_sync(unsigned m, T x, unsigned by) {
  unsigned lane = threadIdx.x % 32;
  return __shfl_sync(m, x, lane >= by ? lane - by : lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T x, unsigned by) { return __shfl_sync(m, x, threadIdx.x % 32 ^ by); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
template <class T> static inline T atomicAdd(T *at, T by) { T old = *at; *at += by; return old; }
template <class T> static inline T atomicMax(T *at, T by) { T old = *at; if (by > old) *at = by; return old; }
template <class T> static inline T atomicMin(T *at, T by) { T old = *at; if (by < old) *at = by; return old; }
static inline int __float_as_int(float x) { return emulator::bits<int>(x); }
static inline float __int_as_float(int x) { return emulator::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulator::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulator::bits<double>(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

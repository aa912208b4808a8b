// The kernels that sort: the lanes of a contiguous array, each by itself. The generated source
// defines these names before it:
//
//   in_t      the type of the elements
//   code_t     an unsigned integer of the size of an element, or of a part of a complex number
//   COMPLEX_KEYS  1: the elements are complex
//   VALUES    1: the passes carry the index of each element along with its key
//   ITEMS     keys for each thread in a pass
//   WIDTH     elements that a block of sort_short sorts, a power of two
//
// Long lanes are sorted by their digits of 8 bits, the least significant one first. Each pass moves
// the keys to their places by one digit, and keeps the order of equal digits. So the result does
// not depend on timing. A pass reads and writes each key once: a block learns the number of equal
// digits before its tile from the blocks before it (Adinolfi and others, Onesweep, 2022).
enum { WARPS = 8, TILE = 256 * ITEMS, KEY_BYTES = sizeof(code_t) };

// The keys have the order of the elements. A NaN has the largest one.
__device__ __forceinline__ u8 key_of(u8 x) { return x; }
__device__ __forceinline__ u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
__device__ __forceinline__ u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
__device__ __forceinline__ u32 key_of(f32 x) {
  u32 b = (u32)__float_as_int(x);
  return x != x ? ~0u : b ^ ((u32)((i32)b >> 31) | 0x80000000u);
}
__device__ __forceinline__ u64 key_of(f64 x) {
  u64 b = (u64)__double_as_longlong(x);
  return x != x ? ~0ull : b ^ ((u64)((i64)b >> 63) | 0x8000000000000000ull);
}

// The elements of keys. All NaNs become the same one, with the host's bits.
__device__ __forceinline__ void element_of(u8 key, u8 *x) { *x = key; }
__device__ __forceinline__ void element_of(u32 key, i32 *x) { *x = (i32)(key ^ 0x80000000u); }
__device__ __forceinline__ void element_of(u64 key, i64 *x) { *x = (i64)(key ^ 0x8000000000000000ull); }
__device__ __forceinline__ void element_of(u32 key, f32 *x) {
  *x = __int_as_float((i32)(key == ~0u ? 0x7fc00000u : key >> 31 ? key ^ 0x80000000u : ~key));
}
__device__ __forceinline__ void element_of(u64 key, f64 *x) {
  *x = __longlong_as_double((i64)(key == ~0ull ? 0x7ff8000000000001ull : key >> 63 ? key ^ 0x8000000000000000ull : ~key));
}

#if COMPLEX_KEYS
// A complex number has four keys, the least significant one first: the signs of zeros, the
// imaginary part, the real part, and its class. Numbers with NaN come last: first those with NaN as
// the imaginary part, then as the real part, then as both.
enum { PARTS = 4, DIGITS = 2 * KEY_BYTES + 2 };
enum { SIGNS = 0, IMAGINARY = 1, REAL = 2, CLASS = 3 };
__device__ __forceinline__ u32 class_of(in_t z) { return (z.re != z.re ? 2 : 0) + (z.im != z.im ? 1 : 0); }
template <class R> __device__ __forceinline__ u32 is_positive_zero(R x) { return x == 0 && key_of(x) == key_of((R)0); }
__device__ __forceinline__ u32 signs_of(in_t z) { return 2 * is_positive_zero(z.re) + is_positive_zero(z.im); }
template <class R> __device__ __forceinline__ code_t key_of_part(R x) { return key_of((R)(x + (R)0)); }  // -0.0 becomes 0.0
__device__ __forceinline__ code_t key_at(in_t z, int part) {
  switch (part) {
    case SIGNS: return (code_t)signs_of(z);
    case IMAGINARY: return key_of_part(z.im);
    case REAL: return key_of_part(z.re);
  }
  return (code_t)class_of(z);
}
__device__ __forceinline__ int first_digit(int part) { return part == SIGNS ? 0 : part == CLASS ? DIGITS - 1 : 1 + (part - 1) * KEY_BYTES; }
__device__ __forceinline__ int digits_of(int part) { return part == SIGNS || part == CLASS ? 1 : KEY_BYTES; }
#else
enum { PARTS = 1, DIGITS = KEY_BYTES };
__device__ __forceinline__ code_t key_at(in_t x, int) { return key_of(x); }
__device__ __forceinline__ int first_digit(int) { return 0; }
__device__ __forceinline__ int digits_of(int) { return KEY_BYTES; }
#endif

// Replaces NaN by the one that has the host's bits.
FN T same_nan(T x) { return x; }
template <> __device__ __forceinline__ f32 same_nan(f32 x) { f32 y; element_of(key_of(x), &y); return y; }
template <> __device__ __forceinline__ f64 same_nan(f64 x) { f64 y; element_of(key_of(x), &y); return y; }
COMPLEX cx<R> same_nan(cx<R> z) { return {same_nan(z.re), same_nan(z.im)}; }

__device__ __forceinline__ u32 digit_of(code_t key, int shift) { return (u32)(key >> shift) & 255; }

// Returns the sum of the values of the threads before this one, of 256. room has WARPS elements.
__device__ __forceinline__ u32 sum_before(u32 value, u32 *room) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    u32 other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) room[warp] = sum;
  __syncthreads();
  u32 before = 0;
#pragma unroll
  for (u32 w = 0; w < WARPS; w++)
    if (w < warp) before += room[w];
  return before + sum - value;
}

// Counts the digits of a lane. Each block counts some of its tiles.
struct digits_args {
  const in_t *x;
  u32 *bins;  // for each lane and digit: how many keys have each of the 256 values
  u64 length;
  u32 tiles, blocks;  // of a lane
  u64 flip;           // all bits set: descending
};
extern "C" __global__ void __launch_bounds__(256) sort_digits(const digits_args a) {
  __shared__ u32 count[DIGITS][256];
  u64 lane = blockIdx.x / a.blocks;
  const in_t *x = a.x + lane * a.length;
#pragma unroll
  for (int d = 0; d < DIGITS; d++) count[d][threadIdx.x] = 0;
  __syncthreads();
  for (u32 tile = blockIdx.x % a.blocks; tile < a.tiles; tile += a.blocks) {
    for (u32 i = 0; i < ITEMS; i++) {
      u64 at = (u64)tile * TILE + i * 256 + threadIdx.x;
      bool inside = at < a.length;
      in_t e = x[inside ? at : 0];
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        code_t key = key_at(e, part) ^ (code_t)a.flip;
#pragma unroll
        for (int byte = 0; byte < digits_of(part); byte++) {
          u32 digit = digit_of(key, 8 * byte), first = __shfl_sync(~0u, digit, 0), *to = count[first_digit(part) + byte];
          // Often all digits are equal, for example the high ones of small integers.
          if (__all_sync(~0u, inside && digit == first)) {
            if (threadIdx.x % 32 == 0) atomicAdd(&to[digit], 32u);
          } else if (inside) {
            atomicAdd(&to[digit], 1u);
          }
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int d = 0; d < DIGITS; d++) {
    u32 n = count[d][threadIdx.x];
    if (n) atomicAdd(&a.bins[(lane * DIGITS + d) * 256 + threadIdx.x], n);
  }
}

// Replaces the counts of each 256 values by the sums of those before. A block does one digit of one
// lane.
struct bins_args {
  u32 *bins;
};
extern "C" __global__ void __launch_bounds__(256) sort_bins(const bins_args a) {
  __shared__ u32 room[WARPS];
  u32 *at = a.bins + (u64)blockIdx.x * 256 + threadIdx.x;
  u32 before = sum_before(*at, room);
  *at = before;
}

struct pass_args {
  const in_t *x;  // the lanes, one after the other
  // The results of the pass before. Without keys, they are made from x, in the order of the values;
  // without values, in the order of x.
  const code_t *keys;
  const u32 *values;
  void *to_keys;  // keys, or elements if the pass is the last one; NULL: nobody needs them
  u32 *to_values;
  const u32 *bins;
  u32 *tile;   // the number of the next tile; begins with 0
  u32 *state;  // for each tile and digit: a flag and a count; begins with 0
  u64 length, flip;
  u32 tiles;  // of a lane
  i32 part, shift, digit, last;
};

// The flags of a tile's state: the count is that of the tile, or that of the tile and all tiles
// before it in the lane. A flag and its count are one word, so that a reader sees both or none.
enum { OWN = 1u << 30, ALL = 2u << 30, COUNT = (1u << 30) - 1 };

extern "C" __global__ void __launch_bounds__(256) sort_pass(const pass_args a) {
  __shared__ u32 ranks[WARPS][256];  // of each warp: how many keys have each digit; then its first place
  __shared__ u32 starts[256], room[WARPS], taken;
  __shared__ u64 moved[(TILE * (KEY_BYTES > 4 ? KEY_BYTES : 4) + 7) / 8];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Blocks take the tiles in their order: those before this one are in progress or done.
  if (threadIdx.x == 0) taken = atomicAdd(a.tile, 1u);
#pragma unroll
  for (int w = 0; w < WARPS; w++) ranks[w][threadIdx.x] = 0;
  __syncthreads();
  const u32 tile = taken % a.tiles;
  const u64 row = taken / a.tiles, base = row * a.length, first = (u64)tile * TILE;
  const u32 valid = a.length - first < TILE ? (u32)(a.length - first) : TILE;

  code_t key[ITEMS];
  u32 rank[ITEMS];
#if VALUES
  u32 value[ITEMS];
#endif
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    u32 at = (warp * ITEMS + i) * 32 + lane;
    if (at >= valid) at = 0;
    u64 from = base + first + at;
#if VALUES
    value[i] = a.values ? a.values[from] : (u32)(first + at);
    key[i] = a.keys ? a.keys[from] : key_at(a.x[base + value[i]], a.part) ^ (code_t)a.flip;
#else
    key[i] = a.keys ? a.keys[from] : key_at(a.x[from], a.part) ^ (code_t)a.flip;
#endif
  }
  // Each key gets its place among the equal digits of its warp. Places behind the lane's end have
  // the last digit, and come after all others.
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    u32 at = (warp * ITEMS + i) * 32 + lane, digit = at < valid ? digit_of(key[i], a.shift) : 255;
    u32 equal = ~0u;
#pragma unroll
    for (int b = 0; b < 8; b++) {
      u32 set = __ballot_sync(~0u, digit >> b & 1);
      equal &= digit >> b & 1 ? set : ~set;
    }
    u32 before = __popc(equal & ((1u << lane) - 1));
    u32 start = ranks[warp][digit];
    __syncwarp();
    if (before == 0) ranks[warp][digit] = start + __popc(equal);
    __syncwarp();
    rank[i] = start + before;
  }
  __syncthreads();

  // Thread d looks after digit d.
  const u32 d = threadIdx.x;
  u32 count = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    u32 n = ranks[w][d];
    ranks[w][d] = count;
    count += n;
  }
  volatile u32 *state = a.state + (u64)taken * 256 + d;
  *state = (tile == 0 ? (u32)ALL : (u32)OWN) | count;
  u32 local = sum_before(count, room), before = 0;
  if (tile > 0) {
    for (volatile u32 *other = state - 256;; other -= 256) {
      u32 word;
      do word = *other;
      while (!(word & (OWN | ALL)));
      before += word & COUNT;
      if (word & ALL) break;
    }
    *state = ALL | (before + count);
  }
  starts[d] = a.bins[(row * DIGITS + a.digit) * 256 + d] + before - local;
#pragma unroll
  for (int w = 0; w < WARPS; w++) ranks[w][d] += local;
  __syncthreads();

  // Order the tile in shared memory, so that neighbouring threads write to neighbouring places.
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    u32 at = (warp * ITEMS + i) * 32 + lane, digit = at < valid ? digit_of(key[i], a.shift) : 255;
    rank[i] += ranks[warp][digit];
    ((code_t *)moved)[rank[i]] = key[i];
  }
  __syncthreads();
#if VALUES
  u32 to[ITEMS];
#endif
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    u32 at = i * 256 + threadIdx.x;
    code_t k = ((code_t *)moved)[at];
    u32 place = starts[digit_of(k, a.shift)] + at;
#if VALUES
    to[i] = place;
#endif
    if (at >= valid || !a.to_keys) continue;
#if !COMPLEX_KEYS
    if (a.last) {
      element_of((code_t)(k ^ (code_t)a.flip), (in_t *)a.to_keys + base + place);
      continue;
    }
#endif
    ((code_t *)a.to_keys)[base + place] = k;
  }
#if VALUES
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; i++) ((u32 *)moved)[rank[i]] = value[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    u32 at = i * 256 + threadIdx.x;
    if (at < valid) a.to_values[base + to[i]] = ((u32 *)moved)[at];
  }
#endif
}

// Copies the elements of x in the order of the values. All NaNs become the same one.
struct pick_args {
  const in_t *x;
  const u32 *values;
  in_t *to;
  u64 n, length;  // elements in all, and of a lane
};
extern "C" __global__ void __launch_bounds__(256) sort_pick(const pick_args a) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.n) a.to[i] = same_nan(a.x[(a.n == a.length ? 0 : i / a.length * a.length) + a.values[i]]);
}

// Sorts short lanes in shared memory by Batcher's bitonic method: WIDTH / width lanes in a block.
struct short_args {
  const in_t *x;
  in_t *to;
  u64 lanes, flip;
  u32 length, width;  // width: a power of two, not less than length
};
#if COMPLEX_KEYS
typedef in_t item_t;
__device__ __forceinline__ item_t item_of(in_t z, u64) { return z; }
__device__ __forceinline__ in_t element_of_item(item_t z, u64) { return same_nan(z); }
__device__ __forceinline__ bool is_behind(in_t p, in_t q) {
  u32 a = class_of(p), b = class_of(q);
  if (a != b) return a > b;
  code_t c = key_of_part(p.re), d = key_of_part(q.re);
  if (c != d) return c > d;
  c = key_of_part(p.im), d = key_of_part(q.im);
  return c != d ? c > d : signs_of(p) > signs_of(q);
}
__device__ __forceinline__ bool behind(item_t p, item_t q, u64 flip) { return flip ? is_behind(q, p) : is_behind(p, q); }
// The last element of all, for the places behind the lane's end.
__device__ __forceinline__ item_t last_item(u64 flip) {
  item_t z;
  element_of(flip ? key_of_part(-1 / (decltype(z.re))0) : (code_t)~(code_t)0, &z.re);  // -infinity or NaN
  z.im = z.re;
  return z;
}
#else
typedef code_t item_t;
__device__ __forceinline__ item_t item_of(in_t x, u64 flip) { return key_of(x) ^ (code_t)flip; }
__device__ __forceinline__ in_t element_of_item(item_t k, u64 flip) {
  in_t x;
  element_of((code_t)(k ^ (code_t)flip), &x);
  return x;
}
__device__ __forceinline__ bool behind(item_t p, item_t q, u64) { return p > q; }
__device__ __forceinline__ item_t last_item(u64) { return (item_t)~(item_t)0; }
#endif

enum { SHORT_THREADS = WIDTH / 8 };
extern "C" __global__ void __launch_bounds__(SHORT_THREADS) sort_short(const short_args a) {
  __shared__ item_t item[WIDTH];
  const u64 first = (u64)blockIdx.x * (WIDTH / a.width);
  for (u32 i = threadIdx.x; i < WIDTH; i += SHORT_THREADS) {
    u64 lane = first + i / a.width;
    u32 at = i % a.width;
    item[i] = lane < a.lanes && at < a.length ? item_of(a.x[lane * a.length + at], a.flip) : last_item(a.flip);
  }
  __syncthreads();
  for (u32 size = 2; size <= a.width; size *= 2)
    for (u32 apart = size / 2; apart > 0; apart /= 2) {
      for (u32 i = threadIdx.x; i < WIDTH / 2; i += SHORT_THREADS) {
        u32 low = 2 * i - (i & (apart - 1)), high = low + apart;
        item_t p = item[low], q = item[high];
        bool up = !((low & (a.width - 1)) & size);
        if (up ? behind(p, q, a.flip) : behind(q, p, a.flip)) item[low] = q, item[high] = p;
      }
      // Up to a distance of 32, a warp works on its own 64 elements.
      u32 next = apart > 1 ? apart / 2 : size;
      if (apart > 32 || next > 32)
        __syncthreads();
      else
        __syncwarp();
    }
  __syncthreads();
  for (u32 i = threadIdx.x; i < WIDTH; i += SHORT_THREADS) {
    u64 lane = first + i / a.width;
    u32 at = i % a.width;
    if (lane < a.lanes && at < a.length) a.to[lane * a.length + at] = element_of_item(item[i], a.flip);
  }
}

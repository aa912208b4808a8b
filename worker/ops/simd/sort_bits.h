// The functions of sort.h for one type T: NAME adds the number of its bits.
#define NAME3(a, b) a##b
#define NAME2(a, b) NAME3(a, b)
#define NAME(a) NAME2(a, BITS)
#define ALWAYS static inline __attribute__((always_inline))

// Compares v with a permutation of v. The lanes of the mask get the larger number, the others the
// smaller one.
ALWAYS __m512i NAME(exchange)(__m512i v, __m512i with, MASK larger) {
  return NAME2(_mm512_mask_max_epi, BITS)(OP(min)(v, with), larger, v, with);
}

// Exchanges between lanes whose indices differ in one bit, from the bit of distance down.
ALWAYS __m512i NAME(halve)(__m512i v, int distance) {
#if BITS == 32
  if (distance >= 8) v = NAME(exchange)(v, _mm512_shuffle_i64x2(v, v, 0x4e), 0xff00);
  if (distance >= 4) v = NAME(exchange)(v, _mm512_shuffle_i64x2(v, v, 0xb1), 0xf0f0);
  if (distance >= 2) v = NAME(exchange)(v, _mm512_shuffle_epi32(v, 0x4e), 0xcccc);
  return NAME(exchange)(v, _mm512_shuffle_epi32(v, 0xb1), 0xaaaa);
#else
  if (distance >= 4) v = NAME(exchange)(v, _mm512_shuffle_i64x2(v, v, 0x4e), 0xf0);
  if (distance >= 2) v = NAME(exchange)(v, _mm512_permutex_epi64(v, 0x4e), 0xcc);
  return NAME(exchange)(v, _mm512_permutex_epi64(v, 0xb1), 0xaa);
#endif
}

ALWAYS __m512i NAME(reverse)(__m512i v) { return NAME2(_mm512_permutexvar_epi, BITS)(REVERSED, v); }

// Sorts the lanes of a vector.
ALWAYS __m512i NAME(lanes)(__m512i v) {
#if BITS == 32
  v = NAME(exchange)(v, _mm512_shuffle_epi32(v, 0xb1), 0xaaaa);
  v = NAME(exchange)(v, _mm512_shuffle_epi32(v, 0x1b), 0xcccc);
  v = NAME(exchange)(v, _mm512_shuffle_epi32(v, 0xb1), 0xaaaa);
  v = NAME(exchange)(v, _mm512_permutexvar_epi32(_mm512_set_epi32(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), v), 0xf0f0);
  v = NAME(halve)(v, 2);
  v = NAME(exchange)(v, NAME(reverse)(v), 0xff00);
  return NAME(halve)(v, 4);
#else
  v = NAME(exchange)(v, _mm512_permutex_epi64(v, 0xb1), 0xaa);
  v = NAME(exchange)(v, _mm512_permutex_epi64(v, 0x1b), 0xcc);
  v = NAME(exchange)(v, _mm512_permutex_epi64(v, 0xb1), 0xaa);
  v = NAME(exchange)(v, NAME(reverse)(v), 0xf0);
  return NAME(halve)(v, 2);
#endif
}

ALWAYS void NAME(exchange_vectors)(__m512i *a, __m512i *b) {
  __m512i x = *a, y = *b;
  *a = OP(min)(x, y);
  *b = OP(max)(x, y);
}

// Sorts at most count vectors of elements. count is a constant, a power of two.
ALWAYS void NAME(network)(T *to, const T *from, int64_t n, const int count) {
  __m512i v[NETWORK_VECTORS];
  const __m512i most = NAME2(_mm512_set1_epi, BITS)(NAME2(NAME2(INT, BITS), _MAX));
  MASK masks[NETWORK_VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < count; i++) {
    int64_t left = n - i * LANES;
    masks[i] = left >= LANES ? (MASK)-1 : left <= 0 ? 0 : (MASK)((1u << left) - 1);
    v[i] = NAME(lanes)(NAME2(_mm512_mask_loadu_epi, BITS)(most, masks[i], from + i * LANES));
  }
#pragma GCC unroll 4
  for (int half = 1; half < count; half *= 2) {
#pragma GCC unroll 16
    for (int base = 0; base < count; base += 2 * half) {
#pragma GCC unroll 16
      for (int i = 0; i < half; i++) {
        __m512i y = NAME(reverse)(v[base + 2 * half - 1 - i]), x = v[base + i];
        v[base + i] = OP(min)(x, y);
        v[base + 2 * half - 1 - i] = OP(max)(x, y);
      }
    }
#pragma GCC unroll 4
    for (int distance = half / 2; distance > 0; distance /= 2)
#pragma GCC unroll 16
      for (int i = 0; i < count; i++)
        if (!(i & distance)) NAME(exchange_vectors)(&v[i], &v[i + distance]);
#pragma GCC unroll 16
    for (int i = 0; i < count; i++) v[i] = NAME(halve)(v[i], LANES / 2);
  }
#pragma GCC unroll 16
  for (int i = 0; i < count; i++) NAME2(_mm512_mask_storeu_epi, BITS)(to + i * LANES, masks[i], v[i]);
}

static __attribute__((noinline)) void NAME(small)(T *to, const T *from, int64_t n) {
  if (n <= LANES) NAME(network)(to, from, n, 1);
  else if (n <= 2 * LANES) NAME(network)(to, from, n, 2);
  else if (n <= 4 * LANES) NAME(network)(to, from, n, 4);
  else if (n <= 8 * LANES) NAME(network)(to, from, n, 8);
  else NAME(network)(to, from, n, NETWORK_VECTORS);
}

// Moves the elements of a that are at most the pivot to the beginning of a, and the others to the
// end of b. Both have n elements. Returns the number of small ones.
static int64_t NAME(split)(T *a, T *b, int64_t n, T pivot) {
  const __m512i p = NAME2(_mm512_set1_epi, BITS)(pivot);
  T *low = a, *high = b + n;
  int64_t i = 0;
  // Whole vectors are stored: what lies behind the small elements and before the large ones is
  // overwritten by the next vectors.
#pragma GCC unroll 2
  for (; i + LANES <= n; i += LANES) {
    __m512i v = _mm512_loadu_si512(a + i);
    MASK large = NAME2(NAME2(_mm512_cmpgt_epi, BITS), _mask)(v, p);
    int more = __builtin_popcount(large);
#if BITS == 64
    __m512i order = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)&orders[large]));
    v = _mm512_permutexvar_epi64(order, v);
    _mm512_storeu_si512(low, v);
    _mm512_storeu_si512(high - LANES, v);
#else
    // Half a vector at a time.
    int half = __builtin_popcount(large & 0xff);
    __m256i u = _mm512_castsi512_si256(v), w = _mm512_extracti64x4_epi64(v, 1);
    u = _mm256_permutevar8x32_epi32(u, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&orders[large & 0xff])));
    w = _mm256_permutevar8x32_epi32(w, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&orders[large >> 8])));
    _mm256_storeu_si256((__m256i *)low, u);
    _mm256_storeu_si256((__m256i *)(high - 8), u);
    _mm256_storeu_si256((__m256i *)(low + 8 - half), w);
    _mm256_storeu_si256((__m256i *)(high - half - 8), w);
#endif
    low += LANES - more;
    high -= more;
  }
  for (; i < n; i++) {
    T x = a[i];
    if (x > pivot) *--high = x;
    else *low++ = x;
  }
  return low - a;
}

// Returns the median of some elements, one of each of as many equal parts of the segment. Its place
// in the part changes with the seed.
static T NAME(pivot)(const T *from, int64_t n, uint64_t *seed) {
  T samples[PIVOT_SAMPLES];
  int many = n < FEW_BELOW ? FEW_SAMPLES : PIVOT_SAMPLES;
  int64_t part = n / many;
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  from += (*seed >> 32) * (uint64_t)part >> 32;
  for (int i = 0; i < many; i++) samples[i] = from[i * part];
  NAME(small)(samples, samples, many);
  return samples[many / 2 - 1];
}

static void NAME(sift)(T *a, int64_t root, int64_t n) {
  for (int64_t child; (child = 2 * root + 1) < n; root = child) {
    if (child + 1 < n && a[child] < a[child + 1]) child++;
    if (a[root] >= a[child]) return;
    T x = a[root];
    a[root] = a[child];
    a[child] = x;
  }
}

static void NAME(heapsort)(T *a, int64_t n) {
  for (int64_t i = n / 2 - 1; i >= 0; i--) NAME(sift)(a, i, n);
  for (int64_t i = n - 1; i > 0; i--) {
    T x = a[0];
    a[0] = a[i];
    a[i] = x;
    NAME(sift)(a, 0, i);
  }
}

// Parts the segment by a pivot: *s becomes the part with the small elements and *more that with the
// large ones, which is empty if they are in their place already.
static void NAME(pass)(struct simd_segment *s, struct simd_segment *more) {
  T *from = (T *)(uintptr_t)s->from, *other = (T *)(uintptr_t)s->other;
  const int64_t n = s->n;
  T pivot = NAME(pivot)(from, n, &s->seed);
  int64_t less = NAME(split)(from, other, n, pivot);
  s->depth--;
  s->n = less;
  *more = *s;
  more->from = (uint64_t)(uintptr_t)(other + less);
  more->other = (uint64_t)(uintptr_t)(from + less);
  more->n = n - less;
  more->across = !s->across;
  if (less == n) {
    // The pivot is the largest element. Those equal to it come last and need no more passes.
    less = pivot == NAME2(NAME2(INT, BITS), _MIN) ? 0 : NAME(split)(from, other, n, pivot - 1);
    s->n = less;
    T *place = s->across ? other : from;
    for (int64_t i = less; i < n; i++) place[i] = pivot;
  }
}

static void NAME(quicksort)(struct simd_segment s) {
  while (s.n > NETWORK_VECTORS * LANES) {
    if (s.depth <= 0) {
      T *from = (T *)(uintptr_t)s.from;
      NAME(heapsort)(from, s.n);
      if (s.across) memcpy((T *)(uintptr_t)s.other, from, s.n * sizeof(T));
      return;
    }
    struct simd_segment more;
    NAME(pass)(&s, &more);
    if (more.n > 0) NAME(quicksort)(more);
  }
  NAME(small)((T *)(uintptr_t)(s.across ? s.other : s.from), (T *)(uintptr_t)s.from, s.n);
}

// Copies the first of each run of equal keys to to, unless that is NULL. Returns their number. The
// key before the first one counts as different.
static int64_t NAME(distinct)(int64_t n, T *to, const T *keys) {
  if (n == 0) return 0;
  int64_t many = 1, i = 1;
  if (to) to[0] = keys[0];
  for (; i + LANES <= n; i += LANES) {
    __m512i v = _mm512_loadu_si512(keys + i);
    MASK differ = NAME2(NAME2(_mm512_cmpneq_epi, BITS), _mask)(v, _mm512_loadu_si512(keys + i - 1));
    if (to) NAME2(_mm512_mask_storeu_epi, BITS)(to + many, (MASK)((1u << __builtin_popcount(differ)) - 1), NAME2(_mm512_maskz_compress_epi, BITS)(differ, v));
    many += __builtin_popcount(differ);
  }
  for (; i < n; i++)
    if (keys[i] != keys[i - 1]) {
      if (to) to[many] = keys[i];
      many++;
    }
  return many;
}

#undef NAME
#undef NAME2
#undef NAME3
#undef ALWAYS

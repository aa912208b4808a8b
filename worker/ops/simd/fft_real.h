// The functions of fft.h in the precision REAL.
#define FFT_LANES (VECTOR_BYTES / (int)sizeof(REAL))
typedef REAL FFT_NAME(vector) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
#define V FFT_NAME(vector)

// A complex number of each lane.
struct FFT_NAME(complex) {
  V re, im;
};
#define C struct FFT_NAME(complex)

FFT_INLINE C FFT_NAME(turned)(C a, REAL re, REAL im) { return (C){a.re * re - a.im * im, a.re * im + a.im * re}; }

FFT_INLINE C FFT_NAME(plus)(C a, C b) { return (C){a.re + b.re, a.im + b.im}; }
FFT_INLINE C FFT_NAME(minus)(C a, C b) { return (C){a.re - b.re, a.im - b.im}; }
// Returns a - ib.
FFT_INLINE C FFT_NAME(minus_i)(C a, C b) { return (C){a.re + b.im, a.im - b.re}; }
// Returns a + ib.
FFT_INLINE C FFT_NAME(plus_i)(C a, C b) { return (C){a.re - b.im, a.im + b.re}; }
#define PLUS FFT_NAME(plus)
#define MINUS FFT_NAME(minus)
#define PLUS_I FFT_NAME(plus_i)
#define MINUS_I FFT_NAME(minus_i)

// Transforms r numbers: 2, 4, or an odd number of them, for which roots has the cosines and then
// the sines of 2*pi*k/r.
FFT_INLINE void FFT_NAME(butterfly)(C *a, const int r, const REAL *roots) {
  if (r == 2) {
    C x = a[0], y = a[1];
    a[0] = PLUS(x, y);
    a[1] = MINUS(x, y);
    return;
  }
  if (r == 4) {
    C s = PLUS(a[0], a[2]), t = PLUS(a[1], a[3]), u = MINUS(a[0], a[2]), v = MINUS(a[1], a[3]);
    a[0] = PLUS(s, t);
    a[1] = MINUS_I(u, v);
    a[2] = MINUS(s, t);
    a[3] = PLUS_I(u, v);
    return;
  }
  const int half = r / 2;
  C sum[half + 1], difference[half + 1], first = a[0];
#pragma GCC unroll 8
  for (int k = 1; k <= half; k++) {
    sum[k] = PLUS(a[k], a[r - k]);
    difference[k] = MINUS(a[k], a[r - k]);
    a[0] = PLUS(a[0], sum[k]);
  }
#pragma GCC unroll 8
  for (int p = 1; p <= half; p++) {
    C s = first, d = {};
#pragma GCC unroll 8
    for (int k = 1; k <= half; k++) {
      const REAL c = roots[k * p % r], i = roots[r + k * p % r];
      s = (C){s.re + sum[k].re * c, s.im + sum[k].im * c};
      d = (C){d.re + difference[k].re * i, d.im + difference[k].im * i};
    }
    a[p] = MINUS_I(s, d);
    a[r - p] = PLUS_I(s, d);
  }
}

// One pass of Stockham's algorithm (Cochran et al., "What is the fast Fourier transform?", 1967):
// the numbers are in the natural order before the first pass and after the last one. x has `run`
// transforms of length r*m, interleaved.
FFT_INLINE void FFT_NAME(pass)(const C *x, C *y, const REAL *roots, const REAL *twiddles, int64_t run, int64_t m, const int r) {
  for (int64_t j = 0; j < m; j++) {
    const REAL *w = twiddles + 2 * (r - 1) * j;
    for (int64_t q = 0; q < run; q++) {
      C a[r];
#pragma GCC unroll 16
      for (int k = 0; k < r; k++) a[k] = x[q + run * (j + m * k)];
      FFT_NAME(butterfly)(a, r, roots);
      C *to = y + q + run * r * j;
      to[0] = a[0];
      if (m == 1) {
#pragma GCC unroll 16
        for (int k = 1; k < r; k++) to[run * k] = a[k];
      } else {
#pragma GCC unroll 16
        for (int k = 1; k < r; k++) to[run * k] = FFT_NAME(turned)(a[k], w[2 * k - 2], w[2 * k - 1]);
      }
    }
  }
}

#define PASS(r)                                                                                    \
  static __attribute__((noinline)) void FFT_NAME(pass##r)(const C *x, C *y, const REAL *t,         \
                                                          int64_t run, int64_t m) {                \
    FFT_NAME(pass)(x, y, t, t + (r % 2 ? 2 * r : 0), run, m, r);                                    \
  }
PASS(2)
PASS(3)
PASS(4)
PASS(5)
PASS(7)
PASS(11)
PASS(13)

// Transforms x, with y as working memory. The table has, for each radix, the roots of the butterfly
// if the radix is odd, and then the twiddle factors. Returns the buffer that has the result.
static void *FFT_NAME(fft_lanes)(void *x, void *y, const int32_t *radices, const void *table, int64_t n) {
  const REAL *t = table;
  int64_t run = 1, length = n;
  for (; length > 1; radices++) {
    const int r = *radices;
    int64_t m = length / r;
    switch (r) {
    case 2: FFT_NAME(pass2)(x, y, t, run, m); break;
    case 3: FFT_NAME(pass3)(x, y, t, run, m); break;
    case 4: FFT_NAME(pass4)(x, y, t, run, m); break;
    case 5: FFT_NAME(pass5)(x, y, t, run, m); break;
    case 7: FFT_NAME(pass7)(x, y, t, run, m); break;
    case 11: FFT_NAME(pass11)(x, y, t, run, m); break;
    default: FFT_NAME(pass13)(x, y, t, run, m);
    }
    t += (r % 2 ? 2 * r : 0) + (m > 1 ? 2 * (r - 1) * m : 0);
    run *= r;
    length = m;
    void *z = x;
    x = y;
    y = z;
  }
  return x;
}

// Copies numbers to lanes: number k of lane l has its real part at from + k*step + l*lane, and its
// imaginary part `part` bytes behind; the imaginary part is zero if part is zero. Further lanes and
// numbers are zero. swap exchanges the parts: a transform between two exchanges is the inverse one.
static void FFT_NAME(fft_gather)(void *to, const void *from, const struct simd_lines *g, int64_t n) {
  C *c = to;
  const char *p = from;
  int64_t k = 0;
  for (; k < g->count; k++, p += g->step) {
    C a = {};
    if (g->lanes == FFT_LANES && g->lane == 2 * (int)sizeof(REAL) && g->part == sizeof(REAL)) {
      REAL pairs[2 * FFT_LANES];
      __builtin_memcpy(pairs, p, sizeof pairs);
#pragma GCC unroll 16
      for (int l = 0; l < FFT_LANES; l++) {
        a.re[l] = pairs[2 * l];
        a.im[l] = pairs[2 * l + 1];
      }
    } else if (g->part) {
      for (int l = 0; l < g->lanes; l++) {
        a.re[l] = *(const REAL *)(p + l * g->lane);
        a.im[l] = *(const REAL *)(p + l * g->lane + g->part);
      }
    } else {
      for (int l = 0; l < g->lanes; l++) a.re[l] = *(const REAL *)(p + l * g->lane);
    }
    c[k] = g->swap ? (C){a.im, a.re} : a;
  }
  for (; k < n; k++) c[k] = (C){};
}

// Copies numbers from lanes, times scale; the reverse of fft_gather. If part is zero, only the real
// parts are copied.
static void FFT_NAME(fft_scatter)(void *to, const void *from, const struct simd_lines *g, double factor) {
  const C *c = from;
  const REAL scale = (REAL)factor;
  char *p = to;
  for (int64_t k = 0; k < g->count; k++, p += g->step) {
    C a = {c[k].re * scale, c[k].im * scale};
    if (g->swap) a = (C){a.im, a.re};
    if (g->lanes == FFT_LANES && g->lane == 2 * (int)sizeof(REAL) && g->part == sizeof(REAL)) {
      REAL pairs[2 * FFT_LANES];
#pragma GCC unroll 16
      for (int l = 0; l < FFT_LANES; l++) {
        pairs[2 * l] = a.re[l];
        pairs[2 * l + 1] = a.im[l];
      }
      __builtin_memcpy(p, pairs, sizeof pairs);
    } else if (g->part) {
      for (int l = 0; l < g->lanes; l++) {
        *(REAL *)(p + l * g->lane) = a.re[l];
        *(REAL *)(p + l * g->lane + g->part) = a.im[l];
      }
    } else {
      for (int l = 0; l < g->lanes; l++) *(REAL *)(p + l * g->lane) = a.re[l];
    }
  }
}

// Multiplies number k of lane l by two factors: number k of coarse, and number k of fine in lane l.
static void FFT_NAME(fft_turn)(void *x, const void *coarse, const void *fine, int64_t n) {
  C *c = x;
  const REAL *w = coarse;
  const C *f = fine;
  for (int64_t k = 0; k < n; k++) {
    C t = FFT_NAME(turned)(f[k], w[2 * k], w[2 * k + 1]);
    c[k] = (C){c[k].re * t.re - c[k].im * t.im, c[k].re * t.im + c[k].im * t.re};
  }
}

// Multiplies complex numbers, in one lane: to = a*b, or b times the conjugate of a.
static void FFT_NAME(fft_multiply)(void *to, const void *a, const void *b, int64_t n, int conjugate) {
  REAL *t = to;
  const REAL *x = a, *y = b;
  const REAL sign = conjugate ? -1 : 1;
  EACH(k, n) {
    REAL re = x[2 * k], im = x[2 * k + 1] * sign;
    REAL c = y[2 * k], s = y[2 * k + 1];
    t[2 * k] = re * c - im * s;
    t[2 * k + 1] = re * s + im * c;
  }
}

// The transform of 2h real numbers from that of h complex numbers, each made of two of them. x has
// h numbers in a number of lanes, and room for one more. roots has exp(-pi*i*k/h) for k to h/2.
// fft_fold is the inverse, without a factor of 1/2.
#define FOLDING(name, TYPE, body)                                                                  \
  FFT_INLINE void FFT_NAME(name)(TYPE *x, const REAL *roots, int64_t h, int64_t lanes) {            \
    for (int64_t k = 0; 2 * k <= h; k++)                                                           \
      for (int64_t l = 0; l < lanes; l++) {                                                        \
        TYPE *a = x + 2 * k * lanes + l, *b = x + 2 * (h - k) * lanes + l;                         \
        const REAL c = roots[2 * k], s = roots[2 * k + 1];                                         \
        body                                                                                       \
      }                                                                                            \
  }
#define UNFOLDED(TYPE)                                                                               \
  const TYPE ar = a[0], ai = a[lanes], br = k ? b[0] : ar, bi = k ? b[lanes] : ai;                  \
  const TYPE er = (ar + br) * (REAL)0.5, ei = (ai - bi) * (REAL)0.5;                               \
  const TYPE or = (ai + bi) * (REAL)0.5, oi = (br - ar) * (REAL)0.5;                               \
  const TYPE tr = or * c - oi * s, ti = or * s + oi * c;                                           \
  b[0] = er - tr, b[lanes] = ti - ei;                                                              \
  a[0] = er + tr, a[lanes] = ei + ti;
#define FOLDED(TYPE)                                                                                 \
  const TYPE ar = a[0], ai = a[lanes], br = b[0], bi = b[lanes];                                   \
  const TYPE er = ar + br, ei = ai - bi, dr = ar - br, di = ai + bi;                               \
  const TYPE or = dr * c + di * s, oi = di * c - dr * s;                                           \
  b[0] = er + oi, b[lanes] = or - ei;                                                              \
  a[0] = er - oi, a[lanes] = ei + or;
FOLDING(unfold_one, REAL, UNFOLDED(REAL))
FOLDING(unfold_all, V, UNFOLDED(V))
FOLDING(fold_one, REAL, FOLDED(REAL))
FOLDING(fold_all, V, FOLDED(V))
#undef FOLDING
#undef UNFOLDED
#undef FOLDED

static void FFT_NAME(fft_unfold)(void *x, const void *roots, int64_t h, int single) {
  if (single) FFT_NAME(unfold_one)(x, roots, h, 1);
  else FFT_NAME(unfold_all)(x, roots, h, 1);
}

static void FFT_NAME(fft_fold)(void *x, const void *roots, int64_t h, int single) {
  if (single) FFT_NAME(fold_one)(x, roots, h, 1);
  else FFT_NAME(fold_all)(x, roots, h, 1);
}

#undef PASS
#undef PLUS
#undef MINUS
#undef PLUS_I
#undef MINUS_I
#undef FFT_LANES
#undef V
#undef C

// Powers of doubles, eight at once, for AVX-512: x^y = 2^(y log2 x). The logarithm is a sum of two
// doubles, so that the result is wrong by at most about one unit in the last place.
//
// x = 2^k z, and z lies in one of 16 intervals, of which one has 1 inside. Each has a factor near
// 1/z whose few bits make r = z*factor - 1 exact, with |r| < 0.035. So
// log2 x = k - log2 factor + log2(1+r). 2^(j/16) comes from a table as well.

// The factors, and minus their logarithms: the first part is a multiple of 2^-40, so that adding k
// to it is exact.
static const f64 power_factor[16] = {
    0x1.48p+0, 0x1.38p+0, 0x1.3p+0, 0x1.28p+0, 0x1.18p+0, 0x1.1p+0, 0x1.08p+0, 0x1p+0,
    0x1.ep-1, 0x1.c8p-1, 0x1.bp-1, 0x1.98p-1, 0x1.88p-1, 0x1.7p-1, 0x1.6p-1, 0x1.58p-1,
};
static const f64 power_log[16] = {
    -0x1.6e221cd9dp-2, -0x1.24407ab0ep-2, -0x1.fbc16b9028p-3, -0x1.acf5e2db5p-3,
    -0x1.08c588cda8p-3, -0x1.663f6fac9p-4, -0x1.6bad3758ep-5, 0x0p+0,
    0x1.7d60496dp-4, 0x1.563dc29ff8p-3, 0x1.f5fd8a906p-3, 0x1.4f6fbb2cecp-2,
    0x1.8a8980abfcp-2, 0x1.e7df5fe538p-2, 0x1.14c560fe68p-1, 0x1.25c0a0463cp-1,
};
static const f64 power_log_rest[16] = {
    -0x1.9bcaf1aa4168ap-43, -0x1.ce60916e52e91p-44, 0x1.7f5dc57266758p-43, 0x1.36c101ee1344p-43,
    0x1.871a7610e40bdp-45, -0x1.3167ccc538261p-44, -0x1.fb0e626c0de13p-42, 0x0p+0,
    -0x1.12ce6312ebb82p-42, 0x1.6590643906f2ap-42, 0x1.f1a4847f7b278p-42, 0x1.661e393a16b95p-44,
    -0x1.66cccab240e9p-45, 0x1.5669df6a2b592p-43, 0x1.5f101c141e67p-42, -0x1.50520a377c7ecp-45,
};
// 2^(j/16), and what its rounding leaves out, in proportion to it.
static const f64 power_root[16] = {
    0x1p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f09p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0,
};
static const f64 power_root_rest[16] = {
    0x0p+0, 0x1.79aa65d837b6dp-54, -0x1.01b15eaa59348p-55, 0x1.68efde3a8a894p-54,
    0x1.34d754db0abb6p-55, 0x1.59f48a72a4c6dp-55, 0x1.690cebb7aafbp-56, 0x1.063e1e21c5409p-54,
    -0x1.3b3efbf5e2228p-54, -0x1.b32dcb94da51dp-56, 0x1.db72fc1f0eab4p-55, 0x1.1affc2b91ce27p-56,
    0x1.c1a7792cb3387p-55, 0x1.36eae30af0cb3p-56, 0x1.4a385a63d07a7p-56, -0x1.ff7128fd391fp-55,
};

#define ALL(x) _mm512_set1_pd(x)
#define FMA(a, b, c) _mm512_fmadd_pd(a, b, c)

// The element of a table of 16 by the low 4 bits of each index.
static inline __m512d looked_up(const f64 *table, __m512i index) {
  return _mm512_permutex2var_pd(_mm512_loadu_pd(table), index, _mm512_loadu_pd(table + 8));
}

// The vector function computes the special cases: x that is not a positive normal number, NaN, and
// powers close to the limits of the type. Such an element has the same result beside any others.
static inline v64 powers(v64 (*special)(v64, v64), v64 xs, v64 ys) {
  const __m512d x = (__m512d)xs, y = (__m512d)ys;
  // The intervals are those of the 4 highest bits of x's fraction, shifted: they begin at 49/64.
  const __m512i bits = _mm512_castpd_si512(x), offset = _mm512_sub_epi64(bits, _mm512_set1_epi64(0x3fe8800000000000));
  const __m512i index = _mm512_srli_epi64(offset, 48), exponent = _mm512_srai_epi64(offset, 52);
  const __m512d z = _mm512_castsi512_pd(_mm512_sub_epi64(bits, _mm512_slli_epi64(exponent, 52)));
  const __m512d r = FMA(z, looked_up(power_factor, index), ALL(-1));

  // log2(1+r) = L r + r^2 t, where L = 1/ln 2 and t = -L/2 + q. Each name with _rest is what the
  // rounding of that value leaves out.
  const __m512d r2 = r * r, r4 = r2 * r2;
  const __m512d q12 = FMA(FMA(ALL(-0x1.ec709dc6b8d2dp-3), r, ALL(0x1.2776c50ef9b7bp-2)), r2, FMA(ALL(-0x1.71547652b827p-2), r, ALL(0x1.ec709dc3a03fdp-2)));
  const __m512d q34 = FMA(FMA(ALL(-0x1.281cbc97e7299p-3), r, ALL(0x1.484af17496e0ep-3)), r2, FMA(ALL(-0x1.715451122bbccp-3), r, ALL(0x1.a61762aa898d8p-3)));
  const __m512d q = r * FMA(FMA(ALL(0x1.0d33b8844b7edp-3), r4, q34), r4, q12);
  const __m512d L = ALL(0x1.71547652b82fep+0), L_rest = ALL(0x1.777d0ffda0d24p-56);
  const __m512d p = L * r, p_rest = FMA(L_rest, r, FMA(L, r, -p));
  const __m512d half = L * ALL(-0.5), t = half + q, t_rest = (half - t) + q + L_rest * ALL(-0.5);
  const __m512d s = r2 * t, s_rest = FMA(r2, t_rest, FMA(FMA(r, r, -r2), t, FMA(r2, t, -s)));
  const __m512d whole = _mm512_cvtepi64_pd(exponent) + looked_up(power_log, index);
  const __m512d u = whole + p, u_rest = (whole - u) + p, log = u + s, v_rest = (u - log) + s;
  const __m512d log_rest = (v_rest + u_rest) + (p_rest + (s_rest + looked_up(power_log_rest, index)));

  // 2^(w + w_rest) = 2^n 2^(j/16) 2^f, where n + j/16 is w rounded to a multiple of 1/16.
  const __m512d w = y * log, w_rest = FMA(y, log_rest, FMA(y, log, -w));
  const __m512d large = ALL(0x1.8p48), shifted = w + large, rounded = shifted - large;
  const __m512d f = (w - rounded) + w_rest, f2 = f * f;
  const __m512i j = _mm512_castpd_si512(shifted);
  const __m512d e12 = FMA(FMA(ALL(0x1.3b2ab6fb0913ep-7), f, ALL(0x1.c6b08d704a0c1p-5)), f2, FMA(ALL(0x1.ebfbdff82c594p-3), f, ALL(0x1.62e42fefa39efp-1)));
  const __m512d e34 = FMA(ALL(0x1.ffcd7b9d97376p-17), f2, FMA(ALL(0x1.430a4a00117cdp-13), f, ALL(0x1.5d87fe784670bp-10)));
  const __m512d grown = FMA(f, FMA(e34, f2 * f2, e12), looked_up(power_root_rest, j)), root = looked_up(power_root, j);
  const v64 result = (v64)_mm512_scalef_pd(FMA(root, grown, root), rounded);

  const __mmask8 usual = _mm512_cmp_pd_mask(x, ALL(0x1p-1022), _CMP_GE_OQ) & _mm512_cmp_pd_mask(x, ALL(0x1.fffffffffffffp1023), _CMP_LE_OQ) &
                         _mm512_cmp_pd_mask(_mm512_abs_pd(w), ALL(1000), _CMP_LT_OQ);
  if (__builtin_expect(usual == 0xff, 1)) return result;
  const __m512d one = ALL(1);
  const v64 others = special((v64)_mm512_mask_mov_pd(x, usual, one), (v64)_mm512_mask_mov_pd(y, usual, one));
  return (v64)_mm512_mask_mov_pd((__m512d)others, usual, (__m512d)result);
}

#undef FMA
#undef ALL

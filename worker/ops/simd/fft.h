// Discrete Fourier transforms of several lanes at once. A buffer of n complex numbers in FFT_LANES
// lanes has, for each number, the real parts of all lanes and then the imaginary parts. Each step
// is the same for all lanes, so every loop is one of vectors, for any length.
#include "simd_fft.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define FFT_INLINE static inline __attribute__((always_inline))

#define REAL double
#define FFT_NAME(name) SIMD_JOIN(name##_64, SET)
#include "fft_real.h"
#undef REAL
#undef FFT_NAME

#define REAL float
#define FFT_NAME(name) SIMD_JOIN(name##_32, SET)
#include "fft_real.h"
#undef REAL
#undef FFT_NAME

#define FFT_TABLE(bits)                                                                            \
  {SIMD_JOIN(fft_lanes_##bits, SET),    SIMD_JOIN(fft_gather_##bits, SET), SIMD_JOIN(fft_scatter_##bits, SET), \
   SIMD_JOIN(fft_turn_##bits, SET),     SIMD_JOIN(fft_multiply_##bits, SET), SIMD_JOIN(fft_unfold_##bits, SET), \
   SIMD_JOIN(fft_fold_##bits, SET),     VECTOR_BYTES / (bits / 8)}
const struct simd_fft IN_SET(simd_fft)[2] = {FFT_TABLE(32), FFT_TABLE(64)};

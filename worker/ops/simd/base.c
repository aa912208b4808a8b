//go:build cgo && linux

// The instructions that every processor of the architecture has: SSE2 or NEON.
#define SET base
#define SET_NUMBER SIMD_BASE
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define HAS_ROUNDING
#define HAS_FMA
#endif
#include "set.h"

#include "map.h"
#include "random.h"

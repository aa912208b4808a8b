//go:build cgo && linux

// The instructions that every processor of the architecture has: SSE2 or NEON.
#define SET base
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define VECTOR_NAME32 "_ZGVnN4"
#define VECTOR_NAME64 "_ZGVnN2"
#define HAS_ROUNDING
#define HAS_FMA
#else
#define VECTOR_NAME32 "_ZGVbN4"
#define VECTOR_NAME64 "_ZGVbN2"
#endif
#include "set.h"

#include "map.h"
#include "run.h"
#include "random.h"
#include "fold.h"
#include "fft.h"

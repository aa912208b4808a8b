//go:build cgo && linux

#define _GNU_SOURCE
#include "call.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

uint64_t msl_open(const char *path, int global, char *err, int room) {
  void *h = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!h) snprintf(err, room, "%s", dlerror());
  return (uint64_t)(uintptr_t)h;
}

uint64_t msl_symbol(uint64_t library, const char *name) { return (uint64_t)(uintptr_t)dlsym((void *)(uintptr_t)library, name); }

void msl_where(uint64_t symbol, char *path, int room) {
  Dl_info info;
  path[0] = 0;
  if (dladdr((void *)(uintptr_t)symbol, &info) && info.dli_fname) snprintf(path, room, "%s", info.dli_fname);
}

void msl_text(uint64_t address, char *text, int room) { snprintf(text, room, "%s", address ? (const char *)(uintptr_t)address : ""); }

#define X uint64_t
typedef X (*any_function)(X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X);
#undef X

uint64_t msl_call(uint64_t function, const uint64_t *a) {
  return ((any_function)(uintptr_t)function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
                                             a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25],
                                             a[26], a[27], a[28], a[29], a[30], a[31]);
}

int64_t msl_call_fortran(uint64_t function, uint64_t *arguments, uint32_t scalars, const int64_t *steps, int64_t count, int info) {
  uint64_t values[MSL_ARGUMENTS], addresses[MSL_ARGUMENTS];
  memcpy(values, arguments, sizeof values);
  for (int i = 0; i < MSL_ARGUMENTS; i++) addresses[i] = scalars >> i & 1 ? (uint64_t)(uintptr_t)&values[i] : values[i];
  int64_t done = 0;
  for (; done < count; done++) {
    msl_call(function, addresses);
    if (info >= 0 && (int32_t)values[info] != 0) break;
    for (int i = 0; i < MSL_ARGUMENTS; i++) addresses[i] += steps[i];
  }
  for (int i = 0; i < MSL_ARGUMENTS; i++)
    if (scalars >> i & 1) arguments[i] = values[i];
  return done;
}

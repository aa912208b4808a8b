// Calls into libraries that are loaded at run time and have C interfaces of
// integers and pointers only: NVRTC, cuBLAS, cuSOLVER.
#ifndef MILLRACE_DEVICE_CUDA_SHIM_H
#define MILLRACE_DEVICE_CUDA_SHIM_H

#include <stdint.h>

enum { MRK_ARGUMENTS = 32 };

// Returns a handle, or 0 with the cause in err.
uint64_t mrk_open(const char *path, char *err, int room);
uint64_t mrk_symbol(uint64_t library, const char *name);
// The file that a symbol lies in.
void mrk_where(uint64_t symbol, char *path, int room);
// Calls a function that takes integers and pointers, at most MRK_ARGUMENTS, and
// returns an int. Surplus arguments do no harm in the calling conventions of
// Linux on x86-64 and arm64, where each takes a register or 8 bytes of stack.
int mrk_call(uint64_t function, const uint64_t *arguments);

#endif

// Calls into libraries that are loaded at run time. Their C interfaces have only integers and
// pointers: NVRTC, cuBLAS, cuSOLVER.
#ifndef MILLRACE_DEVICE_CUDA_SHIM_H
#define MILLRACE_DEVICE_CUDA_SHIM_H

#include <stdint.h>

enum { MRK_ARGUMENTS = 32 };

// Opens a library. Returns a handle, or 0 with the cause in err, which has space for room bytes.
uint64_t mrk_open(const char *path, char *err, int room);
// Returns the address of a symbol, or 0 if the library does not have it.
uint64_t mrk_symbol(uint64_t library, const char *name);
// Writes the path of the file that contains a symbol, or "" if it is not known.
void mrk_where(uint64_t symbol, char *path, int room);
// Calls a function that takes at most MRK_ARGUMENTS integers and pointers, and returns an int.
// arguments always has MRK_ARGUMENTS elements. Surplus arguments do no harm in the calling
// conventions of Linux on x86-64 and arm64: each takes a register or 8 bytes of stack.
int mrk_call(uint64_t function, const uint64_t *arguments);

#endif

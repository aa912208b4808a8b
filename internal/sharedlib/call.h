// Calls into libraries that are loaded at run time. Their functions take integers and pointers.
#ifndef MILLRACE_SHAREDLIB_CALL_H
#define MILLRACE_SHAREDLIB_CALL_H

#include <stdint.h>

enum { MSL_ARGUMENTS = 32 };

// Opens a library; if global is set, its symbols serve the libraries that are opened later. Returns
// a handle, or 0 with the cause in err, which has space for room bytes.
uint64_t msl_open(const char *path, int global, char *err, int room);
// Returns the address of a symbol, or 0 if the library does not have it.
uint64_t msl_symbol(uint64_t library, const char *name);
// Writes the path of the file that contains a symbol, or "" if it is not known.
void msl_where(uint64_t symbol, char *path, int room);
// Copies the text at an address, and cuts it off after room - 1 bytes. The address 0 has no text.
void msl_text(uint64_t address, char *text, int room);
// Calls a function that takes at most MSL_ARGUMENTS integers and pointers, and returns an integer
// or a pointer. arguments always has MSL_ARGUMENTS elements. Surplus arguments do no harm in the
// calling conventions of Linux on x86-64 and arm64: each takes a register or 8 bytes of stack.
uint64_t msl_call(uint64_t function, const uint64_t *arguments);
// Calls a Fortran subroutine, which takes the addresses of all its arguments, count times. Bit i of
// scalars is set if arguments[i] is a value of at most 8 bytes in the lowest bytes: the subroutine
// gets the address of a copy, which the next call gets, too, and its last value is stored in
// arguments[i]. Other arguments are passed as they are. After each call they grow by steps[i],
// which is 0 for a scalar. Calls end early when one has set argument info to another value than 0;
// with -1 there is no such argument. Returns the number of calls before that.
int64_t msl_call_fortran(uint64_t function, uint64_t *arguments, uint32_t scalars, const int64_t *steps, int64_t count, int info);

#endif

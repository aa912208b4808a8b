//go:build cgo && linux

// Libraries of linear algebra read their numbers of threads from the environment when they are
// loaded, and start that many threads, or one per processor. This file gives them an environment of
// their own. It does so before main, because a change of the environment is not safe while another
// thread reads it. The program itself and its child processes see the original environment: Go
// reads it from the array that the kernel has passed, which stays as it is.

#include <stdlib.h>
#include <string.h>

extern char **environ;

// forced replaces what the environment says. A library begins with one thread; each call then says
// how many threads it may use.
static char *const forced[] = {
    "OPENBLAS_NUM_THREADS=1",
    "OMP_NUM_THREADS=1",
    "MKL_NUM_THREADS=1",
    "MKL_DYNAMIC=FALSE",
};

// suggested holds where the environment says nothing. OpenBLAS's threads wait in a busy loop for
// 2^20 cycles, some 0.4 ms, before they sleep; by default 2^26 cycles. Those of Intel's OpenMP,
// which MKL uses, wait for 1 ms; by default 200 ms.
static char *const suggested[] = {
    "OPENBLAS_THREAD_TIMEOUT=20",
    "KMP_BLOCKTIME=1",
};

enum { FORCED = sizeof forced / sizeof *forced, SUGGESTED = sizeof suggested / sizeof *suggested };

static int same_name(const char *a, const char *b) {
  size_t n = strcspn(a, "=");
  return strncmp(a, b, n) == 0 && b[n] == '=';
}

static int names(char *const *list, int count, const char *entry) {
  for (int i = 0; i < count; i++)
    if (same_name(list[i], entry)) return 1;
  return 0;
}

__attribute__((constructor)) static void set_environment(void) {
  int count = 0;
  while (environ && environ[count]) count++;
  char **all = malloc((count + FORCED + SUGGESTED + 1) * sizeof *all);
  if (!all) return;
  int n = 0;
  for (int i = 0; i < count; i++)
    if (!names(forced, FORCED, environ[i])) all[n++] = environ[i];
  int own = n;
  for (int i = 0; i < FORCED; i++) all[n++] = forced[i];
  for (int i = 0; i < SUGGESTED; i++)
    if (!names(all, own, suggested[i])) all[n++] = suggested[i];
  all[n] = NULL;
  environ = all;
}

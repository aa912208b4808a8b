// Stand-ins for cuBLAS and cuSOLVER, for tests without a GPU. Their functions compute nothing and
// succeed. They note their names, which fake_calls returns.
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char notes[1 << 16];

static int note(const char *name) {
  pthread_mutex_lock(&mutex);
  size_t used = strlen(notes);
  if (used + strlen(name) + 2 < sizeof notes) {
    strcat(notes, name);
    strcat(notes, " ");
  }
  pthread_mutex_unlock(&mutex);
  return 0;
}

// Copies the names that were noted since the last call, a space behind each.
int fake_calls(char *to, size_t size) {
  pthread_mutex_lock(&mutex);
  strncpy(to, notes, size - 1);
  to[size - 1] = 0;
  notes[0] = 0;
  pthread_mutex_unlock(&mutex);
  return 0;
}

#define QUIET(name) \
  int name(void) { return 0; }
#define NOTED(name) \
  int name(void) { return note(#name); }
#define OF_FOUR_TYPES(before, after) NOTED(before##S##after) NOTED(before##D##after) NOTED(before##C##after) NOTED(before##Z##after)

int cublasCreate_v2(uint64_t *handle) {
  *handle = 1;
  return 0;
}
QUIET(cublasDestroy_v2)
QUIET(cublasSetStream_v2)
QUIET(cublasSetWorkspace_v2)
NOTED(cublasGemmEx_64)
NOTED(cublasGemmStridedBatchedEx_64)
NOTED(cublasDtrsm_v2_64)
OF_FOUR_TYPES(cublas, getrfBatched)
OF_FOUR_TYPES(cublas, getrsBatched)

int cusolverDnCreate(uint64_t *handle) {
  *handle = 1;
  return 0;
}
int cusolverDnCreateParams(uint64_t *params) {
  *params = 1;
  return 0;
}
QUIET(cusolverDnDestroy)
QUIET(cusolverDnDestroyParams)
QUIET(cusolverDnSetStream)
NOTED(cusolverDnDpotrf)
NOTED(cusolverDnDgeqrf)
NOTED(cusolverDnDorgqr)
NOTED(cusolverDnDgesvd)
NOTED(cusolverDnXgesvdp)
NOTED(cusolverDnXpotrf)
NOTED(cusolverDnXgetrf)
NOTED(cusolverDnXgetrs)
OF_FOUR_TYPES(cusolverDn, potrfBatched)

typedef uint64_t any;  // an argument that does not matter here

int cusolverDnDpotrf_bufferSize(any handle, int uplo, int n, any a, int lda, int *size) {
  (void)handle, (void)uplo, (void)a, (void)lda;
  return *size = 32 * n, 0;
}
int cusolverDnDgeqrf_bufferSize(any handle, int m, int n, any a, int lda, int *size) {
  (void)handle, (void)m, (void)a, (void)lda;
  return *size = 32 * n, 0;
}
int cusolverDnDorgqr_bufferSize(any handle, int m, int n, int k, any a, int lda, any tau, int *size) {
  (void)handle, (void)m, (void)k, (void)a, (void)lda, (void)tau;
  return *size = 32 * n, 0;
}
int cusolverDnDgesvd_bufferSize(any handle, int m, int n, int *size) {
  (void)handle;
  return *size = 32 * (m + n), 0;
}
int cusolverDnXgesvdp_bufferSize(any handle, any params, int jobz, int economy, int64_t m, int64_t n, int a_type, any a, int64_t lda, int s_type,
                                 any s, int u_type, any u, int64_t ldu, int v_type, any v, int64_t ldv, int compute, size_t *device, size_t *host) {
  (void)handle, (void)params, (void)jobz, (void)economy, (void)a_type, (void)a, (void)lda, (void)s_type, (void)s, (void)u_type, (void)u, (void)ldu;
  (void)v_type, (void)v, (void)ldv, (void)compute;
  return *device = (size_t)(32 * (m + n) + 1), *host = 100, 0;
}
int cusolverDnXpotrf_bufferSize(any handle, any params, int uplo, int64_t n, int type, any a, int64_t lda, int compute, size_t *device, size_t *host) {
  (void)handle, (void)params, (void)uplo, (void)type, (void)a, (void)lda, (void)compute;
  return *device = (size_t)(256 * n + 1), *host = 0, 0;
}
int cusolverDnXgetrf_bufferSize(any handle, any params, int64_t m, int64_t n, int type, any a, int64_t lda, int compute, size_t *device, size_t *host) {
  (void)handle, (void)params, (void)n, (void)type, (void)a, (void)lda, (void)compute;
  return *device = (size_t)(256 * m + 1), *host = 8, 0;
}

// A library of BLAS and LAPACK that is not what its names promise: DGESDD always succeeds and
// computes nothing. With WRONG_PRODUCT, DGEMM does the same; with NO_LAPACK, there is no DGESDD.

#include <stdint.h>

void dgemm_(const char *ta, const char *tb, const int32_t *m, const int32_t *n, const int32_t *k, const double *alpha,
            const double *a, const int32_t *lda, const double *b, const int32_t *ldb, const double *beta, double *c,
            const int32_t *ldc) {
  (void)ta, (void)tb, (void)beta;
#ifndef WRONG_PRODUCT
  for (int j = 0; j < *n; j++)
    for (int i = 0; i < *m; i++) {
      double sum = 0;
      for (int l = 0; l < *k; l++) sum += a[i + l * *lda] * b[l + j * *ldb];
      c[i + j * *ldc] = *alpha * sum;
    }
#endif
}

#ifndef NO_LAPACK
void dgesdd_(void) {}
#endif

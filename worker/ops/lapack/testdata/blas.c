// A small library of BLAS and LAPACK: DGEMM for matrices that are not transposed, and DGESDD for
// small square matrices. With WRONG_PRODUCT, DGEMM computes nothing; with WRONG_FACTORS, DGESDD
// computes nothing; with NO_LAPACK, there is no DGESDD.

#include <math.h>
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

#ifdef WRONG_FACTORS
void dgesdd_(void) {}
#elif !defined NO_LAPACK
static double dot(const double *x, const double *y, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

// Turns the vectors x and y by an angle with that cosine and sine.
static void turn(double *x, double *y, int n, int step, double c, double s) {
  for (int i = 0; i < n * step; i += step) {
    double t = c * x[i] - s * y[i];
    y[i] = s * x[i] + c * y[i];
    x[i] = t;
  }
}

// The method of Jacobi: columns of A are turned in pairs until all are orthogonal. The values have
// no order.
void dgesdd_(const char *job, const int32_t *m, const int32_t *rows, double *a, const int32_t *lda, double *s, double *u,
             const int32_t *ldu, double *vt, const int32_t *ldvt, double *work, const int32_t *lwork, int32_t *iwork,
             int32_t *info) {
  (void)job, (void)rows, (void)lda, (void)ldu, (void)ldvt, (void)work, (void)lwork, (void)iwork;
  int n = *m;
  for (int i = 0; i < n * n; i++) vt[i] = i % (n + 1) == 0;
  for (int sweep = 0; sweep < 60; sweep++)
    for (int p = 0; p < n; p++)
      for (int q = p + 1; q < n; q++) {
        double *x = a + p * n, *y = a + q * n, xy = dot(x, y, n);
        if (fabs(xy) < 1e-300) continue;
        double angle = 0.5 * atan2(2 * xy, dot(y, y, n) - dot(x, x, n));
        turn(x, y, n, 1, cos(angle), sin(angle));
        turn(vt + p, vt + q, n, n, cos(angle), sin(angle));
      }
  for (int j = 0; j < n; j++) {
    s[j] = sqrt(dot(a + j * n, a + j * n, n));
    for (int i = 0; i < n; i++) u[i + j * n] = a[i + j * n] / s[j];
  }
  *info = 0;
}
#endif

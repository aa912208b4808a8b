// A cuFFT that computes on the CPU, by the definition of the transform, in double precision. Where
// the real one leaves something undefined, or destroys its input, this one makes it visible. Only
// the functions that worker/device/cuda calls exist.
#include <complex.h>
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_PLAN = 1, INVALID_VALUE = 4, PLANS = 1024, AXES = 3, WORK = 1000 };
enum { C2C = 0x29, R2C = 0x2a, C2R = 0x2c, Z2Z = 0x69, D2Z = 0x6a, Z2D = 0x6c };

typedef struct {
  int used, rank, type, manual;
  int64_t n[AXES], batch;
  void *stream, *work;
} plan;
static plan plans[PLANS];

int fake_plans(void) {
  int count = 0;
  for (int i = 0; i < PLANS; i++) count += plans[i].used;
  return count;
}

static plan *find(int handle) { return handle > 0 && handle < PLANS && plans[handle].used ? &plans[handle] : NULL; }

int cufftCreate(int *handle) {
  for (int i = 1; i < PLANS; i++)
    if (!plans[i].used) {
      plans[i] = (plan){.used = 1};
      *handle = i;
      return OK;
    }
  return INVALID_VALUE;
}

int cufftDestroy(int handle) {
  plan *p = find(handle);
  if (!p) return INVALID_PLAN;
  p->used = 0;
  return OK;
}

int cufftSetAutoAllocation(int handle, int automatic) {
  plan *p = find(handle);
  if (!p) return INVALID_PLAN;
  p->manual = !automatic;
  return OK;
}

int cufftMakePlanMany64(int handle, int rank, int64_t *n, int64_t *inembed, int64_t istride, int64_t idist, int64_t *onembed, int64_t ostride,
                        int64_t odist, int type, int64_t batch, size_t *work) {
  plan *p = find(handle);
  (void)istride, (void)idist, (void)ostride, (void)odist;
  if (!p) return INVALID_PLAN;
  if (rank < 1 || rank > AXES || inembed || onembed || batch < 1) return INVALID_VALUE;
  for (int i = 0; i < rank; i++) {
    if (n[i] < 1) return INVALID_VALUE;
    p->n[i] = n[i];
  }
  p->rank = rank, p->type = type, p->batch = batch;
  *work = WORK;
  return OK;
}

int cufftSetStream(int handle, void *stream) {
  plan *p = find(handle);
  if (!p) return INVALID_PLAN;
  p->stream = stream;
  return OK;
}

int cufftSetWorkArea(int handle, void *work) {
  plan *p = find(handle);
  if (!p) return INVALID_PLAN;
  p->work = work;
  return OK;
}

static void along(double complex *x, int64_t outer, int64_t n, int64_t inner, int sign) {
  double complex *line = malloc(n * sizeof *line);
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < inner; i++) {
      double complex *at = x + o * n * inner + i;
      for (int64_t k = 0; k < n; k++) {
        line[k] = 0;
        for (int64_t j = 0; j < n; j++) line[k] += at[j * inner] * cexp(sign * 2 * M_PI * I * (double)(j * k % n) / n);
      }
      for (int64_t k = 0; k < n; k++) at[k * inner] = line[k];
    }
  free(line);
}

static double complex get(const void *x, int64_t i, int single, int real) {
  if (real) return single ? ((const float *)x)[i] : ((const double *)x)[i];
  return single ? ((const float complex *)x)[i] : ((const double complex *)x)[i];
}

static void put(void *x, int64_t i, int single, int real, double complex z) {
  if (real && single)
    ((float *)x)[i] = creal(z);
  else if (real)
    ((double *)x)[i] = creal(z);
  else if (single)
    ((float complex *)x)[i] = z;
  else
    ((double complex *)x)[i] = z;
}

static int execute(int handle, int type, void *in, void *out, int sign) {
  plan *p = find(handle);
  if (!p || p->type != type) return INVALID_PLAN;
  // The tests name the library of the driver, which has the streams.
  void *driver = dlopen(getenv("FAKE_CUFFT_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  int (*synchronize)(void *) = driver ? (int (*)(void *))dlsym(driver, "cuStreamSynchronize") : NULL;
  if (!synchronize || !p->stream || !p->manual || !p->work || synchronize(p->stream)) return INVALID_VALUE;
  memset(p->work, 0xff, WORK);
  int single = type < Z2Z, from_real = type == R2C || type == D2Z, to_real = type == C2R || type == Z2D;
  if (to_real && p->rank > 1) return INVALID_VALUE; // its result is defined for symmetric input only
  int64_t size = 1, last = p->n[p->rank - 1], half = last / 2 + 1;
  for (int i = 0; i < p->rank; i++) size *= p->n[i];
  double complex *x = malloc(size * sizeof *x);
  for (int64_t b = 0; b < p->batch; b++) {
    for (int64_t i = 0; i < size; i++) {
      if (!to_real) {
        x[i] = get(in, b * size + i, single, from_real);
        continue;
      }
      int64_t k = i < half ? i : last - i;
      double complex z = get(in, b * half + k, single, 0);
      if ((k == 0 || 2 * k == last) && cimag(z) != 0) z = NAN; // undefined
      x[i] = i < half ? z : conj(z);
    }
    int64_t outer = 1;
    for (int i = 0; i < p->rank; i++) {
      along(x, outer, p->n[i], size / outer / p->n[i], to_real ? 1 : sign);
      outer *= p->n[i];
    }
    if (!from_real) {
      for (int64_t i = 0; i < size; i++) put(out, b * size + i, single, to_real, x[i]);
      continue;
    }
    for (int64_t row = 0; row < size / last; row++)
      for (int64_t i = 0; i < half; i++) put(out, (b * (size / last) + row) * half + i, single, 0, x[row * last + i]);
  }
  free(x);
  if (to_real) memset(in, 0xff, p->batch * half * (single ? 8 : 16));
  return OK;
}

int cufftExecC2C(int h, void *in, void *out, int direction) { return execute(h, C2C, in, out, direction); }
int cufftExecZ2Z(int h, void *in, void *out, int direction) { return execute(h, Z2Z, in, out, direction); }
int cufftExecR2C(int h, void *in, void *out) { return execute(h, R2C, in, out, -1); }
int cufftExecD2Z(int h, void *in, void *out) { return execute(h, D2Z, in, out, -1); }
int cufftExecC2R(int h, void *in, void *out) { return execute(h, C2R, in, out, 1); }
int cufftExecZ2D(int h, void *in, void *out) { return execute(h, Z2D, in, out, 1); }

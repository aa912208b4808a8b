// A libnvidia-ml.so.1 with one GPU and few functions, like that of an old driver.
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event;
typedef struct { unsigned id, scope; long long when, took; unsigned type, code; union { unsigned narrow; unsigned long long wide; } value; } field;
static int gpu;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 13 ? "no such function" : "failed"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { return n < 8 ? 7 : (strcpy(text, "470.1"), 0); }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return *v = 11040, 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { return i ? 2 : (*d = &gpu, 0); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **d) { return strcmp(uuid, "GPU-1") ? 6 : (*d = &gpu, 0); }
int nvmlDeviceGetUUID(void *d, char *text, unsigned n) { return d != &gpu || n < 6 ? 2 : (strcpy(text, "GPU-1"), 0); }
int nvmlDeviceGetName(void *d, char *text, unsigned n) { return d != &gpu || n < 6 ? 2 : (strcpy(text, "Old"), 0); }
int nvmlDeviceGetPciInfo_v3(void *d, pci *p) { return memset(p, 0, sizeof *p), strcpy(p->bus_id, "00000000:1B:00.0"), 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { return m->total = 80, m->free = 50, m->used = 30, 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { return *a = 8, *b = 6, 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *p) {
  if (*n < 2) return *n = 2, 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  return *n = 2, p[0] = (process){.pid = 7, .used = 9}, p[1] = (process){.pid = 8, .used = ~0ull}, 0;
}
int nvmlEventSetCreate(void **set) { return *set = &gpu, 0; }
int nvmlEventSetFree(void *set) { return 0; }
int nvmlDeviceGetSupportedEventTypes(void *d, unsigned long long *kinds) { return *kinds = 0xff, 0; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long kinds, void *set) { return kinds == 10 && set == &gpu ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, event *e, unsigned ms) { return *e = (event){.device = &gpu, .type = 8, .data = 79}, 0; }
int nvmlDeviceGetFieldValues(void *d, int n, field *f) {
  static long long now = 1000;
  for (now += 10000; n--; f++) {
    f->when = now, f->code = 0;
    if (f->id == 138 && f->scope == ~0u) f->type = 3, f->value.wide = 1ull << 33;
    else if (f->id == 139 && f->scope == ~0u) f->type = 3, f->value.wide = 2;
    else if (f->id == 197 || f->id == 198) f->type = 1, f->value.wide = ~0ull << 32, f->value.narrow = now * f->id;
    else f->code = 3;
  }
  return 0;
}

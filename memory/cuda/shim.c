//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// The part of the driver's interface that the shim uses is declared here, so that building needs no
// CUDA toolkit. Handles are opaque pointers, stored as integers.
typedef uintptr_t handle;
typedef struct {
  char bytes[64];
} ipc_handle;  // passed by value

enum {
  INVALID_VALUE = 1,
  STREAM_NON_BLOCKING = 1,
  EVENT_BLOCKING_SYNC = 1, /* a thread that waits for the event sleeps and uses no core */
  EVENT_DISABLE_TIMING = 2,
  IPC_LAZY_ENABLE_PEER_ACCESS = 1,
  HOST_REGISTER_PORTABLE = 1,
  HOST_REGISTER_READ_ONLY = 8,
  POINTER_BUFFER_ID = 7,
  DEVICE_MULTIPROCESSORS = 16,
  DEVICE_MAJOR = 75,
  DEVICE_MINOR = 76,
  DEVICE_SHARED_BYTES_OPTIN = 97,
  DEVICE_PAGEABLE_ACCESS = 88,
  DEVICE_READ_ONLY_REGISTRATION = 113,
  DEVICE_DIRECT_RDMA = 116,
  DEVICE_FLUSH_WRITES_OPTIONS = 117,
  DEVICE_WRITES_ORDERING = 118,
  DEVICE_DMA_BUF = 124,
  DEVICE_IPC = 125,
  FUNCTION_DYNAMIC_SHARED_BYTES = 8,
  FLUSH_OF_CURRENT_CONTEXT = 0,
  FLUSH_TO_ALL_DEVICES = 200,
};

// Columns: name, parameters. The names are the library's own, with the version suffixes that have
// been stable since CUDA 11.4.
#define CUDA_FUNCTIONS(X)                                                 \
  X(cuInit, (unsigned))                                                   \
  X(cuDriverGetVersion, (int *))                                          \
  X(cuGetErrorName, (int, const char **))                                 \
  X(cuGetErrorString, (int, const char **))                               \
  X(cuDeviceGetCount, (int *))                                            \
  X(cuDeviceGet, (int *, int))                                            \
  X(cuDeviceGetName, (char *, int, int))                                  \
  X(cuDeviceGetUuid_v2, (void *, int))                                    \
  X(cuDeviceGetPCIBusId, (char *, int, int))                              \
  X(cuDeviceTotalMem_v2, (size_t *, int))                                 \
  X(cuDeviceGetAttribute, (int *, int, int))                              \
  X(cuDeviceCanAccessPeer, (int *, int, int))                             \
  X(cuDevicePrimaryCtxRetain, (handle *, int))                            \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                  \
  X(cuCtxSetCurrent, (handle))                                            \
  X(cuCtxGetStreamPriorityRange, (int *, int *))                          \
  X(cuMemGetInfo_v2, (size_t *, size_t *))                                \
  X(cuMemAlloc_v2, (uint64_t *, size_t))                                  \
  X(cuMemFree_v2, (uint64_t))                                             \
  X(cuPointerGetAttribute, (void *, int, uint64_t))                       \
  X(cuIpcGetMemHandle, (ipc_handle *, uint64_t))                          \
  X(cuIpcOpenMemHandle_v2, (uint64_t *, ipc_handle, unsigned))            \
  X(cuIpcCloseMemHandle, (uint64_t))                                      \
  X(cuStreamCreateWithPriority, (handle *, unsigned, int))                \
  X(cuStreamDestroy_v2, (handle))                                         \
  X(cuStreamSynchronize, (handle))                                        \
  X(cuEventCreate, (handle *, unsigned))                                  \
  X(cuEventDestroy_v2, (handle))                                          \
  X(cuEventRecord, (handle, handle))                                      \
  X(cuEventQuery, (handle))                                               \
  X(cuEventSynchronize, (handle))                                         \
  X(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, handle))       \
  X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, handle))             \
  X(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, handle))           \
  X(cuMemsetD8Async, (uint64_t, unsigned char, size_t, handle))           \
  X(cuMemHostRegister_v2, (void *, size_t, unsigned))                     \
  X(cuMemHostUnregister, (void *))                                        \
  X(cuFlushGPUDirectRDMAWrites, (int, int))                               \
  X(cuMemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned))         \
  X(cuModuleLoadData, (handle *, const void *))                           \
  X(cuModuleUnload, (handle))                                             \
  X(cuModuleGetFunction, (handle *, handle, const char *))                \
  X(cuFuncSetAttribute, (handle, int, int))                               \
  X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))

typedef struct {
#define X(name, parameters) int(*name) parameters;
  CUDA_FUNCTIONS(X)
#undef X
} functions;

// The first successful mrc_load writes these two, before any other function is called. They never
// change after that.
static functions cu;
static char loaded[4096];

static atomic_llong allocations;

static void *get_memory(size_t n) {
  void *p = calloc(1, n ? n : 1);
  if (p) atomic_fetch_add(&allocations, 1);
  return p;
}

static void free_memory(void *p) {
  if (p) atomic_fetch_sub(&allocations, 1);
  free(p);
}

int64_t mrc_allocations(void) { return atomic_load(&allocations); }

#define TRY(call)        \
  do {                   \
    int r_ = (call);     \
    if (r_) return r_;   \
  } while (0)
#define ENTER(context) TRY(cu.cuCtxSetCurrent((handle)(context)))

int mrc_load(const char *path, char *err, int room) {
  if (loaded[0]) {
    if (!strcmp(loaded, path)) return 0;
    snprintf(err, room, "%s is loaded already, and two drivers in one process cannot be", loaded);
    return -1;
  }
  if (strlen(path) >= sizeof loaded) {
    snprintf(err, room, "the path is too long");
    return -1;
  }
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!h) {
    snprintf(err, room, "%s", dlerror());
    return -1;
  }
  functions found;
#define X(name, parameters)                                                                      \
  *(void **)&found.name = dlsym(h, #name);                                                       \
  if (!found.name) {                                                                             \
    snprintf(err, room, "%s has no %s: it is no CUDA driver, or one older than 11.4", path, #name); \
    dlclose(h);                                                                                  \
    return -1;                                                                                   \
  }
  CUDA_FUNCTIONS(X)
#undef X
  cu = found;  // the library stays open until the process ends, because the driver starts threads
  strcpy(loaded, path);
  return 0;
}

const char *mrc_error_name(int code) {
  const char *s = NULL;
  if (code == MRC_NO_MEMORY) return "NO_HOST_MEMORY";
  return !cu.cuGetErrorName(code, &s) && s ? s : "CUDA_ERROR_UNRECOGNIZED";
}

const char *mrc_error_text(int code) {
  const char *s = NULL;
  if (code == MRC_NO_MEMORY) return "malloc returned nothing";
  return !cu.cuGetErrorString(code, &s) && s ? s : "an error that this driver has no text for";
}

int mrc_init(int *version, int *count) {
  TRY(cu.cuInit(0));
  TRY(cu.cuDriverGetVersion(version));
  return cu.cuDeviceGetCount(count);
}

int mrc_describe(int ordinal, mrc_device *out) {
  int d;
  size_t total;
  memset(out, 0, sizeof *out);
  TRY(cu.cuDeviceGet(&d, ordinal));
  TRY(cu.cuDeviceGetName(out->name, sizeof out->name, d));
  TRY(cu.cuDeviceGetUuid_v2(out->uuid, d));
  TRY(cu.cuDeviceGetPCIBusId(out->pci_bus_id, sizeof out->pci_bus_id, d));
  TRY(cu.cuDeviceTotalMem_v2(&total, d));
  out->total_bytes = total;
  const struct {
    int attribute;
    int32_t *to;
  } list[] = {
      {DEVICE_MAJOR, &out->major},
      {DEVICE_MINOR, &out->minor},
      {DEVICE_MULTIPROCESSORS, &out->multiprocessors},
      {DEVICE_SHARED_BYTES_OPTIN, &out->shared_bytes},
      {DEVICE_READ_ONLY_REGISTRATION, &out->read_only_registration},
      {DEVICE_IPC, &out->ipc},
      {DEVICE_PAGEABLE_ACCESS, &out->pageable},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) TRY(cu.cuDeviceGetAttribute(list[i].to, list[i].attribute, d));
  // Drivers before CUDA 11.7 refuse some of these.
  if (cu.cuDeviceGetAttribute(&out->direct_rdma, DEVICE_DIRECT_RDMA, d)) out->direct_rdma = 0;
  if (cu.cuDeviceGetAttribute(&out->dma_buf, DEVICE_DMA_BUF, d)) out->dma_buf = 0;
  if (cu.cuDeviceGetAttribute(&out->flush_options, DEVICE_FLUSH_WRITES_OPTIONS, d)) out->flush_options = 0;
  if (cu.cuDeviceGetAttribute(&out->writes_ordering, DEVICE_WRITES_ORDERING, d)) out->writes_ordering = 0;
  return 0;
}

int mrc_can_access(int ordinal, int peer, int *can) {
  int a, b;
  TRY(cu.cuDeviceGet(&a, ordinal));
  TRY(cu.cuDeviceGet(&b, peer));
  return cu.cuDeviceCanAccessPeer(can, a, b);
}

int mrc_retain(int ordinal, uint64_t *context) {
  int d;
  handle c = 0;
  TRY(cu.cuDeviceGet(&d, ordinal));
  TRY(cu.cuDevicePrimaryCtxRetain(&c, d));
  *context = c;
  return 0;
}

int mrc_release(int ordinal) {
  int d;
  TRY(cu.cuDeviceGet(&d, ordinal));
  return cu.cuDevicePrimaryCtxRelease_v2(d);
}

int mrc_make_current(uint64_t context) { return cu.cuCtxSetCurrent((handle)context); }

int mrc_memory(uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes) {
  size_t f, t;
  ENTER(context);
  TRY(cu.cuMemGetInfo_v2(&f, &t));
  *free_bytes = f;
  *total_bytes = t;
  return 0;
}

int mrc_alloc(uint64_t context, uint64_t bytes, int throwaways, uint64_t *pointer) {
  ENTER(context);
  uint64_t *pads = get_memory(throwaways * sizeof *pads);
  if (!pads) return MRC_NO_MEMORY;
  int made = 0, r = 0;
  while (made < throwaways && !(r = cu.cuMemAlloc_v2(&pads[made], 4096))) made++;
  if (!r) r = cu.cuMemAlloc_v2(pointer, bytes);
  while (made > 0) {
    int f = cu.cuMemFree_v2(pads[--made]);
    if (f && !r) {
      cu.cuMemFree_v2(*pointer);
      r = f;
    }
  }
  free_memory(pads);
  return r;
}

int mrc_free(uint64_t context, uint64_t pointer) {
  ENTER(context);
  return cu.cuMemFree_v2(pointer);
}

int mrc_buffer_id(uint64_t context, uint64_t pointer, uint64_t *id) {
  unsigned long long v = 0;
  ENTER(context);
  TRY(cu.cuPointerGetAttribute(&v, POINTER_BUFFER_ID, pointer));
  *id = v;
  return 0;
}

int mrc_ipc_export(uint64_t context, uint64_t pointer, void *out) {
  ipc_handle h;
  ENTER(context);
  TRY(cu.cuIpcGetMemHandle(&h, pointer));
  memcpy(out, &h, sizeof h);
  return 0;
}

int mrc_ipc_open(uint64_t context, const void *in, uint64_t *pointer) {
  ipc_handle h;
  memcpy(&h, in, sizeof h);
  ENTER(context);
  return cu.cuIpcOpenMemHandle_v2(pointer, h, IPC_LAZY_ENABLE_PEER_ACCESS);
}

int mrc_ipc_close(uint64_t context, uint64_t pointer) {
  ENTER(context);
  return cu.cuIpcCloseMemHandle(pointer);
}

int mrc_stream_create(uint64_t context, int urgent, uint64_t *stream) {
  int least = 0, greatest = 0;
  handle s = 0;
  ENTER(context);
  TRY(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  TRY(cu.cuStreamCreateWithPriority(&s, STREAM_NON_BLOCKING, urgent ? greatest : least));
  *stream = s;
  return 0;
}

int mrc_stream_destroy(uint64_t context, uint64_t stream) {
  ENTER(context);
  return cu.cuStreamDestroy_v2((handle)stream);
}

int mrc_stream_sync(uint64_t context, uint64_t stream) {
  ENTER(context);
  return cu.cuStreamSynchronize((handle)stream);
}

int mrc_event_create(uint64_t context, int kind, uint64_t *event) {
  handle e = 0;
  ENTER(context);
  TRY(cu.cuEventCreate(&e, EVENT_DISABLE_TIMING | (kind == MRC_EVENT_POLLED ? 0 : EVENT_BLOCKING_SYNC)));
  *event = e;
  return 0;
}

int mrc_event_destroy(uint64_t context, uint64_t event) {
  ENTER(context);
  return cu.cuEventDestroy_v2((handle)event);
}

int mrc_event_record(uint64_t context, uint64_t event, uint64_t stream) {
  ENTER(context);
  return cu.cuEventRecord((handle)event, (handle)stream);
}

int mrc_event_query(uint64_t context, uint64_t event) {
  ENTER(context);
  return cu.cuEventQuery((handle)event);
}

static int64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int mrc_event_await(uint64_t context, uint64_t event, int64_t spin_ns) {
  enum { NOT_READY = 600 };
  ENTER(context);
  int64_t until = monotonic_ns() + spin_ns;
  for (;;) {
    int r = cu.cuEventQuery((handle)event);
    if (r != NOT_READY || monotonic_ns() >= until) return r;
  }
}

int mrc_event_sync(uint64_t context, uint64_t event) {
  ENTER(context);
  return cu.cuEventSynchronize((handle)event);
}

static int copy_all(uint64_t stream, const mrc_copy *copies, int count, int *submitted) {
  for (int i = 0; i < count; i++) {
    const mrc_copy *c = &copies[i];
    if (c->bytes) switch (c->kind) {
        case MRC_HOST_TO_DEVICE:
          TRY(cu.cuMemcpyHtoDAsync_v2(c->to, (const void *)(uintptr_t)c->from, c->bytes, (handle)stream));
          break;
        case MRC_DEVICE_TO_HOST:
          TRY(cu.cuMemcpyDtoHAsync_v2((void *)(uintptr_t)c->to, c->from, c->bytes, (handle)stream));
          break;
        case MRC_DEVICE_TO_DEVICE:
          TRY(cu.cuMemcpyDtoDAsync_v2(c->to, c->from, c->bytes, (handle)stream));
          break;
        default:
          return INVALID_VALUE;
      }
    ++*submitted;
  }
  return 0;
}

int mrc_copy_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int count, uint64_t event, int *submitted) {
  *submitted = 0;
  ENTER(context);
  TRY(copy_all(stream, copies, count, submitted));
  return event ? cu.cuEventRecord((handle)event, (handle)stream) : 0;
}

int mrc_flush_writes(uint64_t context) {
  ENTER(context);
  return cu.cuFlushGPUDirectRDMAWrites(FLUSH_OF_CURRENT_CONTEXT, FLUSH_TO_ALL_DEVICES);
}

int mrc_memset(uint64_t context, uint64_t stream, uint64_t pointer, uint8_t value, uint64_t bytes) {
  if (!bytes) return 0;
  ENTER(context);
  return cu.cuMemsetD8Async(pointer, value, bytes, (handle)stream);
}

int mrc_read(uint64_t context, uint64_t stream, void *to, uint64_t from, uint64_t bytes) {
  if (!bytes) return 0;
  ENTER(context);
  TRY(cu.cuMemcpyDtoHAsync_v2(to, from, bytes, (handle)stream));
  return cu.cuStreamSynchronize((handle)stream);
}

int mrc_write(uint64_t context, uint64_t stream, uint64_t to, const void *from, uint64_t bytes) {
  if (!bytes) return 0;
  ENTER(context);
  TRY(cu.cuMemcpyHtoDAsync_v2(to, from, bytes, (handle)stream));
  return cu.cuStreamSynchronize((handle)stream);
}

int mrc_register(uint64_t context, void *memory, uint64_t bytes, int read_only) {
  ENTER(context);
  return cu.cuMemHostRegister_v2(memory, bytes, HOST_REGISTER_PORTABLE | (read_only ? HOST_REGISTER_READ_ONLY : 0));
}

int mrc_unregister(uint64_t context, void *memory) {
  ENTER(context);
  return cu.cuMemHostUnregister(memory);
}

int mrc_host_pointer(uint64_t context, void *memory, uint64_t *pointer) {
  ENTER(context);
  return cu.cuMemHostGetDevicePointer_v2(pointer, memory, 0);
}

int mrc_module_load(uint64_t context, const void *image, uint64_t *module) {
  handle m = 0;
  ENTER(context);
  TRY(cu.cuModuleLoadData(&m, image));
  *module = m;
  return 0;
}

int mrc_module_unload(uint64_t context, uint64_t module) {
  ENTER(context);
  return cu.cuModuleUnload((handle)module);
}

int mrc_module_function(uint64_t context, uint64_t module, const char *name, uint64_t *function) {
  handle f = 0;
  ENTER(context);
  TRY(cu.cuModuleGetFunction(&f, (handle)module, name));
  *function = f;
  return 0;
}

int mrc_function_shared(uint64_t context, uint64_t function, int bytes) {
  ENTER(context);
  return cu.cuFuncSetAttribute((handle)function, FUNCTION_DYNAMIC_SHARED_BYTES, bytes);
}

int mrc_launch_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int copy_count, const mrc_launch *launches, int count,
                     const void *parameters, uint64_t event, int *submitted) {
  *submitted = 0;
  ENTER(context);
  TRY(copy_all(stream, copies, copy_count, submitted));
  for (int i = 0; i < count; i++) {
    const mrc_launch *l = &launches[i];
    size_t bytes = l->parameters_bytes;
    // Keys and values in turn: 1 is the address of the parameters, 2 that of their size, 0 the end.
    void *extra[] = {(void *)1, (char *)(uintptr_t)parameters + l->parameters_at, (void *)2, &bytes, (void *)0};
    TRY(cu.cuLaunchKernel((handle)l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
                          l->shared_bytes, (handle)stream, NULL, bytes ? extra : NULL));
    ++*submitted;
  }
  return event ? cu.cuEventRecord((handle)event, (handle)stream) : 0;
}

// A libcuda.so.1 for machines without a GPU. Device memory is memfds, and streams are threads. The
// state that several processes share (allocations with their owners, and the calls that shall fail)
// lies in a file. MILLRACE_FAKE_CUDA names the file, and the tests write into it. Only the
// functions that memory/cuda calls exist here.
//
// As with the real driver, an allocation stays in use while any process that mapped it lives, even
// if its owner has ended. In cases in which the real driver's behaviour is undefined, this one
// makes the error visible: memory that its owner frees while others have it mapped is overwritten,
// an access to freed memory faults, and the next allocation gets the same addresses.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef FAKE_OMIT_IPC
#define cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle_v1
#endif

enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  PEER_UNSUPPORTED = 217,
  INVALID_HANDLE = 400,
  INVALID_IMAGE = 200,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  NOT_SUPPORTED = 801,
};

enum { MAGIC = 0x4D52464B, PEOPLE = 16, ENTRIES = 256, SMALL = 64 << 10 };

typedef struct {
  uint64_t taken, device, bytes, owner, importers[PEOPLE];
} entry;

enum { LAUNCHES = 64, PARAMETERS = 1024 };

// One kernel launch, for tests to read. cudatest.Launch has the same layout.
typedef struct {
  char name[128];
  uint32_t grid[3], block[3], shared, bytes;
  unsigned char parameters[PARAMETERS];
} launch;

// The content of the file. cudatest.State has the same layout, and explains the fields.
typedef struct {
  uint64_t magic;
  uint64_t devices, memory;
  _Atomic uint64_t hold;      // not 0: streams start no work
  _Atomic uint64_t delay_us;  // the delay before each piece of work of a stream
  _Atomic uint64_t refuse_peer;
  _Atomic uint64_t fail_code, fail_skip, fail_count;
  char fail_call[64];
  _Atomic uint64_t sticky_code, sticky_pid;
  _Atomic uint64_t late_code, late_calls;
  _Atomic uint64_t no_sharing, no_registration, refused_pairs, mig, pageable, capability, corrupt, take_over, taken_over;
  _Atomic uint64_t freed_in_use;
  _Atomic uint64_t orders_writes, flushes;
  // Counts of the objects that the process watch_pid has created and not destroyed.
  _Atomic uint64_t watch_pid;
  _Atomic int64_t contexts, streams, events, registrations, allocations, mappings, modules;
  _Atomic uint64_t launches;  // their number so far; launch i is in launched[i % LAUNCHES]
  launch launched[LAUNCHES];
  entry entries[ENTRIES];
} state;

static state *st;
static int st_fd = -1;
// Guards this process's tables. begin and end also lock the file against other processes.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct allocation {
  struct allocation *next;
  uint64_t at, bytes, id;
  int fd, entry;  // fd is -1 for a small allocation and for an import; entry is -1 for a small one
  int device, refs;
  uint64_t pid, remote_fd, remote_id;  // the exporter of an import; pid is 0 for our own memory
} allocation;

static allocation *all;
static uint64_t last_id = 900;
static _Thread_local uint64_t current;  // the current context: its device + 1; 0: none
static int retained[64];

static atomic_int pending;  // the number of pieces of work that streams have not finished

static void count(_Atomic int64_t *what, int by) {
  if (st && st->watch_pid == (uint64_t)getpid()) *what += by;
}

static int enter(const char *name) {
  if (!st) return NOT_INITIALIZED;
  if (st->late_code && (!st->sticky_pid || st->sticky_pid == (uint64_t)getpid())) {
    if (st->late_calls)
      st->late_calls--;
    else
      st->sticky_code = st->late_code;
  }
  if (st->sticky_code && (!st->sticky_pid || st->sticky_pid == (uint64_t)getpid())) return (int)st->sticky_code;
  if (st->fail_count && !strcmp(name, st->fail_call)) {
    if (st->fail_skip) {
      st->fail_skip--;
    } else {
      st->fail_count--;
      return (int)st->fail_code;
    }
  }
  return OK;
}
#define CALL                      \
  do {                            \
    int r_ = enter(__func__);     \
    if (r_) return r_;            \
  } while (0)
#define IN_CONTEXT                            \
  do {                                        \
    CALL;                                     \
    if (!current) return INVALID_CONTEXT;     \
  } while (0)

static void begin(void) {
  pthread_mutex_lock(&lock);
  while (flock(st_fd, LOCK_EX) && errno == EINTR)
    ;
}
static void end(void) {
  flock(st_fd, LOCK_UN);
  pthread_mutex_unlock(&lock);
}

static int alive(uint64_t pid) { return pid && (!kill((pid_t)pid, 0) || errno != ESRCH); }

// Returns the bytes of a device that are in use. It first frees the entries that no living process
// owns or has mapped. REQUIRES: between begin and end.
static uint64_t taken(uint64_t device) {
  uint64_t sum = 0;
  for (int i = 0; i < ENTRIES; i++) {
    entry *e = &st->entries[i];
    if (!e->taken) continue;
    if (!alive(e->owner)) e->owner = 0;
    int held = e->owner != 0;
    for (int k = 0; k < PEOPLE; k++) {
      if (!alive(e->importers[k])) e->importers[k] = 0;
      held |= e->importers[k] != 0;
    }
    if (!held)
      e->taken = 0;
    else if (e->device == device)
      sum += e->bytes;
  }
  return sum;
}

static allocation *find(uint64_t at, uint64_t bytes) {
  for (allocation *a = all; a; a = a->next)
    if (at >= a->at && at - a->at < a->bytes && bytes <= a->bytes - (at - a->at)) return a;
  return NULL;
}

// Address ranges that were freed, in that order.
enum { FREED = 64 };
typedef struct {
  uint64_t at, bytes;
} span;
static span freed[FREED];
static int freed_count;

static void drop(allocation *gone) {
  for (allocation **p = &all; *p; p = &(*p)->next)
    if (*p == gone) {
      *p = gone->next;
      break;
    }
  if (gone->fd >= 0 && freed_count < FREED && mmap((void *)gone->at, gone->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
    freed[freed_count++] = (span){gone->at, gone->bytes};
  else
    munmap((void *)gone->at, gone->bytes);
  if (gone->fd >= 0) close(gone->fd);
  free(gone);
}

// Returns the address for a new allocation: that of the last freed one of the same size. NULL:
// there is none.
static void *place(uint64_t bytes) {
  for (int i = freed_count - 1; i >= 0; i--)
    if (freed[i].bytes == bytes) {
      void *at = (void *)freed[i].at;
      memmove(&freed[i], &freed[i + 1], (freed_count - i - 1) * sizeof *freed);
      freed_count--;
      return at;
    }
  return NULL;
}

int cuInit(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  const char *path = getenv("MILLRACE_FAKE_CUDA");
  // Executors do not get the MILLRACE_ variables of their worker, so they have another name for it.
  if (!path) path = getenv("FAKE_CUDA_STATE");
  if (!st && path && (st_fd = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
    state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, st_fd, 0);
    if (s != MAP_FAILED && s->magic == MAGIC) st = s;
    // Entries that have this pid already belong to an earlier process, which has ended.
    while (flock(st_fd, LOCK_EX) && errno == EINTR)
      ;
    for (int i = 0; st && i < ENTRIES; i++) {
      entry *e = &st->entries[i];
      if (e->owner == (uint64_t)getpid()) e->owner = 0;
      for (int k = 0; k < PEOPLE; k++)
        if (e->importers[k] == (uint64_t)getpid()) e->importers[k] = 0;
    }
    flock(st_fd, LOCK_UN);
  }
  pthread_mutex_unlock(&lock);
  if (!st) return NO_DEVICE;
  CALL;
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (st->mig && visible && strncmp(visible, "MIG-", 4)) return NO_DEVICE;
  return st->devices ? OK : NO_DEVICE;
}

int cuDriverGetVersion(int *v) {
  *v = 13000;
  return OK;
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

int cuGetErrorName(int code, const char **s) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return *s = errors[i].name, OK;
  return INVALID_VALUE;
}

int cuGetErrorString(int code, const char **s) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return *s = errors[i].text, OK;
  return INVALID_VALUE;
}

int cuDeviceGetCount(int *n) {
  CALL;
  *n = (int)st->devices;
  return OK;
}

int cuDeviceGet(int *d, int i) {
  CALL;
  if (i < 0 || (uint64_t)i >= st->devices) return INVALID_DEVICE;
  *d = i;
  return OK;
}

int cuDeviceGetName(char *s, int room, int d) {
  CALL;
  snprintf(s, room, st->mig ? "Fake GPU %d MIG 1g.12gb" : "Fake GPU %d", d);
  return OK;
}

int cuDeviceGetUuid_v2(void *uuid, int d) {
  CALL;
  memset(uuid, 0xFA, 16);
  ((unsigned char *)uuid)[15] = (unsigned char)d;
  return OK;
}

int cuDeviceGetPCIBusId(char *s, int room, int d) {
  CALL;
  snprintf(s, room, "0000:%02X:00.0", 0x1b + d);
  return OK;
}

int cuDeviceTotalMem_v2(size_t *n, int d) {
  (void)d;
  CALL;
  *n = st->memory;
  return OK;
}

int cuDeviceGetAttribute(int *v, int attribute, int d) {
  (void)d;
  CALL;
  switch (attribute) {
    case 16: *v = 132; break;
    case 75: *v = st->capability ? (int)st->capability / 10 : 9; break;
    case 76: *v = (int)st->capability % 10; break;
    case 88: *v = st->pageable != 0; break;
    case 97: *v = 227 << 10; break;
    case 113: *v = 1; break;
    case 117: *v = 1; break;
    case 118: *v = st->orders_writes ? 200 : 0; break;
#ifdef FAKE_DIRECT_RDMA  // network cards may access the memory, by dma-buf
    case 116:
    case 124: *v = 1; break;
#endif
    case 125: *v = !st->no_sharing; break;
    default: *v = 0;
  }
  return OK;
}

int cuDeviceCanAccessPeer(int *can, int a, int b) {
  CALL;
  *can = a != b && !st->refuse_peer && !st->mig && !(st->refused_pairs >> (8 * a + b) & 1);
  return OK;
}

int cuDevicePrimaryCtxRetain(uint64_t *c, int d) {
  CALL;
  pthread_mutex_lock(&lock);
  retained[d]++;
  pthread_mutex_unlock(&lock);
  count(&st->contexts, 1);
  *c = d + 1;
  return OK;
}

int cuDevicePrimaryCtxRelease_v2(int d) {
  pthread_mutex_lock(&lock);
  int held = retained[d] > 0;
  retained[d] -= held;
  pthread_mutex_unlock(&lock);
  if (held) count(&st->contexts, -1);
  CALL;
  return held ? OK : INVALID_CONTEXT;
}

int cuCtxSetCurrent(uint64_t c) {
  CALL;
  if (c && !retained[c - 1]) return INVALID_CONTEXT;
  current = c;
  return OK;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  IN_CONTEXT;
  *least = 0;
  *greatest = -5;
  return OK;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  IN_CONTEXT;
  begin();
  uint64_t used = taken(current - 1);
  end();
  *total = st->memory;
  *free_bytes = used < st->memory ? st->memory - used : 0;
  return OK;
}

int cuMemAlloc_v2(uint64_t *p, size_t n) {
  IN_CONTEXT;
  if (!n) return INVALID_VALUE;
  allocation *a = calloc(1, sizeof *a);
  a->bytes = n;
  a->fd = a->entry = -1;
  a->device = (int)current - 1;
  begin();
  int r = OK;
  void *at = MAP_FAILED;
  uint64_t used = taken(a->device);
  if (used > st->memory || n > st->memory - used) {
    r = OUT_OF_MEMORY;
  } else if (n < SMALL) {
    at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else {
    while (++a->entry < ENTRIES && st->entries[a->entry].taken)
      ;
    a->fd = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (a->entry < ENTRIES && a->fd >= 0 && !ftruncate(a->fd, n)) {
      void *again = place(n);
      at = mmap(again, n, PROT_READ | PROT_WRITE, MAP_SHARED | (again ? MAP_FIXED : 0), a->fd, 0);
    }
  }
  if (!r && at == MAP_FAILED) r = OUT_OF_MEMORY;
  if (r) {
    if (a->fd >= 0) close(a->fd);
    free(a);
  } else {
    if (a->entry >= 0)
      st->entries[a->entry] = (entry){.taken = 1, .device = a->device, .bytes = n, .owner = getpid()};
    a->at = (uint64_t)at;
    a->id = ++last_id;
    a->next = all;
    all = a;
    count(&st->allocations, 1);
    *p = a->at;
  }
  end();
  return r;
}

// Like the real function, it waits until nothing runs on the device.
int cuMemFree_v2(uint64_t p) {
  if (!st) return NOT_INITIALIZED;
  while (pending) usleep(20);
  int r = INVALID_VALUE;
  begin();
  allocation *a = find(p, 1);
  if (a && a->at == p && !a->pid) {
    if (a->entry >= 0) {
      entry *e = &st->entries[a->entry];
      int mapped = 0;
      for (int k = 0; k < PEOPLE; k++) mapped |= alive(e->importers[k]);
      if (mapped) {
        memset((void *)a->at, 0xDF, a->bytes);
        st->freed_in_use++;
      }
      e->owner = 0;
    }
    drop(a);
    count(&st->allocations, -1);
    r = OK;
  }
  end();
  CALL;
  return r;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t p) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  allocation *a = find(p, 1);
  if (a && attribute == 7) *(unsigned long long *)out = a->id;
  pthread_mutex_unlock(&lock);
  return a && attribute == 7 ? OK : INVALID_VALUE;
}

typedef union {
  char bytes[64];
  struct {
    uint64_t magic, pid, fd, bytes, id, device, entry;
  } of;
} ipc_handle;

int cuIpcGetMemHandle(ipc_handle *h, uint64_t p) {
  IN_CONTEXT;
  if (st->no_sharing) return NOT_SUPPORTED;
  memset(h, 0, sizeof *h);
  pthread_mutex_lock(&lock);
  allocation *a = find(p, 1);
  int ok = a && a->fd >= 0 && !a->pid;
  if (ok) {
    h->of.magic = MAGIC, h->of.pid = getpid(), h->of.fd = a->fd, h->of.bytes = a->bytes;
    h->of.id = a->id, h->of.device = a->device, h->of.entry = a->entry;
  }
  pthread_mutex_unlock(&lock);
  return ok ? OK : INVALID_VALUE;
}

static int reopen(uint64_t pid, uint64_t fd) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

int cuIpcOpenMemHandle_v2(uint64_t *p, ipc_handle h, unsigned flags) {
  (void)flags;
  IN_CONTEXT;
  if (h.of.magic != MAGIC) return INVALID_VALUE;
  if (h.of.pid == (uint64_t)getpid()) return INVALID_CONTEXT;
  if (h.of.device != current - 1 && (st->refuse_peer || st->mig || st->refused_pairs >> (8 * (current - 1) + h.of.device) & 1))
    return PEER_UNSUPPORTED;
  int r = INVALID_VALUE;
  begin();
  for (allocation *a = all; a; a = a->next)
    if (a->pid == h.of.pid && a->remote_fd == h.of.fd && a->remote_id == h.of.id && a->bytes == h.of.bytes) {
      a->refs++;
      *p = a->at;
      r = OK;
    }
  int fd = r ? reopen(h.of.pid, h.of.fd) : -1;
  if (fd >= 0) {
    void *at = mmap(NULL, h.of.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    entry *e = &st->entries[h.of.entry];
    int k = 0;
    while (k < PEOPLE && e->importers[k]) k++;
    if (at != MAP_FAILED && k < PEOPLE) {
      allocation *a = calloc(1, sizeof *a);
      *a = (allocation){.next = all, .at = (uint64_t)at, .bytes = h.of.bytes, .id = ++last_id, .fd = -1,
                        .entry = (int)h.of.entry, .device = (int)h.of.device, .refs = 1,
                        .pid = h.of.pid, .remote_fd = h.of.fd, .remote_id = h.of.id};
      all = a;
      e->importers[k] = getpid();
      *p = a->at;
      r = OK;
    }
  }
  if (!r) count(&st->mappings, 1);
  end();
  return r;
}

int cuIpcCloseMemHandle(uint64_t p) {
  if (!st) return NOT_INITIALIZED;
  int r = INVALID_VALUE;
  begin();
  allocation *a = find(p, 1);
  if (a && a->at == p && a->pid) {
    r = OK;
    count(&st->mappings, -1);
    if (!--a->refs) {
      entry *e = a->entry < 0 ? NULL : &st->entries[a->entry];
      for (int k = 0; e && k < PEOPLE; k++)
        if (e->importers[k] == (uint64_t)getpid()) {
          e->importers[k] = 0;
          break;
        }
      uint64_t bytes = a->bytes;
      if (st->taken_over == p) st->taken_over = 0;
      drop(a);
      if (st->take_over && mmap((void *)p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
        a = calloc(1, sizeof *a);
        *a = (allocation){.next = all, .at = p, .bytes = bytes, .id = ++last_id, .fd = -1, .entry = -1, .refs = 1, .pid = 1};
        all = a;
        st->take_over = 0;
        st->taken_over = p;
      }
    }
  }
  end();
  CALL;
  return r;
}

typedef struct {
  _Atomic uint64_t recorded, reached;  // the number of records submitted, and the last one reached
  atomic_int refs;
} event;

typedef struct work {
  struct work *next;
  void *to;
  const void *from;
  uint64_t bytes;
  int value;  // the byte that a memset writes, if from is NULL
  event *reach;
  uint64_t sequence;
  int staged;  // not 0: from is our copy, which we free
  int between;  // not 0: a copy from device to device
  struct row *table;  // the rows of a gather
  unsigned rows;
  _Atomic uint64_t *over;  // a gather writes number there when it is complete; NULL: nowhere
  uint64_t number;
  int illegal;  // not 0: it uses an illegal address
  struct point *point;  // the arguments of a point of Task Bench, which we free; NULL: none
  struct emulated *emulated;  // a launch of a kernel that was compiled for the CPU, which we free; NULL: none
} work;

// A launch of a kernel that was compiled for the CPU. emulate is a function of its library: see
// worker/device/cuda/testdata/emulator.hpp.
struct emulated {
  void (*emulate)(void *kernel, const void *parameters, size_t bytes, const unsigned *grid, const unsigned *block);
  void *kernel;
  unsigned grid[3], block[3];
  size_t bytes;
  unsigned char parameters[];
};

// The layout is that of row in memory/cuda/kernel/gather.cu.
struct row {
  uint64_t to, from, bytes;
};

// The layout is that of the arguments of bench_point in worker/device/cuda/kernels/builtin.cu.
struct pair {
  int64_t step, point;
};
struct point {
  struct pair *out;
  uint64_t pairs;
  int64_t step, point;
  uint64_t iterations, inputs;
  struct {
    const struct pair *data;
    uint64_t pairs;
    int64_t point;
  } input[64];
};

static void make_point(const struct point *a) {
  for (uint64_t i = 0; i < a->pairs; i++) {
    int right = 1;
    for (uint64_t n = 0; n < a->inputs; n++)
      right = right && i < a->input[n].pairs && a->input[n].data[i].step == a->step - 1 && a->input[n].data[i].point == a->input[n].point;
    a->out[i] = right ? (struct pair){a->step, a->point} : (struct pair){-1, -1};
  }
}

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  work *first, **last;
  int busy, closing;
} stream;


static void unref(event *e) {
  if (!--e->refs) free(e);
}

static void *run(void *arg) {
  stream *s = arg;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->first && !s->closing) pthread_cond_wait(&s->changed, &s->lock);
    work *w = s->first;
    if (!w) break;
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    s->busy = 1;
    pthread_mutex_unlock(&s->lock);
    while (st->hold) usleep(20);
    if (st->delay_us) usleep(st->delay_us);
    if (w->from) {
      memmove(w->to, w->from, w->bytes);
      if (w->between && w->bytes && st->corrupt) *(unsigned char *)w->to ^= 1;
    } else if (w->to) {
      memset(w->to, w->value, w->bytes);
    }
    for (unsigned i = 0; i < w->rows; i++) memmove((void *)w->table[i].to, (void *)w->table[i].from, w->table[i].bytes);
    if (w->over) *w->over = w->number;
    if (w->illegal) st->sticky_pid = getpid(), st->sticky_code = ILLEGAL_ADDRESS;
    if (w->point) {
      make_point(w->point);
      free(w->point);
    }
    if (w->emulated) {
      w->emulated->emulate(w->emulated->kernel, w->emulated->parameters, w->emulated->bytes, w->emulated->grid, w->emulated->block);
      free(w->emulated);
    }
    if (w->reach) {
      w->reach->reached = w->sequence;
      unref(w->reach);
    }
    if (w->staged) free((void *)w->from);
    free(w);
    pending--;
    pthread_mutex_lock(&s->lock);
    s->busy = 0;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static int submit(stream *s, work from) {
  if (!s) return INVALID_HANDLE;
  work *w = malloc(sizeof *w);
  *w = from;
  pending++;
  pthread_mutex_lock(&s->lock);
  *s->last = w;
  s->last = &w->next;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return OK;
}

int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) {
  (void)flags;
  (void)priority;
  IN_CONTEXT;
  stream *s = calloc(1, sizeof *s);
  s->last = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  if (pthread_create(&s->thread, NULL, run, s)) return OUT_OF_MEMORY;
  count(&st->streams, 1);
  *out = s;
  return OK;
}

// Unlike the real function, it waits for the submitted work.
int cuStreamDestroy_v2(stream *s) {
  if (!s) return INVALID_HANDLE;
  pthread_mutex_lock(&s->lock);
  s->closing = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->changed);
  free(s);
  count(&st->streams, -1);
  CALL;
  return OK;
}

static void finish(stream *s) {
  pthread_mutex_lock(&s->lock);
  while (s->first || s->busy) pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

int cuStreamSynchronize(stream *s) {
  IN_CONTEXT;
  finish(s);
  CALL;
  return OK;
}

int cuEventCreate(event **out, unsigned flags) {
  (void)flags;
  IN_CONTEXT;
  event *e = calloc(1, sizeof *e);
  e->refs = 1;
  count(&st->events, 1);
  *out = e;
  return OK;
}

int cuEventDestroy_v2(event *e) {
  unref(e);
  count(&st->events, -1);
  CALL;
  return OK;
}

// The default stream (NULL) never has any work, so its events are reached at once.
int cuEventRecord(event *e, stream *s) {
  IN_CONTEXT;
  if (!s) {
    e->reached = ++e->recorded;
    return OK;
  }
  e->refs++;
  return submit(s, (work){.reach = e, .sequence = ++e->recorded});
}

int cuEventQuery(event *e) {
  IN_CONTEXT;
  return e->reached >= e->recorded ? OK : NOT_READY;
}

int cuEventSynchronize(event *e) {
  IN_CONTEXT;
  for (uint64_t until = e->recorded; e->reached < until;) usleep(20);
  return OK;
}

int cuCtxSynchronize(void) {
  IN_CONTEXT;
  while (pending) usleep(20);
  CALL;
  return OK;
}

static int on_device(uint64_t p, uint64_t n) {
  pthread_mutex_lock(&lock);
  int known = find(p, n) != NULL;
  pthread_mutex_unlock(&lock);
  return known;
}

static struct {
  void *at;
  size_t bytes;
} registered[64];

static int is_registered(const void *at) {
  int known = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64; i++)
    known |= registered[i].bytes && (char *)at >= (char *)registered[i].at && (char *)at < (char *)registered[i].at + registered[i].bytes;
  pthread_mutex_unlock(&lock);
  return known;
}

// Host memory that is not registered is not read after the call has returned, unless the devices
// read pageable memory themselves (pageable in the state).
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, stream *s) {
  IN_CONTEXT;
  if (!on_device(to, n)) return INVALID_VALUE;
  if (st->pageable || is_registered(from)) return submit(s, (work){.to = (void *)to, .from = from, .bytes = n});
  void *copy = malloc(n);
  memcpy(copy, from, n);
  return submit(s, (work){.to = (void *)to, .from = copy, .bytes = n, .staged = 1});
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, stream *s) {
  IN_CONTEXT;
  if (!on_device(from, n)) return INVALID_VALUE;
  int r = submit(s, (work){.to = to, .from = (void *)from, .bytes = n});
  if (!r && !is_registered(to)) finish(s);
  return r;
}

// Registered host memory has addresses on the device, which an H200 takes here as well.
static int has_address(uint64_t p, uint64_t n) { return on_device(p, n) || is_registered((void *)p); }

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, stream *s) {
  IN_CONTEXT;
  if (!has_address(to, n) || !has_address(from, n)) return INVALID_VALUE;
  return submit(s, (work){.to = (void *)to, .from = (void *)from, .bytes = n, .between = 1});
}

int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  IN_CONTEXT;
  if (target != 0 || scope != 200) return INVALID_VALUE;
  st->flushes++;
  return OK;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, stream *s) {
  IN_CONTEXT;
  if (!has_address(to, n)) return INVALID_VALUE;
  return submit(s, (work){.to = (void *)to, .value = value, .bytes = n});
}

int cuMemHostRegister_v2(void *at, size_t n, unsigned flags) {
  (void)flags;
  IN_CONTEXT;
  if (st->no_registration) return NOT_SUPPORTED;
  int r = OUT_OF_MEMORY, spot = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64; i++) {
    if (!registered[i].bytes) {
      spot = i;
    } else if ((char *)at < (char *)registered[i].at + registered[i].bytes && (char *)registered[i].at < (char *)at + n) {
      spot = -1;
      r = ALREADY_REGISTERED;
      break;
    }
  }
  if (spot >= 0) {
    registered[spot].at = at;
    registered[spot].bytes = n;
    count(&st->registrations, 1);
    r = OK;
  }
  pthread_mutex_unlock(&lock);
  return r;
}

int cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *at, unsigned flags) {
  IN_CONTEXT;
  if (flags) return INVALID_VALUE;
  *pointer = (uint64_t)(uintptr_t)at;
  return OK;
}

int cuMemHostUnregister(void *at) {
  int r = NOT_REGISTERED;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64; i++)
    if (registered[i].bytes && registered[i].at == at) {
      registered[i].bytes = 0;
      count(&st->registrations, -1);
      r = OK;
    }
  pthread_mutex_unlock(&lock);
  CALL;
  return r;
}

typedef struct {
  uint64_t magic;
  void *library;  // of an emulated module: the kernels, compiled for the CPU; otherwise NULL
} module;

typedef struct function {
  struct function *next;
  char name[128];
  unsigned shared;  // bytes of dynamic shared memory that launches may have; 0: 48 KiB
  module *of;       // NULL once the module is unloaded: then it cannot be launched
} function;

// An image that begins with these characters is the path of a library with kernels that were
// compiled for the CPU.
#define EMULATED ".version emulated:"

static function *functions;  // never freed, because callers may keep them after their module

int cuModuleLoadData(module **out, const void *image) {
  IN_CONTEXT;
  void *library = NULL;
  if (!strncmp(image, EMULATED, strlen(EMULATED))) {
    library = dlopen((const char *)image + strlen(EMULATED), RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
  }
  if (!library && memcmp(image, "\x7f" "ELF", 4) && !strstr(image, ".version")) return INVALID_IMAGE;
  module *m = calloc(1, sizeof *m);
  m->library = library;
  m->magic = MAGIC;
  count(&st->modules, 1);
  *out = m;
  return OK;
}

int cuModuleUnload(module *m) {
  if (!m || m->magic != MAGIC) return INVALID_HANDLE;
  m->magic = 0;
  if (m->library) dlclose(m->library);
  pthread_mutex_lock(&lock);
  for (function *f = functions; f; f = f->next)
    if (f->of == m) f->of = NULL;
  pthread_mutex_unlock(&lock);
  free(m);
  count(&st->modules, -1);
  CALL;
  return OK;
}

// Every module has every function, except those with names that begin with "missing".
int cuModuleGetFunction(function **out, module *m, const char *name) {
  IN_CONTEXT;
  if (!m || m->magic != MAGIC) return INVALID_HANDLE;
  if (!strncmp(name, "missing", 7) || (m->library && !dlsym(m->library, name))) return NOT_FOUND;
  function *f = calloc(1, sizeof *f);
  snprintf(f->name, sizeof f->name, "%s", name);
  f->of = m;
  pthread_mutex_lock(&lock);
  f->next = functions;
  functions = f;
  pthread_mutex_unlock(&lock);
  *out = f;
  return OK;
}

int cuFuncSetAttribute(function *f, int attribute, int value) {
  IN_CONTEXT;
  if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
  f->shared = value;
  return OK;
}

// A launch is work of the stream, but computes nothing. There are four exceptions: emulated kernels
// compute, the gather
// kernels copy, bench_point computes its point, and a kernel with a name that begins with "illegal"
// breaks the process's context.
int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   stream *s, void **parameters, void **extra) {
  IN_CONTEXT;
  if (!f || parameters || !gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024) return INVALID_VALUE;
  if (shared > 48 << 10 && shared > f->shared) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  if (!f->of) {
    pthread_mutex_unlock(&lock);
    return INVALID_HANDLE;
  }
  void *library = f->of->library;
  launch *l = &st->launched[st->launches % LAUNCHES];
  memset(l, 0, sizeof *l);
  memcpy(l->name, f->name, sizeof l->name);
  l->grid[0] = gx, l->grid[1] = gy, l->grid[2] = gz;
  l->block[0] = bx, l->block[1] = by, l->block[2] = bz;
  l->shared = shared;
  if (extra && extra[0] == (void *)1 && extra[2] == (void *)2) {
    l->bytes = (uint32_t) * (size_t *)extra[3];
    memcpy(l->parameters, extra[1], l->bytes < PARAMETERS ? l->bytes : PARAMETERS);
  }
  st->launches++;
  pthread_mutex_unlock(&lock);
  work w = {.illegal = !strncmp(f->name, "illegal", 7)};
  if (!strcmp(f->name, "millrace_gather") || !strcmp(f->name, "gather")) {
    char *at = extra[1];
    w.table = *(struct row **)at;
    w.rows = *(unsigned *)(at + 8);
    if (*(size_t *)extra[3] == 40) {
      w.over = *(_Atomic uint64_t **)(at + 24);
      w.number = *(uint64_t *)(at + 32);
    }
  }
  if (!strcmp(f->name, "bench_point") && extra && *(size_t *)extra[3] == sizeof *w.point) {
    w.point = malloc(sizeof *w.point);
    memcpy(w.point, extra[1], sizeof *w.point);
  } else if (library && !w.table) {
    size_t bytes = *(size_t *)extra[3];
    w.emulated = malloc(sizeof *w.emulated + bytes);
    *w.emulated = (struct emulated){.kernel = dlsym(library, f->name), .bytes = bytes, .grid = {gx, gy, gz}, .block = {bx, by, bz}};
    *(void **)&w.emulated->emulate = dlsym(library, "emulate");
    memcpy(w.emulated->parameters, extra[1], bytes);
  }
  return submit(s, w);
}

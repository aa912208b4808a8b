//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "abi.h"

// Columns: name, result, parameters.
#define UCX_FUNCTIONS(X)                                                                                       \
  X(ucp_get_version, void, (unsigned *, unsigned *, unsigned *))                                               \
  X(ucp_init_version, int, (unsigned, unsigned, const mr_params_t *, const void *, void **))                   \
  X(ucp_cleanup, void, (void *))                                                                               \
  X(ucp_context_query, int, (void *, mr_context_attr_t *))                                                     \
  X(ucp_config_read, int, (const char *, const char *, void **))                                               \
  X(ucp_config_modify, int, (void *, const char *, const char *))                                              \
  X(ucp_config_release, void, (void *))                                                                        \
  X(ucp_worker_create, int, (void *, const mr_worker_params_t *, void **))                                     \
  X(ucp_worker_destroy, void, (void *))                                                                        \
  X(ucp_worker_query, int, (void *, mr_worker_attr_t *))                                                       \
  X(ucp_worker_release_address, void, (void *, void *))                                                        \
  X(ucp_worker_get_efd, int, (void *, int *))                                                                  \
  X(ucp_worker_arm, int, (void *))                                                                             \
  X(ucp_worker_signal, int, (void *))                                                                          \
  X(ucp_worker_progress, unsigned, (void *))                                                                   \
  X(ucp_worker_set_am_recv_handler, int, (void *, const mr_am_handler_param_t *))                              \
  X(ucp_am_send_nbx, void *, (void *, unsigned, const void *, size_t, const void *, size_t, const mr_request_param_t *)) \
  X(ucp_am_data_release, void, (void *, void *))                                                               \
  X(ucp_ep_create, int, (void *, const mr_ep_params_t *, void **))                                             \
  X(ucp_ep_close_nbx, void *, (void *, const mr_request_param_t *))                                            \
  X(ucp_mem_map, int, (void *, const mr_mem_map_params_t *, void **))                                          \
  X(ucp_mem_unmap, int, (void *, void *))                                                                      \
  X(ucp_rkey_pack, int, (void *, void *, void **, size_t *))                                                   \
  X(ucp_rkey_buffer_release, void, (void *))                                                                   \
  X(ucp_ep_rkey_unpack, int, (void *, const void *, void **))                                                  \
  X(ucp_rkey_destroy, void, (void *))                                                                          \
  X(ucp_get_nbx, void *, (void *, void *, size_t, uint64_t, void *, const mr_request_param_t *))               \
  X(ucp_request_free, void, (void *))                                                                          \
  X(ucs_status_string, const char *, (int))

// The first successful mr_load writes these two, before any engine exists. They never change after
// that.
static struct {
#define X(name, result, parameters) result(*name) parameters;
  UCX_FUNCTIONS(X)
#undef X
  int (*ucp_ep_query)(void *, mr_ep_attr_t *);  // NULL if the library is older than UCX 1.14
} ucx;
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

int64_t mr_allocations(void) { return atomic_load(&allocations); }

// The memory is not zeroed, unlike that of get_memory, because the caller writes all of it.
void *mr_buffer(uint64_t n) {
  void *p = malloc(n ? n : 1);
  if (p) atomic_fetch_add(&allocations, 1);
  return p;
}
void mr_buffer_free(void *p) { free_memory(p); }

#define MAX_MEMORIES 8

// Each endpoint is an allocation of its own, because UCX keeps a pointer to it for the error
// handler.
typedef struct {
  mr_engine *engine;
  void *ep, *keys[MR_KEYS];
  uint64_t tag;
} endpoint;

// The bytes of a received message.
typedef struct {
  void *data;
  int lent;  // not 0: the memory is UCX's and goes back to it; 0: it is ours
} holding;

struct mr_engine {
  void *context, *worker, *address;
  size_t address_length;
  int efd;
  void *memories[MAX_MEMORIES];
  int memory_types[MAX_MEMORIES], memory_count;
  endpoint **endpoints;
  int endpoint_count;
  mr_op *ops;
  int op_room;
  // The first returned events are those that the last mr_wait has returned.
  mr_event *events;
  int event_count, event_room, returned;
  int64_t last_activity;
  atomic_int wake;      // mr_signal was called, and mr_wait has not reacted yet
  atomic_int sleeping;  // the engine's thread is in poll or about to enter it
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int mr_load(const char *path, char *err, int room) {
  if (loaded[0]) {
    if (!strcmp(loaded, path)) return 0;
    snprintf(err, room, "%s is loaded already, and two copies in one process cannot be", loaded);
    return -1;
  }
  if (strlen(path) >= sizeof loaded) {
    snprintf(err, room, "the path is too long");
    return -1;
  }
  // The library stays open until the process ends, because UCX leaves threads and handlers behind.
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!h) {
    snprintf(err, room, "%s", dlerror());
    return -1;
  }
#define X(name, result, parameters)                                            \
  *(void **)&ucx.name = dlsym(h, #name);                                       \
  if (!ucx.name) {                                                             \
    snprintf(err, room, "%s has no %s: it is older than UCX 1.13", path, #name); \
    return -1;                                                                 \
  }
  UCX_FUNCTIONS(X)
#undef X
  *(void **)&ucx.ucp_ep_query = dlsym(h, "ucp_ep_query");
  strcpy(loaded, path);
  return 0;
}

void mr_set_environment(const char *name, const char *value, int replace) { setenv(name, value, replace); }
void mr_version(unsigned *major, unsigned *minor, unsigned *release) { ucx.ucp_get_version(major, minor, release); }
const char *mr_status_text(int status) { return ucx.ucs_status_string(status); }

static int is_error(const void *p) { return (uintptr_t)p >= (uintptr_t)(intptr_t)MR_UCS_ERR_LAST; }

// Adds an event. Without memory it ends the process: a lost event would make its receiver wait for
// ever.
static mr_event *push(mr_engine *e, int kind, uint64_t tag, int status, void *data, uint64_t length) {
  if (e->event_count == e->event_room) {
    int want = e->event_room ? 2 * e->event_room : 256;
    mr_event *grown = realloc(e->events, want * sizeof *grown);
    if (!grown) abort();
    if (!e->events) atomic_fetch_add(&allocations, 1);
    e->events = grown;
    e->event_room = want;
  }
  mr_event *to = &e->events[e->event_count++];
  to->kind = kind;
  to->tag = tag;
  to->status = status;
  to->data = (uintptr_t)data;
  to->length = length;
  return to;
}

static void free_holding(mr_engine *e, uint64_t handle) {
  holding *h = (holding *)(uintptr_t)handle;
  if (h->lent)
    ucx.ucp_am_data_release(e->worker, h->data);
  else
    free_memory(h->data);
  free_memory(h);
}

// The engine of this thread's last call into UCX. UCX gives callbacks only one word of ours, which
// is the tag, so they find the engine here. Any function of UCX can make callbacks, not only
// ucp_worker_progress. Therefore each function here that calls UCX sets this variable first.
static _Thread_local mr_engine *running;

static int on_message(void *arg, const void *header, size_t header_length, void *data, size_t length,
                      const mr_am_recv_param_t *param) {
  if (header_length != MR_HEADER_BYTES) return MR_UCS_OK;  // a message of another program
  mr_engine *e = arg;
  holding *h = get_memory(sizeof *h);
  if (!h) abort();
  if (param->recv_attr & MR_AM_RECV_RNDV) {
    // Here data is a descriptor by which the bytes can be fetched, not the bytes. Our peers never
    // send in this way. The message is passed on without bytes, so its connection fails, and UCX
    // frees the descriptor.
    memcpy(push(e, MR_EVENT_MESSAGE, (uintptr_t)h, 0, NULL, 0)->header, header, MR_HEADER_BYTES);
    return MR_UCS_OK;
  }
  h->lent = (param->recv_attr & MR_AM_RECV_DATA) != 0;
  h->data = data;
  if (!h->lent) {
    h->data = mr_buffer(length);
    if (!h->data) abort();
    memcpy(h->data, data, length);
  }
  memcpy(push(e, MR_EVENT_MESSAGE, (uintptr_t)h, 0, h->data, length)->header, header, MR_HEADER_BYTES);
  return h->lent ? MR_UCS_INPROGRESS : MR_UCS_OK;
}

static void on_error(void *arg, void *ep, int status) {
  (void)ep;
  endpoint *p = arg;
  push(p->engine, MR_EVENT_EP_ERROR, p->tag, status, NULL, 0);
}

mr_engine *mr_create(const char *const *settings, int *status, const char **step) {
  mr_engine *e = get_memory(sizeof *e);
  if (!e) {
    *step = "allocate the engine", *status = MR_UCS_ERR_NO_MEMORY;
    return NULL;
  }
  e->efd = -1;
  running = e;
  // 1000 ns of timer slack for this thread. With the default of 50 µs each nap would end later.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  void *config;
  *step = "ucp_config_read";
  if ((*status = ucx.ucp_config_read(NULL, NULL, &config))) goto fail;
  for (int i = 0; settings[i]; i += 2) {
    if ((*status = ucx.ucp_config_modify(config, settings[i], settings[i + 1]))) {
      *step = settings[i];
      ucx.ucp_config_release(config);
      goto fail;
    }
  }
  mr_params_t params = {.field_mask = MR_PARAM_FEATURES, .features = MR_FEATURE_RMA | MR_FEATURE_AM | MR_FEATURE_WAKEUP};
  *step = "ucp_init";
  *status = ucx.ucp_init_version(MR_API_MAJOR, MR_API_MINOR, &params, config, &e->context);
  ucx.ucp_config_release(config);
  if (*status) goto fail;
  mr_worker_params_t worker = {.field_mask = MR_WORKER_PARAM_THREAD_MODE, .thread_mode = MR_THREAD_MODE_SERIALIZED};
  *step = "ucp_worker_create";
  if ((*status = ucx.ucp_worker_create(e->context, &worker, &e->worker))) goto fail;
  *step = "ucp_worker_get_efd";
  if ((*status = ucx.ucp_worker_get_efd(e->worker, &e->efd))) goto fail;
  mr_am_handler_param_t handler = {
      .field_mask = MR_AM_HANDLER_ID | MR_AM_HANDLER_FLAGS | MR_AM_HANDLER_CB | MR_AM_HANDLER_ARG,
      .flags = MR_AM_WHOLE_MESSAGE,
      .cb = on_message,
      .arg = e,
  };
  *step = "ucp_worker_set_am_recv_handler";
  if ((*status = ucx.ucp_worker_set_am_recv_handler(e->worker, &handler))) goto fail;
  mr_worker_attr_t attr = {.field_mask = MR_WORKER_ATTR_ADDRESS};
  *step = "ucp_worker_query";
  if ((*status = ucx.ucp_worker_query(e->worker, &attr))) goto fail;
  e->address = attr.address;
  e->address_length = attr.address_length;
  return e;
fail:
  mr_destroy(e);
  return NULL;
}

void mr_destroy(mr_engine *e) {
  running = e;
  for (int i = 0; i < e->endpoint_count; i++) mr_release_endpoint(e, i);
  for (int i = 0; i < e->memory_count; i++) ucx.ucp_mem_unmap(e->context, e->memories[i]);
  if (e->address) ucx.ucp_worker_release_address(e->worker, e->address);
  if (e->worker) {
    // Frees the messages that mr_wait has not returned yet. The returned ones are left alone,
    // because MR_OP_FREE may have freed them already.
    for (int i = e->returned; i < e->event_count; i++)
      if (e->events[i].kind == MR_EVENT_MESSAGE) free_holding(e, e->events[i].tag);
    ucx.ucp_worker_destroy(e->worker);
  }
  if (e->context) ucx.ucp_cleanup(e->context);
  free_memory(e->endpoints);
  free_memory(e->ops);
  free_memory(e->events);
  free_memory(e);
  running = NULL;
}

const void *mr_address(mr_engine *e, uint64_t *length) {
  *length = e->address_length;
  return e->address;
}

int mr_map(mr_engine *e, uint64_t base, uint64_t length, int memory_type, int *index) {
  if (e->memory_count == MAX_MEMORIES) return MR_UCS_ERR_NO_MEMORY;
  mr_mem_map_params_t p = {
      .field_mask = MR_MAP_ADDRESS | MR_MAP_LENGTH | MR_MAP_MEMORY_TYPE,
      .address = (void *)(uintptr_t)base,
      .length = length,
      .memory_type = memory_type,
  };
  int status = ucx.ucp_mem_map(e->context, &p, &e->memories[e->memory_count]);
  if (status) return status;
  e->memory_types[e->memory_count] = memory_type;
  *index = e->memory_count++;
  return 0;
}

int mr_pack_key(mr_engine *e, int memory, void **key, uint64_t *length) {
  size_t n = 0;
  int status = ucx.ucp_rkey_pack(e->context, e->memories[memory], key, &n);
  *length = n;
  return status;
}

void mr_free_key(void *key) { ucx.ucp_rkey_buffer_release(key); }

int mr_knows_cuda(mr_engine *e) {
  mr_context_attr_t a = {.field_mask = MR_ATTR_MEMORY_TYPES};
  return !ucx.ucp_context_query(e->context, &a) && (a.memory_types >> MR_MEMORY_TYPE_CUDA & 1);
}

int mr_connect(mr_engine *e, const void *address, uint64_t tag, int *index, const char **step) {
  running = e;
  int at = 0;
  while (at < e->endpoint_count && e->endpoints[at]) at++;
  if (at == e->endpoint_count) {
    int want = e->endpoint_count ? 2 * e->endpoint_count : 16;
    endpoint **grown = get_memory(want * sizeof *grown);
    *step = "allocate endpoints";
    if (!grown) return MR_UCS_ERR_NO_MEMORY;
    if (e->endpoints) memcpy(grown, e->endpoints, e->endpoint_count * sizeof *grown);
    free_memory(e->endpoints);
    e->endpoints = grown;
    e->endpoint_count = want;
  }
  endpoint *p = get_memory(sizeof *p);
  *step = "allocate an endpoint";
  if (!p) return MR_UCS_ERR_NO_MEMORY;
  p->engine = e;
  p->tag = tag;
  mr_ep_params_t params = {
      .field_mask = MR_EP_REMOTE_ADDRESS | MR_EP_ERR_MODE | MR_EP_ERR_HANDLER,
      .address = address,
      .err_mode = MR_ERR_MODE_PEER,
      .err_cb = on_error,
      .err_arg = p,
  };
  *step = "ucp_ep_create";
  int status = ucx.ucp_ep_create(e->worker, &params, &p->ep);
  if (status) {
    free_memory(p);
    return status;
  }
  e->endpoints[at] = p;
  *index = at;
  return 0;
}

// After a failure the caller closes the endpoint like any other, or does without the key.
int mr_unpack_key(mr_engine *e, int index, int at, const void *key) {
  running = e;
  endpoint *p = e->endpoints[index];
  int status = ucx.ucp_ep_rkey_unpack(p->ep, key, &p->keys[at]);
  if (status) p->keys[at] = NULL;
  return status;
}

// REQUIRES: the endpoint is closed, and no operation on it is outstanding.
void mr_release_endpoint(mr_engine *e, int index) {
  endpoint *p = e->endpoints[index];
  if (!p) return;
  running = e;
  for (int i = 0; i < MR_KEYS; i++)
    if (p->keys[i]) ucx.ucp_rkey_destroy(p->keys[i]);
  e->endpoints[index] = NULL;
  free_memory(p);
}

int mr_transports(mr_engine *e, int index, char *out, int room) {
  out[0] = 0;
  if (!ucx.ucp_ep_query) return 0;
  mr_transport_entry_t entries[32];
  mr_ep_attr_t *a = get_memory(sizeof *a);
  if (!a) return MR_UCS_ERR_NO_MEMORY;
  memset(entries, 0, sizeof entries);
  a->field_mask = MR_EP_ATTR_TRANSPORTS;
  a->entries = entries;
  a->num_entries = sizeof entries / sizeof entries[0];
  a->entry_size = sizeof entries[0];
  int status = ucx.ucp_ep_query(e->endpoints[index]->ep, a);
  int at = 0;
  // A library that knows the call, but not this field, leaves the names NULL.
  for (unsigned i = 0; !status && i < a->num_entries && entries[i].transport_name && at < room - 1; i++)
    at += snprintf(out + at, room - at, "%s%s/%s", i ? " " : "", entries[i].transport_name, entries[i].device_name);
  free_memory(a);
  return status;
}

mr_op *mr_submissions(mr_engine *e, int count) {
  if (count > e->op_room) {
    mr_op *grown = get_memory(2 * count * sizeof *grown);
    if (!grown) abort();
    free_memory(e->ops);
    e->ops = grown;
    e->op_room = 2 * count;
  }
  return e->ops;
}

static void on_got(void *request, int status, void *user_data) {
  push(running, MR_EVENT_GET, (uintptr_t)user_data, status, NULL, 0);
  ucx.ucp_request_free(request);
}

// The memory that a send uses until it is complete.
typedef struct {
  void *buffer;
  unsigned char header[MR_HEADER_BYTES];
} sending;

static void free_sending(sending *s) {
  free_memory(s->buffer);
  free_memory(s);
}

// The status is ignored: after a failed send, either the endpoint reports an error, or the peer's
// answer does not come.
static void on_sent(void *request, int status, void *user_data) {
  (void)status;
  free_sending(user_data);
  ucx.ucp_request_free(request);
}

static void on_closed(void *request, int status, void *user_data) {
  push(running, MR_EVENT_CLOSED, (uintptr_t)user_data, status, NULL, 0);
  ucx.ucp_request_free(request);
}

static void post(mr_engine *e, const mr_op *o) {
  endpoint *p = o->kind == MR_OP_FREE ? NULL : e->endpoints[o->endpoint];
  mr_request_param_t param = {.op_attr_mask = MR_OP_CALLBACK | MR_OP_USER_DATA};
  void *r;
  switch (o->kind) {
    case MR_OP_GET:
      param.op_attr_mask |= MR_OP_MEMH | MR_OP_MEMORY_TYPE;
      param.cb = on_got;
      param.user_data = (void *)(uintptr_t)o->tag;
      param.memh = e->memories[o->memory];
      param.memory_type = e->memory_types[o->memory];
      r = ucx.ucp_get_nbx(p->ep, (void *)(uintptr_t)o->local, o->length, o->remote, p->keys[o->key], &param);
      if (!r || is_error(r)) push(e, MR_EVENT_GET, o->tag, (int)(intptr_t)r, NULL, 0);
      return;
    case MR_OP_SEND:;
      param.op_attr_mask |= MR_OP_FLAGS | MR_OP_MEMORY_TYPE;
      param.flags = o->rendezvous ? MR_AM_SEND_RNDV : MR_AM_SEND_EAGER;
      param.cb = on_sent;
      sending *s = get_memory(sizeof *s);
      if (!s) abort();
      s->buffer = (void *)(uintptr_t)o->remote;
      memcpy(s->header, o->header, MR_HEADER_BYTES);
      param.user_data = s;
      r = ucx.ucp_am_send_nbx(p->ep, 0, s->header, MR_HEADER_BYTES, (void *)(uintptr_t)o->local, o->length, &param);
      if (!r || is_error(r)) free_sending(s);
      return;
    case MR_OP_CLOSE:
      param.op_attr_mask |= MR_OP_FLAGS;
      param.flags = MR_EP_CLOSE_FORCE;
      param.cb = on_closed;
      param.user_data = (void *)(uintptr_t)o->tag;
      r = ucx.ucp_ep_close_nbx(p->ep, &param);
      if (!r || is_error(r)) push(e, MR_EVENT_CLOSED, o->tag, (int)(intptr_t)r, NULL, 0);
      return;
    case MR_OP_FREE:
      free_holding(e, o->local);
      return;
  }
}

// NAP_NS is the length of one nap. A thread that naps over and over uses about a seventh of a
// processor. SPIN_FOR_NS is the longest time of polling around the expected end of a copy.
enum { NAP_NS = 50000, SPIN_FOR_NS = 260000 };

int mr_wait(mr_engine *e, int count, int64_t spin_ns, int64_t timeout_ns, int64_t nap_ns, mr_event **events) {
  running = e;
  if (e->returned) {
    // Callbacks outside of mr_wait, such as those during mr_connect, may have added events behind.
    memmove(e->events, e->events + e->returned, (e->event_count - e->returned) * sizeof *e->events);
    e->event_count -= e->returned;
  }
  for (int i = 0; i < count; i++) post(e, &e->ops[i]);
  int64_t begun = now_ns();
  if (count) e->last_activity = begun;
  for (;;) {
    unsigned progressed = 0, n;
    while ((n = ucx.ucp_worker_progress(e->worker))) progressed += n;
    if (e->event_count || atomic_exchange(&e->wake, 0)) break;
    int64_t now = now_ns();
    if (progressed) e->last_activity = now;
    if (now - begun >= timeout_ns) break;
    if (nap_ns >= 0) {
      int64_t waited = now - begun;
      // Nap before the expected end, and again when the copy is late by more than SPIN_FOR_NS: then
      // its end cannot be predicted, and polling would only use the processor.
      if (waited < nap_ns || waited > nap_ns + SPIN_FOR_NS) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
      continue;
    }
    if (now - e->last_activity < spin_ns) continue;
    atomic_store(&e->sleeping, 1);
    // The order matters: mr_signal stores wake and then reads sleeping. In another order a signal
    // between the two could be lost.
    if (!atomic_load(&e->wake) && ucx.ucp_worker_arm(e->worker) == MR_UCS_OK) {
      int64_t left = (timeout_ns - (now - begun)) / 1000000 + 1;
      struct pollfd f = {.fd = e->efd, .events = POLLIN};
      if (!atomic_load(&e->wake)) poll(&f, 1, (int)left);
    }
    atomic_store(&e->sleeping, 0);
  }
  if (e->event_count) e->last_activity = now_ns();
  e->returned = e->event_count;
  *events = e->events;
  return e->returned;
}

void mr_signal(mr_engine *e) {
  atomic_store(&e->wake, 1);
  if (atomic_load(&e->sleeping)) ucx.ucp_worker_signal(e->worker);
}

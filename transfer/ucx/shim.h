// The shim between Go and UCX: one table of functions out of a library that is
// loaded at run time, submission and completion rings in C memory, and no call
// back into Go. All but mr_signal, mr_buffer, mr_buffer_free and mr_allocations
// belong to the one thread that created the engine.
#ifndef MILLRACE_UCX_SHIM_H
#define MILLRACE_UCX_SHIM_H

#include <stdint.h>

enum { MR_OP_GET, MR_OP_SEND, MR_OP_CLOSE, MR_OP_FREE };
enum { MR_EVENT_GET, MR_EVENT_MESSAGE, MR_EVENT_EP_ERROR, MR_EVENT_CLOSED };

#define MR_HEADER_BYTES 24

// One order in the submission ring.
typedef struct {
  uint64_t tag;            // MR_OP_GET, MR_OP_CLOSE: comes back with the event
  uint64_t local, length;  // MR_OP_SEND: the message; MR_OP_FREE: the handle
  uint64_t remote;         // MR_OP_SEND: the buffer to be freed when it is gone, 0: none
  int32_t kind;
  int32_t endpoint;
  int32_t memory;
  int32_t rendezvous;      // MR_OP_SEND: 0 for eager, as all of ours are
  unsigned char header[MR_HEADER_BYTES];  // MR_OP_SEND
} mr_op;

// One entry of the completion ring.
typedef struct {
  uint64_t tag;           // of the order or of the endpoint; of a message: the handle for MR_OP_FREE
  uint64_t data, length;  // MR_EVENT_MESSAGE: its bytes
  int32_t kind;
  int32_t status;
  unsigned char header[MR_HEADER_BYTES];  // MR_EVENT_MESSAGE
} mr_event;

typedef struct mr_engine mr_engine;

// Loads the library and resolves all symbols; a second path is refused.
int mr_load(const char *path, char *err, int room);
void mr_set_environment(const char *name, const char *value);
void mr_version(unsigned *major, unsigned *minor, unsigned *release);
const char *mr_status_text(int status);

// settings: names and values, alternating, ended by NULL.
mr_engine *mr_create(const char *const *settings, uint64_t *memory_types, int *status, const char **step);
void mr_destroy(mr_engine *e);
const void *mr_address(mr_engine *e, uint64_t *length);
int mr_map(mr_engine *e, uint64_t base, uint64_t length, int memory_type, int *index);
int mr_pack_key(mr_engine *e, int memory, void **key, uint64_t *length);
void mr_free_key(void *key);
int mr_connect(mr_engine *e, const void *address, const void *key, uint64_t tag, int *endpoint, const char **step);
void mr_release_endpoint(mr_engine *e, int endpoint);
int mr_transports(mr_engine *e, int endpoint, char *out, int room);

// The submission ring: room for at least count orders. Valid until the next call.
mr_op *mr_submissions(mr_engine *e, int count);
// Posts the first count orders, then waits until there are events, mr_signal was
// called or the time is over. With nap_ns < 0 it sleeps until UCX wakes it;
// otherwise, with copies of a device outstanding that will be over in nap_ns or a
// little later, it naps until then and asks: to arm UCX's wake-up would hold such
// copies up. Returns the number of events and where they are:
// valid until the next call.
int mr_wait(mr_engine *e, int count, int64_t spin_ns, int64_t timeout_ns, int64_t nap_ns, mr_event **events);
void mr_signal(mr_engine *e);

void *mr_buffer(uint64_t length);
void mr_buffer_free(void *p);
// Allocations of the shim that were not freed.
int64_t mr_allocations(void);

#endif

// The shim between Go and UCX. It loads UCX's library at run time into one table of functions. Go
// writes orders into a submission ring and reads events from a completion ring, both in C memory. C
// never calls Go.
//
// All functions of an engine must be called by the thread that created it, except mr_signal. Any
// thread may call mr_buffer, mr_buffer_free and mr_allocations.
#ifndef MILLRACE_UCX_SHIM_H
#define MILLRACE_UCX_SHIM_H

#include <stdint.h>

enum { MR_OP_GET, MR_OP_SEND, MR_OP_CLOSE, MR_OP_FREE };
enum { MR_EVENT_GET, MR_EVENT_MESSAGE, MR_EVENT_EP_ERROR, MR_EVENT_CLOSED };

#define MR_HEADER_BYTES 24

// The largest number of keys of one endpoint.
#define MR_KEYS 2

// One order in the submission ring.
typedef struct {
  uint64_t tag;            // MR_OP_GET, MR_OP_CLOSE: the tag of the event that follows
  uint64_t local, length;  // MR_OP_GET: the target; MR_OP_SEND: the message; MR_OP_FREE: the handle
  uint64_t remote;         // MR_OP_GET: the source; MR_OP_SEND: a buffer to free after it; 0: none
  int32_t kind;            // MR_OP_GET and so on
  int32_t endpoint;        // an index from mr_connect
  int32_t memory;          // MR_OP_GET: the index from mr_map of the target's memory
  int32_t rendezvous;      // MR_OP_SEND: 0 for an eager send; only tests use others
  int32_t key;             // MR_OP_GET: the key from mr_unpack_key
  unsigned char header[MR_HEADER_BYTES];  // MR_OP_SEND
} mr_op;

// One entry of the completion ring.
typedef struct {
  uint64_t tag;           // of the order or endpoint; MR_EVENT_MESSAGE: the handle for MR_OP_FREE
  uint64_t data, length;  // MR_EVENT_MESSAGE: its bytes
  int32_t kind;           // MR_EVENT_GET and so on
  int32_t status;         // UCX's; 0: success
  unsigned char header[MR_HEADER_BYTES];  // MR_EVENT_MESSAGE
} mr_event;

typedef struct mr_engine mr_engine;

// Loads the library at path and resolves all symbols. Returns 0, or -1 with the cause in err, which
// has space for room bytes. A call with the same path does nothing; one with another path fails.
int mr_load(const char *path, char *err, int room);
// Sets a variable that UCX reads, unless it is set already.
void mr_set_environment(const char *name, const char *value, int replace);
void mr_version(unsigned *major, unsigned *minor, unsigned *release);
const char *mr_status_text(int status);

// Makes an engine. settings are names and values in turn; NULL ends them. After a failure it
// returns NULL, and status and step say why: step is the function or the setting that failed.
mr_engine *mr_create(const char *const *settings, int *status, const char **step);
void mr_destroy(mr_engine *e);
const void *mr_address(mr_engine *e, uint64_t *length);
int mr_map(mr_engine *e, uint64_t base, uint64_t length, int memory_type, int *index);
int mr_pack_key(mr_engine *e, int memory, void **key, uint64_t *length);
void mr_free_key(void *key);
// Returns whether the library can register the memory of NVIDIA GPUs.
int mr_knows_cuda(mr_engine *e);
int mr_connect(mr_engine *e, const void *address, uint64_t tag, int *endpoint, const char **step);
// Unpacks a key of the peer as number at, below MR_KEYS, of the endpoint.
int mr_unpack_key(mr_engine *e, int endpoint, int at, const void *key);
void mr_release_endpoint(mr_engine *e, int endpoint);
int mr_transports(mr_engine *e, int endpoint, char *out, int room);

// Returns a submission ring with room for at least count orders. It is valid until the next call.
mr_op *mr_submissions(mr_engine *e, int count);
// Posts the first count orders. Then it waits until there are events, mr_signal was called, or
// timeout_ns are over. It returns the number of events; they are valid until the next call.
//
// nap_ns < 0: it polls while the last activity is less than spin_ns ago, then sleeps until UCX
// wakes it. Otherwise device copies are outstanding that are expected to end after about nap_ns. It
// naps until then, and polls: arming UCX's wake-up would delay such copies.
int mr_wait(mr_engine *e, int count, int64_t spin_ns, int64_t timeout_ns, int64_t nap_ns, mr_event **events);
// Makes mr_wait return.
void mr_signal(mr_engine *e);

// Returns memory that is not zeroed, or NULL.
void *mr_buffer(uint64_t length);
void mr_buffer_free(void *p);
// Returns the number of the shim's allocations that are not freed yet.
int64_t mr_allocations(void);

#endif

// The shim between Go and the CUDA driver: one table of functions out of a
// library that is loaded at run time, and integers only. Every call that needs a
// context makes it current first, in the same crossing, because a goroutine may
// be on another thread each time. All functions return a CUresult, or
// MRC_NO_MEMORY; all may be called from any thread once mrc_load returned.
#ifndef MILLRACE_CUDA_SHIM_H
#define MILLRACE_CUDA_SHIM_H

#include <stdint.h>

enum { MRC_NO_MEMORY = -1 };
enum { MRC_HOST_TO_DEVICE, MRC_DEVICE_TO_HOST, MRC_DEVICE_TO_DEVICE };

// One copy of a batch.
typedef struct {
  uint64_t to, from, bytes;
  int32_t kind;
  int32_t pad;
} mrc_copy;

// One launch of a batch: its parameters are bytes of the batch's, laid out as the
// kernel declares them.
typedef struct {
  uint64_t function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  uint32_t parameters_at, parameters_bytes;
  uint32_t pad;
} mrc_launch;

typedef struct {
  uint64_t total_bytes;
  uint8_t uuid[16];
  char name[128];
  char pci_bus_id[32];
  int32_t major, minor;
  int32_t multiprocessors;
  int32_t copy_engines;
  int32_t unified_addressing;
  int32_t integrated;
  int32_t l2_bytes;
  int32_t shared_bytes;
  int32_t read_only_registration;
  int32_t ipc, pageable;
  int32_t pad;
} mrc_device;

// Loads the library and resolves all symbols; a second path is refused.
int mrc_load(const char *path, char *err, int room);
const char *mrc_error_name(int code);
const char *mrc_error_text(int code);
// Allocations of the shim that were not freed.
int64_t mrc_allocations(void);

int mrc_init(int *version, int *count);
int mrc_describe(int ordinal, mrc_device *out);
int mrc_can_access(int ordinal, int peer, int *can);
int mrc_retain(int ordinal, uint64_t *context);
int mrc_release(int ordinal);
int mrc_make_current(uint64_t context);
int mrc_memory(uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes);

// Allocates after making and before freeing so many allocations of 4 KiB.
int mrc_alloc(uint64_t context, uint64_t bytes, int throwaways, uint64_t *pointer);
int mrc_free(uint64_t context, uint64_t pointer);
int mrc_buffer_id(uint64_t context, uint64_t pointer, uint64_t *id);
// handle: 64 bytes.
int mrc_ipc_export(uint64_t context, uint64_t pointer, void *handle);
int mrc_ipc_open(uint64_t context, const void *handle, uint64_t *pointer);
int mrc_ipc_close(uint64_t context, uint64_t pointer);

int mrc_stream_create(uint64_t context, int urgent, uint64_t *stream);
int mrc_stream_destroy(uint64_t context, uint64_t stream);
int mrc_stream_sync(uint64_t context, uint64_t stream);
int mrc_stream_wait(uint64_t context, uint64_t stream, uint64_t event);
// A polled event raises no interrupt when it is reached: who records one between
// copies of the same stream keeps no gap between them.
enum { MRC_EVENT_OWN, MRC_EVENT_SHARED, MRC_EVENT_POLLED };
int mrc_event_create(uint64_t context, int kind, uint64_t *event);
int mrc_event_destroy(uint64_t context, uint64_t event);
int mrc_event_record(uint64_t context, uint64_t event, uint64_t stream);
int mrc_event_query(uint64_t context, uint64_t event);
// Sleeps for nap_ns, then asks for an event until it is reached, for spin_ns, at least once.
// Returns what the driver said last, how often it was asked, and how late the sleep ended.
int mrc_event_await(uint64_t context, uint64_t event, int64_t nap_ns, int64_t spin_ns, int *looks, int64_t *late_ns);
int mrc_event_sync(uint64_t context, uint64_t event);
int mrc_event_export(uint64_t context, uint64_t event, void *handle);
int mrc_event_open(uint64_t context, const void *handle, uint64_t *event);

// Submits the copies in order and then records event, if it is not 0. submitted
// is how many were.
int mrc_copy_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int count, uint64_t event, int *submitted);
int mrc_memset(uint64_t context, uint64_t stream, uint64_t pointer, uint8_t value, uint64_t bytes);
// Copy and wait.
int mrc_read(uint64_t context, uint64_t stream, void *to, uint64_t from, uint64_t bytes);
int mrc_write(uint64_t context, uint64_t stream, uint64_t to, const void *from, uint64_t bytes);
int mrc_register(uint64_t context, void *memory, uint64_t bytes, int read_only);
int mrc_unregister(uint64_t context, void *memory);
int mrc_host_pointer(uint64_t context, void *memory, uint64_t *pointer);

// image: a CUBIN, which says how long it is.
int mrc_module_load(uint64_t context, const void *image, uint64_t *module);
int mrc_module_unload(uint64_t context, uint64_t module);
int mrc_module_function(uint64_t context, uint64_t module, const char *name, uint64_t *function);
// Lets a kernel have more dynamic shared memory than the 48 KiB that all have.
int mrc_function_shared(uint64_t context, uint64_t function, int bytes);
// Submits the copies and then the launches, in order, and then records event, if it is not
// 0. submitted is how many copies and launches were.
int mrc_launch_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int copy_count, const mrc_launch *launches, int count,
                     const void *parameters, uint64_t event, int *submitted);

#endif

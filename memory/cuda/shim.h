// The shim between Go and the CUDA driver. It loads the driver's library at run time into one table
// of functions. All parameters are integers, or pointers to plain memory.
//
// Each function that takes a context makes it current before its other calls, within the same call
// from Go, because a goroutine can be on another thread each time. A function that returns an int
// returns a CUresult, 0 for success, or MRC_NO_MEMORY, if its comment says nothing else. After
// mrc_load has returned, all functions may be called from any thread.
#ifndef MILLRACE_CUDA_SHIM_H
#define MILLRACE_CUDA_SHIM_H

#include <stdint.h>

enum { MRC_NO_MEMORY = -1 };  // the host has no memory for the shim
enum { MRC_HOST_TO_DEVICE, MRC_DEVICE_TO_HOST, MRC_DEVICE_TO_DEVICE };

// One copy of a batch.
typedef struct {
  uint64_t to, from, bytes;  // two addresses, and a length; a copy of 0 bytes is skipped
  int32_t kind;              // MRC_HOST_TO_DEVICE and so on
  int32_t pad;
} mrc_copy;

// One launch of a batch. Its parameters are a range of the batch's parameter bytes, laid out as the
// kernel declares them.
typedef struct {
  uint64_t function;
  uint32_t grid[3], block[3];  // blocks in the grid and threads in a block, by dimension
  uint32_t shared_bytes;       // dynamic shared memory of each block
  uint32_t parameters_at, parameters_bytes;  // the range; 0 bytes: the kernel has no parameters
  uint32_t pad;
} mrc_launch;

typedef struct {
  uint64_t total_bytes;
  uint8_t uuid[16];
  char name[128];
  char pci_bus_id[32];
  int32_t major, minor;
  int32_t multiprocessors;
  int32_t shared_bytes;
  int32_t read_only_registration;
  int32_t ipc, pageable;
  // 0 also if the driver does not know the attribute.
  int32_t direct_rdma, dma_buf, flush_options, writes_ordering;
  int32_t pad;
} mrc_device;

// Loads the library at path and resolves all symbols. Returns 0, or -1 with the cause in err, which
// has space for room bytes. A call with the same path does nothing; one with another path fails.
int mrc_load(const char *path, char *err, int room);
const char *mrc_error_name(int code);
const char *mrc_error_text(int code);
// Returns the number of the shim's own host allocations that are not freed yet.
int64_t mrc_allocations(void);

// Initialises the driver. version is that of CUDA, 13000 for 13.0; count is the number of devices.
int mrc_init(int *version, int *count);
int mrc_describe(int ordinal, mrc_device *out);
int mrc_can_access(int ordinal, int peer, int *can);
int mrc_retain(int ordinal, uint64_t *context);
int mrc_release(int ordinal);
int mrc_make_current(uint64_t context);
int mrc_memory(uint64_t context, uint64_t *free_bytes, uint64_t *total_bytes);

// Allocates memory. It first makes throwaways allocations of 4 KiB and frees them afterwards. The
// driver numbers allocations, so this changes the memory's buffer id. 0: none.
int mrc_alloc(uint64_t context, uint64_t bytes, int throwaways, uint64_t *pointer);
int mrc_free(uint64_t context, uint64_t pointer);
// Returns the driver's number of an allocation, which is unique in the process.
int mrc_buffer_id(uint64_t context, uint64_t pointer, uint64_t *id);
// A handle has 64 bytes.
int mrc_ipc_export(uint64_t context, uint64_t pointer, void *handle);
int mrc_ipc_open(uint64_t context, const void *handle, uint64_t *pointer);
int mrc_ipc_close(uint64_t context, uint64_t pointer);

// urgent: 0 for the lowest priority, otherwise the highest.
int mrc_stream_create(uint64_t context, int urgent, uint64_t *stream);
int mrc_stream_destroy(uint64_t context, uint64_t stream);
int mrc_stream_sync(uint64_t context, uint64_t stream);
// Kinds of events. A thread that waits for a BLOCKING event sleeps. A POLLED event raises no
// interrupt when it is reached, so it makes no gap between two copies of a stream when it is
// recorded between them.
enum { MRC_EVENT_BLOCKING, MRC_EVENT_POLLED };
int mrc_event_create(uint64_t context, int kind, uint64_t *event);
int mrc_event_destroy(uint64_t context, uint64_t event);
int mrc_event_record(uint64_t context, uint64_t event, uint64_t stream);
int mrc_event_query(uint64_t context, uint64_t event);
// Queries an event until it is reached or spin_ns are over, at least once. Returns the driver's
// last answer.
int mrc_event_await(uint64_t context, uint64_t event, int64_t spin_ns);
int mrc_event_sync(uint64_t context, uint64_t event);

// Submits the copies in order, then records event if it is not 0. submitted is the number of copies
// that were submitted, also after an error.
int mrc_copy_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int count, uint64_t event, int *submitted);
// Waits until all devices see the writes of network cards to the memory of the context's device.
int mrc_flush_writes(uint64_t context);
int mrc_memset(uint64_t context, uint64_t stream, uint64_t pointer, uint8_t value, uint64_t bytes);
// mrc_read and mrc_write copy between host and device, and return when the copy is complete.
int mrc_read(uint64_t context, uint64_t stream, void *to, uint64_t from, uint64_t bytes);
int mrc_write(uint64_t context, uint64_t stream, uint64_t to, const void *from, uint64_t bytes);
// Page-locks host memory, for all contexts of the process.
int mrc_register(uint64_t context, void *memory, uint64_t bytes, int read_only);
int mrc_unregister(uint64_t context, void *memory);
int mrc_host_pointer(uint64_t context, void *memory, uint64_t *pointer);

// image is a CUBIN or PTX. A CUBIN states its own length; PTX ends with a zero byte.
int mrc_module_load(uint64_t context, const void *image, uint64_t *module);
int mrc_module_unload(uint64_t context, uint64_t module);
int mrc_module_function(uint64_t context, uint64_t module, const char *name, uint64_t *function);
// Sets the dynamic shared memory that launches of a kernel may have. Without it they may have
// 48 KiB.
int mrc_function_shared(uint64_t context, uint64_t function, int bytes);
// Submits the copies, then the launches, each in order, then records event if it is not 0.
// submitted is the number of copies and launches that were submitted, also after an error.
int mrc_launch_batch(uint64_t context, uint64_t stream, const mrc_copy *copies, int copy_count, const mrc_launch *launches, int count,
                     const void *parameters, uint64_t event, int *submitted);

#endif

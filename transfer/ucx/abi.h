// The part of the UCP interface that the shim uses. The layout is that of every libucp.so.0 since
// 1.13 on LP64 Linux: upstream's structures have grown only at their ends, and a field is used only
// if its mask bit is set. The shim zeroes each structure, and leaves room behind it for fields that
// newer versions may read. TestStructuresAgreeWithTheHeaders compares all of it with the headers of
// the wheel.
#ifndef MILLRACE_UCX_ABI_H
#define MILLRACE_UCX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
  MR_UCS_OK = 0,
  MR_UCS_INPROGRESS = 1,
  MR_UCS_ERR_NO_MEMORY = -4,
  MR_UCS_ERR_BUSY = -15,
  MR_UCS_ERR_LAST = -100,

  MR_API_MAJOR = 1,
  MR_API_MINOR = 13,

  MR_PARAM_FEATURES = 1 << 0,
  MR_FEATURE_RMA = 1 << 1,
  MR_FEATURE_WAKEUP = 1 << 4,
  MR_FEATURE_AM = 1 << 6,

  MR_ATTR_MEMORY_TYPES = 1 << 2,
  MR_MEMORY_TYPE_CUDA = 1,

  MR_WORKER_PARAM_THREAD_MODE = 1 << 0,
  MR_THREAD_MODE_SERIALIZED = 1,
  MR_WORKER_ATTR_ADDRESS = 1 << 1,

  MR_MAP_ADDRESS = 1 << 0,
  MR_MAP_LENGTH = 1 << 1,
  MR_MAP_MEMORY_TYPE = 1 << 4,

  MR_EP_REMOTE_ADDRESS = 1 << 0,
  MR_EP_ERR_MODE = 1 << 1,
  MR_EP_ERR_HANDLER = 1 << 2,
  MR_ERR_MODE_PEER = 1,
  MR_EP_ATTR_TRANSPORTS = 1 << 3,
  MR_EP_CLOSE_FORCE = 1 << 0,

  MR_OP_CALLBACK = 1 << 1,
  MR_OP_USER_DATA = 1 << 2,
  MR_OP_FLAGS = 1 << 4,
  MR_OP_MEMORY_TYPE = 1 << 6,
  MR_OP_MEMH = 1 << 8,

  MR_AM_WHOLE_MESSAGE = 1 << 0,
  MR_AM_HANDLER_ID = 1 << 0,
  MR_AM_HANDLER_FLAGS = 1 << 1,
  MR_AM_HANDLER_CB = 1 << 2,
  MR_AM_HANDLER_ARG = 1 << 3,
  MR_AM_SEND_EAGER = 1 << 1,
  MR_AM_SEND_RNDV = 1 << 2,
  MR_AM_RECV_DATA = 1 << 16,
  MR_AM_RECV_RNDV = 1 << 17,
};

#define MR_ROOM uint64_t room_[32]

typedef struct {
  uint64_t field_mask;
  uint64_t features;
  MR_ROOM;
} mr_params_t;

typedef struct {
  uint64_t field_mask;
  size_t request_size;
  int thread_mode;
  uint64_t memory_types;
  MR_ROOM;
} mr_context_attr_t;

typedef struct {
  uint64_t field_mask;
  int thread_mode;
  MR_ROOM;
} mr_worker_params_t;

typedef struct {
  uint64_t field_mask;
  int thread_mode;
  uint32_t address_flags;
  void *address;
  size_t address_length;
  MR_ROOM;
} mr_worker_attr_t;

typedef struct {
  uint64_t field_mask;
  void *address;
  size_t length;
  unsigned flags;
  unsigned prot;
  int memory_type;
  MR_ROOM;
} mr_mem_map_params_t;

typedef void (*mr_err_cb_t)(void *arg, void *ep, int status);

typedef struct {
  uint64_t field_mask;
  const void *address;
  int err_mode;
  mr_err_cb_t err_cb;
  void *err_arg;
  MR_ROOM;
} mr_ep_params_t;

typedef struct {
  const char *transport_name;
  const char *device_name;
} mr_transport_entry_t;

typedef struct {
  uint64_t field_mask;
  char name[32];
  struct sockaddr_storage local;
  struct sockaddr_storage remote;
  mr_transport_entry_t *entries;
  unsigned num_entries;
  size_t entry_size;
  MR_ROOM;
} mr_ep_attr_t;

typedef void (*mr_send_cb_t)(void *request, int status, void *user_data);

typedef struct {
  uint32_t op_attr_mask;
  uint32_t flags;
  void *request;
  mr_send_cb_t cb;
  uint64_t datatype;
  void *user_data;
  void *reply_buffer;
  int memory_type;
  void *recv_info;
  void *memh;
  MR_ROOM;
} mr_request_param_t;

typedef struct {
  uint64_t recv_attr;
  void *reply_ep;
} mr_am_recv_param_t;

typedef int (*mr_am_cb_t)(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const mr_am_recv_param_t *param);

typedef struct {
  uint64_t field_mask;
  unsigned id;
  uint32_t flags;
  mr_am_cb_t cb;
  void *arg;
  MR_ROOM;
} mr_am_handler_param_t;

#endif

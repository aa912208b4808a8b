#ifndef MILLRACE_NVML_SHIM_H
#define MILLRACE_NVML_SHIM_H

// The functions of NVML that are used, found by name in a library that was loaded: the program is linked with none of
// them, and starts where there is no driver. Structures are those of NVML's ABI, which never changes under a name.

typedef struct mrn_device_s *mrn_device;
typedef struct mrn_set_s *mrn_set;

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} mrn_pci;

typedef struct {
  unsigned long long total, free, used;
} mrn_memory;

typedef struct {
  unsigned gpu, memory;
} mrn_utilization;

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} mrn_process;

typedef struct {
  mrn_device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} mrn_event;

// Each entry: name without "nvml", parameters, arguments.
#define MRN_CALLS(X)                                                                                                  \
  X(SystemGetDriverVersion, (char *a, unsigned b), (a, b))                                                            \
  X(SystemGetCudaDriverVersion_v2, (int *a), (a))                                                                     \
  X(DeviceGetCount_v2, (unsigned *a), (a))                                                                            \
  X(DeviceGetHandleByIndex_v2, (unsigned a, mrn_device *b), (a, b))                                                   \
  X(DeviceGetHandleByUUID, (const char *a, mrn_device *b), (a, b))                                                    \
  X(DeviceGetUUID, (mrn_device a, char *b, unsigned c), (a, b, c))                                                    \
  X(DeviceGetName, (mrn_device a, char *b, unsigned c), (a, b, c))                                                    \
  X(DeviceGetPciInfo_v3, (mrn_device a, mrn_pci *b), (a, b))                                                          \
  X(DeviceGetMemoryInfo, (mrn_device a, mrn_memory *b), (a, b))                                                       \
  X(DeviceGetCudaComputeCapability, (mrn_device a, int *b, int *c), (a, b, c))                                        \
  X(DeviceGetMigMode, (mrn_device a, unsigned *b, unsigned *c), (a, b, c))                                            \
  X(DeviceGetMaxMigDeviceCount, (mrn_device a, unsigned *b), (a, b))                                                  \
  X(DeviceGetMigDeviceHandleByIndex, (mrn_device a, unsigned b, mrn_device *c), (a, b, c))                            \
  X(DeviceGetGpuInstanceId, (mrn_device a, unsigned *b), (a, b))                                                      \
  X(DeviceGetComputeInstanceId, (mrn_device a, unsigned *b), (a, b))                                                  \
  X(DeviceGetCpuAffinityWithinScope, (mrn_device a, unsigned b, unsigned long *c, unsigned d), (a, b, c, d))          \
  X(DeviceGetNvLinkState, (mrn_device a, unsigned b, unsigned *c), (a, b, c))                                         \
  X(DeviceGetNvLinkRemoteDeviceType, (mrn_device a, unsigned b, unsigned *c), (a, b, c))                              \
  X(DeviceGetNvLinkRemotePciInfo_v2, (mrn_device a, unsigned b, mrn_pci *c), (a, b, c))                               \
  X(DeviceGetP2PStatus, (mrn_device a, mrn_device b, unsigned c, unsigned *d), (a, b, c, d))                          \
  X(DeviceGetUtilizationRates, (mrn_device a, mrn_utilization *b), (a, b))                                            \
  X(DeviceGetClockInfo, (mrn_device a, unsigned b, unsigned *c), (a, b, c))                                           \
  X(DeviceGetCurrentClocksThrottleReasons, (mrn_device a, unsigned long long *b), (a, b))                             \
  X(DeviceGetPowerUsage, (mrn_device a, unsigned *b), (a, b))                                                         \
  X(DeviceGetTemperature, (mrn_device a, unsigned b, unsigned *c), (a, b, c))                                         \
  X(DeviceGetTotalEccErrors, (mrn_device a, unsigned b, unsigned c, unsigned long long *d), (a, b, c, d))             \
  X(DeviceGetComputeRunningProcesses_v3, (mrn_device a, unsigned *b, mrn_process *c), (a, b, c))                      \
  X(DeviceGetSupportedEventTypes, (mrn_device a, unsigned long long *b), (a, b))                                      \
  X(DeviceRegisterEvents, (mrn_device a, unsigned long long b, mrn_set c), (a, b, c))                                 \
  X(EventSetCreate, (mrn_set *a), (a))                                                                                \
  X(EventSetFree, (mrn_set a), (a))                                                                                   \
  X(EventSetWait_v2, (mrn_set a, mrn_event *b, unsigned c), (a, b, c))

#define MRN_DECLARE(name, parameters, arguments) int mrn_##name parameters;
MRN_CALLS(MRN_DECLARE)
#undef MRN_DECLARE

// mrn_load loads a library and finds its functions; on failure it returns why. A process has one.
const char *mrn_load(const char *library);
int mrn_init(void);
int mrn_shutdown(void);
const char *mrn_text(int code);

#endif

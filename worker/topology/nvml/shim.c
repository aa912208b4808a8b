#include "shim.h"

#include <dlfcn.h>
#include <stddef.h>

// What NVML itself returns for a function that a driver lacks.
#define FUNCTION_NOT_FOUND 13

static int (*found_init)(void), (*found_shutdown)(void);
static const char *(*found_text)(int);

#define MRN_DEFINE(name, parameters, arguments)                      \
  static int(*found_##name) parameters;                              \
  int mrn_##name parameters { return found_##name ? found_##name arguments : FUNCTION_NOT_FOUND; }
MRN_CALLS(MRN_DEFINE)

const char *mrn_load(const char *library) {
  void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (h == NULL) return dlerror();
  *(void **)&found_init = dlsym(h, "nvmlInit_v2");
  *(void **)&found_shutdown = dlsym(h, "nvmlShutdown");
  *(void **)&found_text = dlsym(h, "nvmlErrorString");
  if (found_init == NULL || found_shutdown == NULL || found_text == NULL) {
    dlclose(h);
    return "it is no NVML";
  }
#define MRN_FIND(name, parameters, arguments) *(void **)&found_##name = dlsym(h, "nvml" #name);
  MRN_CALLS(MRN_FIND)
  return NULL;
}

int mrn_init(void) { return found_init(); }
int mrn_shutdown(void) { return found_shutdown(); }
const char *mrn_text(int code) { return found_text ? found_text(code) : "unknown"; }

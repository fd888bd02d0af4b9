// Loads libshoal.so (first argument) with RTLD_LOCAL, as interpreters do. Then the library loads a plug-in (second
// argument), which needs C++ symbols of the library.
#include <dlfcn.h>
#include <shoal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  // ISO C has no conversion from void* to a function pointer, so the bytes are copied.
  shoal_status (*load)(const char* file);
  shoal_device* (*by_name)(const char* name);
  const char* (*last_error)(void);
  void* symbols[] = {dlsym(library, "shoal_plugin_load"), dlsym(library, "shoal_device_by_name"),
                     dlsym(library, "shoal_last_error")};
  memcpy(&load, &symbols[0], sizeof load);
  memcpy(&by_name, &symbols[1], sizeof by_name);
  memcpy(&last_error, &symbols[2], sizeof last_error);
  const bool good = load(argv[2]) == SHOAL_OK && by_name("SIMPLE0") != NULL;
  if (!good) fprintf(stderr, "%s\n", last_error());
  return good ? 0 : 1;
}

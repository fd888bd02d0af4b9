// Library that records the run times of kernels. The steps times-... of scripts/gpu_check compile this library. The
// driver loads the library into a program that starts with CUDA_INJECTION64_PATH=FILE.so. CUPTI (loaded from the path
// in KERNEL_TIMES_CUPTI) gives the library a record of each kernel, including kernels in CUDA graphs. For each record,
// the library writes a line to the file KERNEL_TIMES_FILE: start (ns), end (ns), symbol.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// Declarations from cupti_activity.h. With these copies, the header is not needed.
constexpr int kConcurrentKernel = 10;
constexpr uint32_t kForced = 1;

/// The first members of CUpti_ActivityKernel4. All later versions begin with the same members.
struct Kernel {
  int32_t kind;
  int32_t configuration[3];
  uint64_t start, end, completed;
  int32_t places[9];
  int32_t sizes[5];
  int64_t grid;
  const char* name;
};
static_assert(offsetof(Kernel, start) == 16 && offsetof(Kernel, name) == 104);

using Requested = void (*)(uint8_t** buffer, size_t* size, size_t* records);
using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t used);

int (*enable)(int kind);
int (*register_callbacks)(Requested, Completed);
int (*next_record)(uint8_t* buffer, size_t used, Kernel** record);
int (*flush)(uint32_t flag);
std::FILE* file;

void give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  constexpr size_t kBytes = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBytes));
  *size = *buffer == nullptr ? 0 : kBytes;
  *records = 0;  // CUPTI may put any number of records into the buffer
}

void take_buffer(void*, uint32_t, uint8_t* buffer, size_t, size_t used) {
  Kernel* record = nullptr;
  while (used > 0 && next_record(buffer, used, &record) == 0) {
    if (record->kind != kConcurrentKernel || record->end == 0) continue;  // not a kernel, or a kernel without times
    std::fprintf(file, "%llu %llu %s\n", static_cast<unsigned long long>(record->start),
                 static_cast<unsigned long long>(record->end), record->name);
  }
  std::free(buffer);
}

void finish() {
  flush(kForced);
  std::fclose(file);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

/// The driver calls this function during its initialisation. After a failure, the function writes no file.
extern "C" int InitializeInjection() {
  void* library = dlopen(std::getenv("KERNEL_TIMES_CUPTI"), RTLD_NOW);
  if (library == nullptr || !find(library, "cuptiActivityEnable", enable) ||
      !find(library, "cuptiActivityRegisterCallbacks", register_callbacks) ||
      !find(library, "cuptiActivityGetNextRecord", next_record) || !find(library, "cuptiActivityFlushAll", flush)) {
    std::fprintf(stderr, "kernel_times: %s\n", library == nullptr ? dlerror() : "CUPTI lacks a function");
    return 1;
  }
  int status = register_callbacks(give_buffer, take_buffer);
  if (status == 0) status = enable(kConcurrentKernel);
  if (status != 0) {
    std::fprintf(stderr, "kernel_times: CUPTI gives no records of kernels, error %d\n", status);
  } else if ((file = std::fopen(std::getenv("KERNEL_TIMES_FILE"), "w")) != nullptr) {
    std::atexit(finish);
  }
  return 1;
}

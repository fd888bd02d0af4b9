// Sums the times of kernels by name, for the steps times-token and times-prompt of scripts/gpu_check, which compile it.
// The driver loads it into a program that is started with CUDA_INJECTION64_PATH=FILE.so; it asks CUPTI
// (SHOAL_CUPTI_LIBRARY) for a record of each kernel, also of those in graphs, and writes JSON to the file
// SHOAL_KERNEL_TIMES when the program ends. A kernel that starts early waits for the one before it: only the time after
// the end of all kernels that ended earlier counts as its own.
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

// Of cupti_activity.h, which need not be there.
using Result = int;
constexpr Result kSuccess = 0;
constexpr int kConcurrentKernel = 10;
constexpr uint32_t kForced = 1;

/// How CUpti_ActivityKernel4 and all later ones begin.
struct Kernel {
  int32_t kind;
  int32_t configuration[3];
  uint64_t start, end, completed;  ///< in ns
  int32_t places[9];
  int32_t sizes[5];
  int64_t grid;
  const char* name;
};
static_assert(offsetof(Kernel, start) == 16 && offsetof(Kernel, name) == 104);

using Requested = void (*)(uint8_t** buffer, size_t* size, size_t* records);
using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t used);

struct Cupti {
  Result (*enable)(int kind);
  Result (*register_callbacks)(Requested, Completed);
  Result (*next_record)(uint8_t* buffer, size_t used, Kernel** record);
  Result (*flush)(uint32_t flag);
};

struct Sum {
  int64_t count = 0;
  uint64_t ns = 0;
};

struct Launch {
  uint64_t end, start;
  std::string name;
};

Cupti cupti;
std::mutex mutex;
std::vector<Launch> launches;

constexpr size_t kBufferBytes = 8 << 20;

void give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records = 0;  // as many as fit
}

void take_buffer(void*, uint32_t, uint8_t* buffer, size_t, size_t used) {
  const std::lock_guard lock(mutex);
  Kernel* record = nullptr;
  while (used > 0 && cupti.next_record(buffer, used, &record) == kSuccess) {
    if (record->kind != kConcurrentKernel || record->end == 0) continue;  // without times, should CUPTI have had none
    launches.push_back({record->end, record->start, record->name});
  }
  std::free(buffer);
}

/// Own time of the kernels, by name.
std::map<std::string, Sum> own_times() {
  std::sort(launches.begin(), launches.end(), [](const Launch& a, const Launch& b) { return a.end < b.end; });
  std::map<std::string, Sum> sums;
  uint64_t previous = 0;
  for (const Launch& one : launches) {
    Sum& sum = sums[one.name];
    ++sum.count;
    sum.ns += one.end - std::max(one.start, previous);
    previous = one.end;
  }
  return sums;
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string found = status == 0 ? text : name;
  std::free(text);
  return found;
}

void write_sums() {
  cupti.flush(kForced);
  const char* path = std::getenv("SHOAL_KERNEL_TIMES");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  const std::lock_guard lock(mutex);
  const std::map<std::string, Sum> sums = own_times();
  uint64_t busy = 0;
  for (const auto& [name, sum] : sums) busy += sum.ns;
  std::fprintf(file, "{\"busy_ns\": %llu, \"kernels\": [", static_cast<unsigned long long>(busy));
  const char* comma = "";
  for (const auto& [name, sum] : sums) {
    std::fprintf(file, "%s\n{\"name\": \"%s\", \"count\": %lld, \"ns\": %llu}", comma, demangled(name).c_str(),
                 static_cast<long long>(sum.count), static_cast<unsigned long long>(sum.ns));
    comma = ",";
  }
  std::fprintf(file, "]}\n");
  std::fclose(file);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

/// The driver calls it when it is initialised. What cannot be done here leaves no file.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("SHOAL_CUPTI_LIBRARY");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
  if (library == nullptr || !find(library, "cuptiActivityEnable", cupti.enable) ||
      !find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks) ||
      !find(library, "cuptiActivityGetNextRecord", cupti.next_record) ||
      !find(library, "cuptiActivityFlushAll", cupti.flush)) {
    std::fprintf(stderr, "kernel_times: %s\n", library == nullptr ? dlerror() : "CUPTI lacks a function");
    return 1;
  }
  Result status = cupti.register_callbacks(give_buffer, take_buffer);
  if (status == kSuccess) status = cupti.enable(kConcurrentKernel);
  if (status == kSuccess) {
    std::atexit(write_sums);
  } else {
    std::fprintf(stderr, "kernel_times: CUPTI gives no records of kernels, error %d\n", status);
  }
  return 1;
}

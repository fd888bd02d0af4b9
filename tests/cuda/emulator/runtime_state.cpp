#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/fiber.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {
namespace {

struct Fault {
  std::string name;
  int skip;
  int times;
  cudaError_t error;
};

struct Calls {
  std::mutex mutex;
  std::vector<Fault> faults;
  bool recording = false;
  std::vector<std::string> names;
  std::vector<LaunchRecord> launches;
  std::map<std::string, int> in_progress;
};

Calls& calls() {
  static Calls calls;
  return calls;
}
/// Locks calls() during its lifetime.
struct LockedCalls {
  Calls* operator->() { return &calls(); }
  const std::lock_guard<std::mutex> lock{calls().mutex};
};

constexpr std::array<std::string_view, 9> kQuestions = {
    "cudaGetDevice",          "cudaSetDevice",        "cudaGetDeviceCount",    "cudaGetDeviceProperties",
    "cudaDeviceGetAttribute", "cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaPointerGetAttributes",
    "cudaFuncSetAttribute"};

constinit thread_local int g_current_gpu = 0;
constinit thread_local cudaError_t g_last_error = cudaSuccess;

}  // namespace

Runtime::Runtime() {
  Fiber::keep_stacks();
  calls();
}

Runtime& runtime() {
  static struct Owner {
    Runtime runtime;
    ~Owner() {
      for (Stream* stream : std::set(runtime.streams)) delete stream;
      for (auto& [index, gpu] : runtime.gpus) gpu.default_stream.reset();
      for (auto& [address, allocation] : runtime.memory) std::free(reinterpret_cast<void*>(address));
    }
  } owner;
  return owner.runtime;
}

int& current_gpu() {
  return g_current_gpu;
}
cudaError_t& last_error() {
  return g_last_error;
}

cudaError_t begin_call(const char* name) {
  runtime();
  LockedCalls all;
  ++all->in_progress[name];
  if (all->recording && std::find(kQuestions.begin(), kQuestions.end(), name) == kQuestions.end()) {
    all->names.emplace_back(name);
  }
  for (Fault& fault : all->faults) {
    if (fault.name != name || fault.times == 0) continue;
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    --fault.times;
    return fault.error;
  }
  return cudaSuccess;
}

cudaError_t end_call(const char* name, cudaError_t status) {
  --LockedCalls()->in_progress[name];
  if (status != cudaSuccess) g_last_error = status;  // cudaErrorNotReady is also stored
  return status;
}

void fail_call(const std::string& name, int nth, cudaError_t error, int times) {
  LockedCalls()->faults.push_back({name, nth - 1, times, error});
}

void clear_faults() {
  LockedCalls()->faults.clear();
}

void record_calls() {
  LockedCalls all;
  all->recording = true;
  all->names.clear();
  all->launches.clear();
}

std::vector<std::string> take_calls() {
  LockedCalls all;
  all->recording = false;
  return std::move(all->names);
}

void note_launch(const LaunchSize& size) {
  LockedCalls all;
  if (!all->recording) return;
  const std::string_view path = size.where.file_name();
  all->launches.push_back({std::string(path.substr(path.rfind('/') + 1)), size.block.x, size.shared_bytes, size.early});
}

std::vector<LaunchRecord> take_launches() {
  LockedCalls all;
  all->recording = false;
  return std::move(all->launches);
}

int calls_in_progress(const std::string& name) {
  return LockedCalls()->in_progress[name];
}

}  // namespace shoal::cuda::emulator

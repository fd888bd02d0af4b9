// A stand-in for NCCL: a library with the functions of collectives/nccl/nccl_api.h. The library exchanges bytes between
// ranks of one process, or of several processes on one computer. Operations run in the order of the emulated CUDA
// streams. The library behaves like NCCL:
//
// - A collective waits forever for a missing rank. If a process of the mesh has died, ncclCommGetAsyncError() returns
//   ncclRemoteError.
// - When a rank is aborted, its messages that are still in flight to other processes are lost.
// - After a call has returned ncclInProgress, the library continues the call in another thread.
// - Versions before 2.30 refuse two ranks on one GPU.
// - CUDA graphs contain captured calls. A rank is not destroyed while a graph refers to the rank.
//
// SHOAL_NCCL_STANDIN_DELAY is a number of milliseconds. Each message to another process is delayed by this time.
//
// Tests inject faults and inspect calls through Control. Tests look up Control by name in the loaded library. Control
// is thread-safe.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/nccl/nccl_api.h"

namespace shoal::nccl_standin {

class Control {
 public:
  using Result = collectives::nccl::Result;

  /// Clears faults, recorded calls and problems.
  void reset() { *locked().data = {}; }
  /// Makes the nth call of function `name` by `rank` (1 = the next call) return `result` and do nothing else. Rank -1
  /// matches calls of any rank, and calls that have no rank.
  void fail_call(const std::string& name, int rank, int nth, Result result) {
    locked()->faults.push_back({name, rank, nth - 1, result});
  }
  /// From the next call on, ncclCommGetAsyncError returns `result` for the rank.
  void set_async_error(int rank, Result result) { locked()->async_errors[rank] = result; }
  Result async_error(int rank) { return locked()->async_errors[rank]; }
  /// Prevents ncclCommInitRankConfig from completing on this rank, and therefore on all ranks.
  void never_connect(int rank) { locked()->unconnected.insert(rank); }
  bool connects(int rank) { return !locked()->unconnected.contains(rank); }
  /// Operations that the rank starts after this call never complete.
  void stall(int rank) { locked()->stalled.insert(rank); }
  bool stalls(int rank) { return locked()->stalled.contains(rank); }
  /// Counts a call. Returns the result of an injected fault, or kSuccess if no fault matches the call.
  Result begin(const std::string& name, int rank) {
    const Locked data = locked();
    ++data->counts[name];
    for (auto fault = data->faults.begin(); fault != data->faults.end(); ++fault) {
      if (fault->name != name || (fault->rank >= 0 && fault->rank != rank) || fault->skip-- > 0) continue;
      const Result result = fault->result;
      data->faults.erase(fault);
      return result;
    }
    return Result::kSuccess;
  }
  void record(int rank, std::string call) { locked()->calls[rank].push_back(std::move(call)); }
  /// Returns the calls of a rank since the previous take_calls(), such as "ncclBroadcast count=5 type=7 root=0".
  std::vector<std::string> take_calls(int rank) { return std::exchange(locked()->calls[rank], {}); }
  /// Number of calls of a function by all ranks since reset().
  int count_calls(const std::string& name) { return locked()->counts[name]; }
  void report(std::string problem) { locked()->problems.push_back(std::move(problem)); }
  /// Returns reports of misuse. Examples: ranks called different collectives; a call on a rank came before the rank's
  /// previous call completed; a rank was used after its end.
  std::vector<std::string> problems() { return locked()->problems; }
  /// Number of ranks that were created and have not ended.
  int live_ranks() const { return live_ranks_; }
  void count_live_ranks(int change) { live_ranks_ += change; }

 private:
  struct Fault {
    std::string name;
    int rank;
    int skip;
    Result result;
  };
  struct Data {
    std::vector<Fault> faults;
    std::map<int, Result> async_errors;
    std::set<int> unconnected, stalled;
    std::map<int, std::vector<std::string>> calls;
    std::map<std::string, int> counts;
    std::vector<std::string> problems;
  };

  struct Locked {
    std::lock_guard<std::mutex> lock;
    Data* data;
    Data* operator->() const { return data; }
  };
  Locked locked() { return {std::lock_guard(mutex_), &data_}; }

  std::mutex mutex_;
  Data data_;
  std::atomic<int> live_ranks_{0};
};

}  // namespace shoal::nccl_standin

extern "C" __attribute__((visibility("default"))) shoal::nccl_standin::Control* shoal_nccl_standin();

namespace shoal::nccl_standin {

/// Loads a stand-in library and returns its control.
inline Control& control_of(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return *reinterpret_cast<decltype(&shoal_nccl_standin)>(dlsym(library, "shoal_nccl_standin"))();
}

}  // namespace shoal::nccl_standin

// A stand-in for NCCL: a library with its functions (those of collectives/nccl/nccl_api.h), which exchanges the bytes
// of ranks of one process, or of several on one computer, in the order of the streams of the emulated CUDA runtime. As
// NCCL does, it waits for ever for a rank that does not come, says when a process has gone, loses what an aborted rank
// has on its way to other processes, works on a call after it has returned ncclInProgress, refuses two ranks on one GPU
// before 2.30, keeps captured calls in the graphs, and does not end a rank while a graph refers to it.
//
// SHOAL_NCCL_STANDIN_DELAY: milliseconds that what a rank sends is on its way.
//
// Tests make faults and look at the calls through Control, which they find by name in the loaded library. Thread-safe.
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

  /// Forgets faults, calls and problems.
  void reset() { *locked().data = {}; }
  /// The nth call (1 = the next one) of a function by a rank returns `result` and does nothing; rank -1: by any, and of
  /// functions that are of no rank.
  void fail_call(const std::string& name, int rank, int nth, Result result) {
    locked()->faults.push_back({name, rank, nth - 1, result});
  }
  /// ncclCommGetAsyncError gives it for a rank from now on.
  void set_async_error(int rank, Result result) { locked()->async_errors[rank] = result; }
  Result async_error(int rank) { return locked()->async_errors[rank]; }
  /// The rank's ncclCommInitRankConfig never gets on, so that no rank's does.
  void never_connect(int rank) { locked()->unconnected.insert(rank); }
  bool connects(int rank) { return !locked()->unconnected.contains(rank); }
  /// What the rank queues from now on never ends.
  void stall(int rank) { locked()->stalled.insert(rank); }
  bool stalls(int rank) { return locked()->stalled.contains(rank); }
  /// A call begins: the result that it must return at once, or success.
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
  /// "ncclBroadcast count=5 type=7 root=0" and the like, of a rank, since the last call.
  std::vector<std::string> take_calls(int rank) { return std::exchange(locked()->calls[rank], {}); }
  /// How often a function was called, by whichever rank, since reset().
  int count_calls(const std::string& name) { return locked()->counts[name]; }
  void report(std::string problem) { locked()->problems.push_back(std::move(problem)); }
  /// What callers did wrong: ranks that do not agree, calls before the last one was done or after the end.
  std::vector<std::string> problems() { return locked()->problems; }
  /// Ranks that have been made and not ended.
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

/// Control of a loaded library.
inline Control& control_of(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return *reinterpret_cast<decltype(&shoal_nccl_standin)>(dlsym(library, "shoal_nccl_standin"))();
}

}  // namespace shoal::nccl_standin

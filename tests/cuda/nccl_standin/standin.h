// A stand-in for NCCL: a library with its functions (those of collectives/nccl/nccl_api.h), which exchanges the bytes
// of ranks of one process, or of several on one computer, in the order of the streams of the emulated CUDA runtime. As
// NCCL does, it waits for ever for a rank that does not come, says when a process has gone, loses what an aborted rank
// has on its way to other processes, works on a call after it has returned ncclInProgress, refuses two ranks on one GPU
// before 2.30, keeps captured calls in the graphs, and does not end a rank while a graph refers to it.
//
// SHOAL_NCCL_STANDIN_DELAY: milliseconds that what ranks of other processes are sent is on its way.
//
// Tests make faults and look at what was called through Control, which they find by name in the loaded library.
// Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace shoal::nccl_standin {

struct Control {
  virtual ~Control() = default;
  /// Forgets faults, calls and problems.
  virtual void reset() = 0;
  /// The nth call (1 = the next one) of a function by a rank returns `result` and does nothing; rank -1: by any, and of
  /// functions that are of no rank.
  virtual void fail_call(const std::string& name, int rank, int nth, int result) = 0;
  /// ncclCommGetAsyncError says so of a rank from now on.
  virtual void set_async_error(int rank, int result) = 0;
  /// The rank's ncclCommInitRankConfig never gets on, so that no rank's does.
  virtual void never_connect(int rank) = 0;
  /// What the rank queues from now on never ends.
  virtual void stall(int rank) = 0;
  /// "ncclBroadcast count=5 type=7 root=0" and the like, of a rank, since the last call.
  virtual std::vector<std::string> take_calls(int rank) = 0;
  /// How often a function was called, by whichever rank, since reset().
  virtual int count_calls(const std::string& name) = 0;
  /// What callers did wrong: ranks that do not agree, calls before the last one was done or after the end.
  virtual std::vector<std::string> problems() = 0;
  /// Ranks that have been made and not ended.
  virtual int live_ranks() = 0;
};

}  // namespace shoal::nccl_standin

/// Name "shoal_nccl_standin".
using ShoalNcclStandin = shoal::nccl_standin::Control*();

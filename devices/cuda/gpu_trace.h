// GpuTrace: what a CUDA stream does, for a trace. An event is recorded before and after each piece of work; when the
// stream is done, times are asked for and mapped to the host's clock by one more event, whose time on the host is known
// to some microseconds. On the launcher's thread, except where it says otherwise. Calls of CUDA that fail cost spans,
// nothing else.
//
//   stream   |begin| kernels of "step 0: nodes 0-18" |end||begin| all_reduce |end| ... done |anchor|
//   host                                                                                   t1 .. t2: the anchor's time
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "devices/trace.h"

namespace shoal::cuda {

class GpuTrace {
 public:
  GpuTrace(TraceRow& row, cudaStream_t stream) : row_(row), stream_(stream) {}
  /// By any thread, when nothing is queued.
  ~GpuTrace();
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  /// A piece of work begins or ends in the stream; one is shown whose span was described in between.
  void begin(TraceSpan& span);
  void end(TraceSpan& span);
  /// Enough spans wait for their times that the stream should be waited for.
  bool is_full() const { return pending_.size() >= kMostPending; }
  /// The stream is done: everything so far goes to the row. Resets CUDA's last error.
  void resolve();
  /// A span of the host, between two resolve().
  void add(TraceSpan span);

 private:
  /// Behind what is there: times of the GPU may be off by as long as asking for one took.
  void put_behind(TraceSpan& span);
  static constexpr size_t kMostPending = 4096;
  /// A wait that is shorter has found what it waited for.
  static constexpr int64_t kShortestWait = 2000;

  struct Pending {
    TraceSpan span;
    cudaEvent_t begin, end;
  };

  cudaEvent_t take_event();
  bool record(cudaEvent_t event);
  /// Its time on the host's clock; by how much later the anchor was.
  int64_t time_of(cudaEvent_t event, int64_t anchor_ns) const;

  TraceRow& row_;
  cudaStream_t stream_;
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> free_;
  cudaEvent_t begun_ = nullptr;  ///< of the piece that is being queued
  cudaEvent_t anchor_ = nullptr;
  int64_t until_ns_ = 0;  ///< end of the latest span
};

}  // namespace shoal::cuda

// GpuTrace measures the work of a CUDA stream for a trace. GpuTrace records one event before each item of work and one
// event after the item. When all work of the stream is done, GpuTrace reads the times of the events. One more event,
// the anchor, maps these times to the host's clock. The anchor's time on that clock is accurate to a few microseconds.
// All functions except the constructor and the destructor run on the launcher's thread. If a CUDA call fails, the trace
// lacks some spans. A failed CUDA call has no other effect.
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
  /// The destructor may run on any thread while nothing is queued.
  ~GpuTrace();
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  /// begin() and end() mark the start and the end of an item of work in the stream. The trace contains the item only if
  /// `span` gets a name between the two calls.
  void begin(TraceSpan& span);
  void end(TraceSpan& span);
  /// True if many spans are pending. The caller should then wait for the stream and call resolve().
  bool is_full() const { return pending_.size() >= kMostPending; }
  /// Writes all pending spans to the trace row. All work of the stream must be done. Clears CUDA's last error.
  void resolve();
  /// Adds a span of the host. No spans may be pending.
  void add(TraceSpan span);

 private:
  /// Moves the span's start to the end of the previous span if the two spans overlap. Spans can overlap, because GPU
  /// times have an error of a few microseconds.
  void put_behind(TraceSpan& span);
  static constexpr size_t kMostPending = 4096;
  /// Waits that last less than this number of ns are measurement noise and do not appear in the trace.
  static constexpr int64_t kShortestWait = 2000;

  struct Pending {
    TraceSpan span;
    cudaEvent_t begin, end;
  };

  cudaEvent_t take_event();
  bool record(cudaEvent_t event);
  /// Returns the event's time on the host's clock, computed from the time between the event and the anchor.
  int64_t time_of(cudaEvent_t event, int64_t anchor_ns) const;

  TraceRow& row_;
  cudaStream_t stream_;
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> free_;
  cudaEvent_t begun_ = nullptr;  ///< start event of the item that is being queued
  cudaEvent_t anchor_ = nullptr;
  int64_t until_ns_ = 0;  ///< end of the latest span
};

}  // namespace shoal::cuda

// GpuTrace measures the work of a CUDA stream for a trace. An event is recorded before and after each piece of work.
// When all work of the stream is done, the times of the events are read. One more event, the anchor, maps these times
// to the host's clock. The anchor's time on that clock is known to a few microseconds. All functions run on the
// launcher's thread unless noted. If a CUDA call fails, spans are lost, with no other effect.
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
  /// May be called on any thread while nothing is queued.
  ~GpuTrace();
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  /// begin() and end() mark the start and the end of a piece of work in the stream. The piece is shown if its span was
  /// described between the two calls.
  void begin(TraceSpan& span);
  void end(TraceSpan& span);
  /// Whether the caller should wait for the stream, because many spans are pending.
  bool is_full() const { return pending_.size() >= kMostPending; }
  /// Writes all pending spans to the row. All work of the stream must be done. Clears CUDA's last error.
  void resolve();
  /// Adds a span of the host. No spans may be pending.
  void add(TraceSpan span);

 private:
  /// Delays the span's start if an earlier span ends later. This can happen because the error of GPU times can be as
  /// large as the duration of the anchor's query.
  void put_behind(TraceSpan& span);
  static constexpr size_t kMostPending = 4096;
  /// In ns. Shorter waits are measurement noise and are not shown.
  static constexpr int64_t kShortestWait = 2000;

  struct Pending {
    TraceSpan span;
    cudaEvent_t begin, end;
  };

  cudaEvent_t take_event();
  bool record(cudaEvent_t event);
  /// Returns the event's time on the host's clock, computed from its distance to the anchor.
  int64_t time_of(cudaEvent_t event, int64_t anchor_ns) const;

  TraceRow& row_;
  cudaStream_t stream_;
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> free_;
  cudaEvent_t begun_ = nullptr;  ///< start event of the piece that is being queued
  cudaEvent_t anchor_ = nullptr;
  int64_t until_ns_ = 0;  ///< end of the latest span
};

}  // namespace shoal::cuda

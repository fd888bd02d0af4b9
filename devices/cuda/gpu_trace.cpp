#include "devices/cuda/gpu_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shoal::cuda {

GpuTrace::~GpuTrace() {
  for (const Pending& pending : pending_) free_.insert(free_.end(), {pending.begin, pending.end});
  free_.insert(free_.end(), {begun_, anchor_});
  for (cudaEvent_t event : free_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

cudaEvent_t GpuTrace::take_event() {
  if (!free_.empty()) {
    cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) == cudaSuccess) return event;
  cudaGetLastError();
  return nullptr;
}

bool GpuTrace::record(cudaEvent_t event) {
  if (event == nullptr) return false;
  if (cudaEventRecord(event, stream_) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

void GpuTrace::begin(TraceSpan& span) {
  span = {};
  if (begun_ == nullptr) begun_ = take_event();
  if (!record(begun_)) span.begin_ns = -1;
}

void GpuTrace::end(TraceSpan& span) {
  if (!span.is_shown() || span.begin_ns < 0) return;
  cudaEvent_t ended = take_event();
  if (record(ended)) {
    pending_.push_back({span, std::exchange(begun_, nullptr), ended});
  } else if (ended != nullptr) {
    free_.push_back(ended);
  }
}

int64_t GpuTrace::time_of(cudaEvent_t event, int64_t anchor_ns) const {
  float before_ms = 0;
  if (cudaEventElapsedTime(&before_ms, event, anchor_) == cudaSuccess) {
    return anchor_ns - std::llround(static_cast<double>(before_ms) * 1e6);
  }
  cudaGetLastError();
  return -1;
}

void GpuTrace::resolve() {
  if (pending_.empty()) return;
  if (anchor_ == nullptr) anchor_ = take_event();
  const int64_t before = trace_clock();
  const bool anchored = record(anchor_) && cudaEventSynchronize(anchor_) == cudaSuccess;
  const int64_t anchor_ns = before + (trace_clock() - before) / 2;
  if (!anchored) cudaGetLastError();
  for (Pending& pending : pending_) {
    TraceSpan& span = pending.span;
    span.begin_ns = anchored ? time_of(pending.begin, anchor_ns) : -1;
    span.end_ns = anchored ? time_of(pending.end, anchor_ns) : -1;
    free_.insert(free_.end(), {pending.begin, pending.end});
    if (span.begin_ns < 0 || span.end_ns < 0) continue;
    put_behind(span);
    if (span.kind != TraceKind::kWait || span.end_ns - span.begin_ns >= kShortestWait) row_.add(span);
  }
  pending_.clear();
}

void GpuTrace::add(TraceSpan span) {
  put_behind(span);
  row_.add(span);
}

void GpuTrace::put_behind(TraceSpan& span) {
  span.begin_ns = std::max(span.begin_ns, until_ns_);
  span.end_ns = until_ns_ = std::max(span.end_ns, span.begin_ns);
}

}  // namespace shoal::cuda

#include <thread>
#include <utility>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

bool is_capturing(const Stream& stream) {
  const std::lock_guard lock(runtime().mutex);
  return stream.capture != nullptr;
}

cudaError_t add_node(Stream& stream, Operation operation) {
  if (stream.capture->broken) return cudaErrorStreamCaptureInvalidated;
  stream.capture->nodes.push_back(std::move(operation));
  return cudaSuccess;
}

cudaError_t spoil_captures() {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  cudaError_t status = cudaSuccess;
  for (Stream* stream : all.streams) {
    if (stream->capture == nullptr || stream->capture->thread != std::this_thread::get_id()) continue;
    stream->capture->broken = true;
    status = cudaErrorStreamCaptureUnsupported;
  }
  return status;
}

namespace {

void run_nodes(const Nodes& nodes, Workers& workers) {
  Sequence sequence(workers);
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::vector<const Operation*> early;
    if (kernels_start_early()) {
      for (size_t next = i + 1; next < nodes.size() && early.size() < kMostEarly; ++next) {
        if (!nodes[next].may_start_early()) break;
        early.push_back(&nodes[next]);
      }
    }
    sequence.run(nodes[i], early);
  }
}

}  // namespace

}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

cudaError_t end_capture(Stream& stream, cudaGraph_t* graph) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  *graph = nullptr;
  if (stream.capture == nullptr) return cudaErrorIllegalState;
  if (stream.capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  const std::unique_ptr<Capture> capture = std::move(stream.capture);
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  add(all.graphs, std::make_unique<Graph>(Graph{std::move(capture->nodes)}), graph);
  return cudaSuccess;
}

cudaGraphExecUpdateResult compare(const Nodes& before, const Nodes& after) {
  if (before.size() != after.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].kind != after[i].kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
  }
  return cudaGraphExecUpdateSuccess;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return with_stream("cudaStreamBeginCapture", handle, [&](Stream& stream) {
    Runtime& all = runtime();
    const std::lock_guard lock(all.mutex);
    if (!all.streams.contains(&stream)) return cudaErrorStreamCaptureUnsupported;  // default streams cannot be captured
    if (stream.capture != nullptr) return cudaErrorIllegalState;
    stream.capture = std::make_unique<Capture>(Capture{{}, std::this_thread::get_id()});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return with_stream("cudaStreamEndCapture", handle, [&](Stream& stream) { return end_capture(stream, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return with_stream("cudaStreamIsCapturing", handle, [&](Stream& stream) {
    *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return api("cudaGraphInstantiate", [&] {
    const std::lock_guard lock(runtime().mutex);
    const Graph* const of = find(runtime().graphs, graph);
    if (of == nullptr) return cudaErrorInvalidValue;
    add(runtime().execs, std::make_unique<GraphExec>(GraphExec{std::make_shared<const Nodes>(of->nodes)}), exec);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec_handle, cudaGraph_t graph_handle,
                                cudaGraphExecUpdateResultInfo* info) {
  return api("cudaGraphExecUpdate", [&] {
    const std::lock_guard lock(runtime().mutex);
    GraphExec* const exec = find(runtime().execs, exec_handle);
    const Graph* const graph = find(runtime().graphs, graph_handle);
    if (exec == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    const cudaGraphExecUpdateResult result = compare(*exec->nodes, graph->nodes);
    if (info != nullptr) *info = {result, nullptr, nullptr};
    if (result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    exec->nodes = std::make_shared<const Nodes>(graph->nodes);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  return with_stream("cudaGraphLaunch", on, [&](Stream& stream) {
    std::shared_ptr<const Nodes> nodes;
    {
      const std::lock_guard lock(runtime().mutex);
      const GraphExec* const exec = find(runtime().execs, handle);
      if (exec == nullptr) return cudaErrorInvalidValue;
      nodes = exec->nodes;
    }
    return submit(stream, {OperationKind::kGraph, [nodes](Workers& workers) { run_nodes(*nodes, workers); }});
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t on) {
  return with_stream("cudaGraphUpload", on, [&](Stream&) {
    const std::lock_guard lock(runtime().mutex);
    return find(runtime().execs, handle) == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return api("cudaGraphDestroy", [&] { return destroy(runtime().graphs, handle, cudaErrorInvalidValue); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return api("cudaGraphExecDestroy", [&] { return destroy(runtime().execs, handle, cudaErrorInvalidValue); });
}

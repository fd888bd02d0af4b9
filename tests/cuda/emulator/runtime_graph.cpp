#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

bool is_capturing(const Stream& stream) {
  const std::lock_guard lock(runtime().mutex);
  return stream.capture != nullptr;
}

cudaError_t add_node(Stream& stream, Operation operation) {
  Capture& capture = *stream.capture;
  if (capture.broken) return cudaErrorStreamCaptureInvalidated;
  Capture::Lane& lane = capture.lanes[static_cast<size_t>(stream.lane)];
  const int node = static_cast<int>(capture.nodes.size());
  capture.nodes.push_back({std::move(operation), stream.lane, std::exchange(lane.sources, {})});
  lane.last = node;
  return cudaSuccess;
}

cudaError_t spoil_captures() {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  cudaError_t status = cudaSuccess;
  std::erase_if(all.captures, [](const auto& capture) { return capture.expired(); });
  for (const auto& weak : all.captures) {
    const auto capture = weak.lock();
    if (capture == nullptr || capture->over) continue;
    const bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal && !mine) continue;
    capture->broken = true;
    status = cudaErrorStreamCaptureUnsupported;
  }
  return status;
}

namespace {

/// What of a lane comes at once after its `nth` node and may start early.
std::vector<const Operation*> early_ones(const std::vector<const Node*>& lane, size_t nth) {
  std::vector<const Operation*> found;
  if (!kernels_start_early()) return found;
  while (found.size() < kMostEarly && ++nth < lane.size()) {
    if (!lane[nth]->sources.empty() || !lane[nth]->operation.may_start_early()) break;
    found.push_back(&lane[nth]->operation);
  }
  return found;
}

/// The nodes of one lane, each after those of other lanes that it needs.
void run_lane(const Nodes& nodes, const std::vector<const Node*>& lane, std::vector<Record>& done, Workers& workers) {
  Sequence sequence(workers);
  for (size_t i = 0; i < lane.size(); ++i) {
    for (const int source : lane[i]->sources) done[static_cast<size_t>(source)].wait();
    sequence.run(lane[i]->operation, early_ones(lane, i));
    done[static_cast<size_t>(lane[i] - nodes.data())].set();
  }
}

}  // namespace

void run_nodes(const Nodes& nodes, Workers& workers) {
  std::map<int, std::vector<const Node*>> lanes;
  for (const Node& node : nodes) lanes[node.lane].push_back(&node);
  if (lanes.empty()) return;
  std::vector<Record> done(nodes.size());
  std::vector<std::shared_ptr<Record>> ends;
  for (auto lane = std::next(lanes.begin()); lane != lanes.end(); ++lane) {
    const auto end = ends.emplace_back(std::make_shared<Record>());
    workers.start([&nodes, &own = lane->second, &done, &workers, end] {
      run_lane(nodes, own, done, workers);
      end->set();
    });
  }
  run_lane(nodes, lanes.begin()->second, done, workers);
  for (const auto& end : ends) end->wait();
}

}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

Graph* find_graph(cudaGraph_t handle) {
  const auto found = runtime().graphs.find(reinterpret_cast<Graph*>(handle));
  return found == runtime().graphs.end() ? nullptr : *found;
}
GraphExec* find_exec(cudaGraphExec_t handle) {
  const auto found = runtime().execs.find(reinterpret_cast<GraphExec*>(handle));
  return found == runtime().execs.end() ? nullptr : *found;
}

/// Do all other lanes end in nodes that the first one waits for?
bool is_joined(const Capture& capture) {
  const Nodes& nodes = capture.nodes;
  std::vector<bool> reached(nodes.size(), false);
  std::vector<int> open = capture.lanes[0].sources;
  if (capture.lanes[0].last >= 0) open.push_back(capture.lanes[0].last);
  while (!open.empty()) {
    const auto node = static_cast<size_t>(open.back());
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), nodes[node].sources.begin(), nodes[node].sources.end());
    for (size_t before = node; before-- > 0;) {
      if (nodes[before].lane == nodes[node].lane) {
        open.push_back(static_cast<int>(before));
        break;
      }
    }
  }
  return std::all_of(capture.lanes.begin(), capture.lanes.end(), [&](const Capture::Lane& lane) {
    return lane.last < 0 || reached[static_cast<size_t>(lane.last)];
  });
}

/// The streams of a capture go back to work.
void leave(const std::shared_ptr<Capture>& capture) {
  Runtime& all = runtime();
  for (Stream* stream : all.streams) {
    if (stream->capture == capture) stream->capture = nullptr;
  }
}

cudaError_t end_capture(Stream& stream, cudaGraph_t* graph) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (stream.lane != 0) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  leave(capture);
  capture->over = true;
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  if (!is_joined(*capture)) return cudaErrorStreamCaptureUnjoined;
  auto created = std::make_unique<Graph>(Graph{std::move(capture->nodes)});
  all.graphs.insert(created.get());
  *graph = reinterpret_cast<cudaGraph_t>(created.release());
  return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t handle) {
  wait_in_driver(current_gpu());
  const std::lock_guard lock(runtime().mutex);
  const Graph* const graph = find_graph(handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  auto created = std::make_unique<GraphExec>(GraphExec{std::make_shared<const Nodes>(graph->nodes)});
  runtime().execs.insert(created.get());
  *exec = reinterpret_cast<cudaGraphExec_t>(created.release());
  return cudaSuccess;
}

cudaGraphExecUpdateResult compare(const Nodes& before, const Nodes& after) {
  if (before.size() != after.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].lane != after[i].lane || before[i].sources != after[i].sources) {
      return cudaGraphExecUpdateErrorTopologyChanged;
    }
    if (before[i].operation.kind != after[i].operation.kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
  }
  return cudaGraphExecUpdateSuccess;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return api("cudaStreamBeginCapture", [&] {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    Runtime& all = runtime();
    const std::lock_guard lock(all.mutex);
    if (!all.streams.contains(stream)) return cudaErrorStreamCaptureUnsupported;  // the default one
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>();
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->lanes.emplace_back();
    stream->lane = 0;
    all.captures.push_back(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return api("cudaStreamEndCapture", [&] {
    Stream* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : end_capture(*stream, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return api("cudaStreamIsCapturing", [&] {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const std::lock_guard lock(runtime().mutex);
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->broken  ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return api("cudaGraphInstantiate", [&] { return instantiate(exec, graph); });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return api("cudaGraphInstantiate", [&] { return instantiate(exec, graph); });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec_handle, cudaGraph_t graph_handle,
                                cudaGraphExecUpdateResultInfo* info) {
  return api("cudaGraphExecUpdate", [&] {
    const std::lock_guard lock(runtime().mutex);
    GraphExec* const exec = find_exec(exec_handle);
    const Graph* const graph = find_graph(graph_handle);
    if (exec == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    const cudaGraphExecUpdateResult result = compare(*exec->nodes, graph->nodes);
    if (info != nullptr) *info = {result, nullptr, nullptr};
    if (result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    exec->nodes = std::make_shared<const Nodes>(graph->nodes);
    exec->uploaded = false;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  return api("cudaGraphLaunch", [&] {
    Stream* const stream = find_stream(on);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<const Nodes> nodes;
    bool uploaded = false;
    {
      const std::lock_guard lock(runtime().mutex);
      GraphExec* const exec = find_exec(handle);
      if (exec == nullptr) return cudaErrorInvalidValue;
      nodes = exec->nodes;
      uploaded = std::exchange(exec->uploaded, true);
    }
    if (!uploaded) wait_in_driver(stream->gpu());
    return submit(*stream, {OperationKind::kGraph, [nodes](Workers& workers) { run_nodes(*nodes, workers); }});
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t on) {
  return api("cudaGraphUpload", [&] {
    Stream* const stream = find_stream(on);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    wait_in_driver(stream->gpu());
    const std::lock_guard lock(runtime().mutex);
    GraphExec* const exec = find_exec(handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    exec->uploaded = true;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t*, size_t* count) {
  return api("cudaGraphGetNodes", [&] {
    const std::lock_guard lock(runtime().mutex);
    const Graph* const graph = find_graph(handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    *count = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return api("cudaGraphDestroy", [&] {
    const std::lock_guard lock(runtime().mutex);
    Graph* const graph = find_graph(handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    runtime().graphs.erase(graph);
    delete graph;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return api("cudaGraphExecDestroy", [&] {
    wait_in_driver(current_gpu());
    const std::lock_guard lock(runtime().mutex);
    GraphExec* const exec = find_exec(handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    runtime().execs.erase(exec);
    delete exec;
    return cudaSuccess;
  });
}

#include "devices/cuda/cuda_plan.h"

#include <algorithm>

#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/node_plan.h"
#include "graph/error.h"

namespace shoal::cuda {
namespace {

/// Nodes launched between two looks at the stream when a run may be stopped: the host must not run far ahead.
constexpr size_t kNodesAhead = 16;

bool runs(const Tensor& node) {
  return !is_view(node.op) && !node.empty();
}

void run_node(const LaunchContext& context, std::span<Tensor* const> nodes) {
  Tensor& node = *nodes[0];
  kernel_for(node.op).run(context, node);
}

/// The range, when the device can run it.
const GraphRange& checked(const Device& device, const GraphRange& range) {
  check_supported(device, range);
  return range;
}

}  // namespace

CudaPlan::CudaPlan(CudaBackend& backend, const GraphRange& range, const PlanOptions& options)
    : backend_(backend),
      cuts_(options.cuts),
      topology_(checked(backend.device(), range).graph->topology()),
      memory_(range, backend.device(), options) {
  compile();
}

CudaPlan::~CudaPlan() {
  if (was_queued_) backend_.finish();
  for (const Captured& part : captured_) {
    if (part.exec != nullptr) cudaGraphExecDestroy(part.exec);
  }
}

Backend& CudaPlan::backend() const {
  return backend_;
}

void CudaPlan::compile() {
  const GraphRange& range = memory_.range();
  const auto nodes = nodes_of(range);
  steps_.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (runs(*nodes[i])) steps_.push_back({run_node, nodes.subspan(i, 1)});
  }
  begins_ = {0};
  for (const int cut : cuts_) {
    const auto behind =
        std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.nodes[0]->id >= cut; });
    begins_.push_back(static_cast<size_t>(behind - steps_.begin()));
  }
  begins_.push_back(steps_.size());
  fingerprint_ = fingerprint();
  range.graph->freeze();
}

/// Of all addresses that kernels are given.
size_t CudaPlan::fingerprint() const {
  size_t sum = 0;
  const auto mix = [&sum](const void* address) {
    sum = (sum ^ reinterpret_cast<size_t>(address)) * 1099511628211U;
    sum ^= sum >> 29;
  };
  for (const Step& step : steps_) {
    for (const Tensor* node : step.nodes) {
      mix(node->data), mix(node->workspace);
      for (const Tensor* source : node->src) mix(source != nullptr ? source->data : nullptr);
    }
  }
  return sum;
}

void CudaPlan::move_to(Graph& graph) {
  memory_.move_to(graph);
  const size_t before = fingerprint_;
  compile();
  if (fingerprint_ == before) return;
  for (Captured& part : captured_) part.stale = true;
}

std::span<const Step> CudaPlan::steps(int first, int last) const {
  const size_t begin = begins_[static_cast<size_t>(first)], end = begins_[static_cast<size_t>(last)];
  return std::span(steps_).subspan(begin, end - begin);
}

CudaPlan::Captured& CudaPlan::captured(int first, int last) {
  for (Captured& part : captured_) {
    if (part.first == first && part.last == last) return part;
  }
  return captured_.emplace_back(Captured{first, last});
}

void CudaPlan::run(const LaunchContext& context, int first, int last, bool recording, const AbortCallback& abort) {
  const auto range = steps(first, last);
  if (range.empty()) return;
  Captured& part = captured(first, last);
  ++part.runs;
  const bool may_capture = backend_.uses_graphs() && !recording && !abort && range.size() > 1 && !part.broken;
  if (!may_capture || part.runs == 1) return launch(context, range, abort);
  if ((part.exec == nullptr || part.stale) && !capture(context, range, part)) {
    part.broken = true;
    return launch(context, range, abort);
  }
  check(cudaGraphLaunch(part.exec, context.stream), backend_.name(), "launch a graph");
}

void CudaPlan::launch(const LaunchContext& context, std::span<const Step> steps, const AbortCallback& abort) const {
  size_t ahead = 0;
  for (const Step& step : steps) {
    const Tensor& node = *step.nodes[0];
    if (abort) {
      if (abort()) {
        fail<Aborted>("[{}] stopped by the abort callback before node {} ({})", backend_.name(), node.name,
                      name_of(node.op));
      }
      if (++ahead % kNodesAhead == 0) cudaStreamSynchronize(context.stream);
    }
    step.run(context, step.nodes);
    if (const cudaError_t status = cudaPeekAtLastError(); status != cudaSuccess) {
      check(status, backend_.name(), fmt::format("run {} ({})", node.name, name_of(node.op)));
    }
  }
}

bool CudaPlan::capture(const LaunchContext& context, std::span<const Step> steps, Captured& into) const {
  if (cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
  for (const Step& step : steps) step.run(context, step.nodes);
  cudaGraph_t graph = nullptr;
  bool done = cudaStreamEndCapture(context.stream, &graph) == cudaSuccess && graph != nullptr;
  if (done && into.exec != nullptr) {
    cudaGraphExecUpdateResultInfo info{};
    if (cudaGraphExecUpdate(into.exec, graph, &info) != cudaSuccess) {
      cudaGraphExecDestroy(into.exec);
      into.exec = nullptr;
    }
  }
  if (done && into.exec == nullptr) done = cudaGraphInstantiate(&into.exec, graph, 0) == cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  into.stale = false;
  return done;
}

}  // namespace shoal::cuda

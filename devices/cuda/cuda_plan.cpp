#include "devices/cuda/cuda_plan.h"

#include <algorithm>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/node_plan.h"

namespace shoal::cuda {
namespace {

/// With an abort callback, the launch loop waits for the stream after every kNodesAhead steps. So the host is at most
/// kNodesAhead steps ahead of the GPU.
constexpr size_t kNodesAhead = 16;

bool runs(const Tensor& node) {
  return !is_view(node.op) && !node.empty();
}

std::vector<int> shown_ids(const PlanOptions& options) {
  std::vector<int> ids;
  for (const Tensor* node : options.shown) ids.push_back(node->id);
  return ids;
}

int id_of(const Tensor* node) {
  return node != nullptr ? node->id : -1;
}

/// Returns `range`. Throws if the device cannot run a node of the range.
const GraphRange& checked(const Device& device, const GraphRange& range) {
  check_supported(device, range);
  return range;
}

}  // namespace

CudaPlan::CudaPlan(CudaBackend& backend, const GraphRange& range, const PlanOptions& options)
    : GraphPlan(backend),
      backend_(backend),
      cuts_(options.cuts),
      shown_(shown_ids(options)),
      before_(id_of(options.before)),
      behind_(id_of(options.behind)),
      label_(options.label),
      topology_(checked(backend.device(), range).graph->topology()),
      memory_(range, backend.device(), options) {
  compile();
}

CudaPlan::~CudaPlan() {
  if (was_queued_ && has_backend()) backend_.finish();
  for (const auto& [segments, part] : captured_) {
    if (part.exec != nullptr) cudaGraphExecDestroy(part.exec);
  }
}

void CudaPlan::compile() {
  const GraphRange& range = memory_.range();
  note_memory(range);
  const auto all = range.graph->nodes();
  std::vector<const Tensor*> shown;
  for (const int id : shown_) shown.push_back(all[static_cast<size_t>(id)]);
  const Readers readers(range, shown);
  running_.clear();
  steps_.clear();
  begins_.clear();
  for (Tensor* node : nodes_of(range)) {
    if (runs(*node)) running_.push_back(node);
  }
  const auto node_at = [&](int id) { return id < 0 ? nullptr : all[static_cast<size_t>(id)]; };
  passed_ = {};
  // A step never spans two segments.
  size_t begin = 0;
  for (int segment = 0; segment < segments(); ++segment) {
    const int cut = segment + 1 < segments() ? cuts_[static_cast<size_t>(segment)] : range.end;
    size_t end = begin;
    while (end < running_.size() && running_[end]->id < cut) ++end;
    begins_.push_back(steps_.size());
    const Neighbours neighbours{segment == 0 ? node_at(before_) : nullptr,
                                segment + 1 == segments() ? node_at(behind_) : nullptr};
    add_steps(std::span(running_).subspan(begin, end - begin), readers, neighbours);
    begin = end;
  }
  begins_.push_back(steps_.size());
  fingerprint_ = fingerprint();
  range.graph->freeze();
}

void CudaPlan::add_steps(std::span<Tensor* const> nodes, const Readers& readers, const Neighbours& neighbours) {
  const GpuTraits& gpu = backend_.cuda_device().gpu().traits;
  const size_t first = steps_.size();
  while (!nodes.empty()) {
    steps_.push_back(fuse(nodes, readers, gpu));
    nodes = nodes.subspan(steps_.back().nodes.size());
  }
  const PassedForms passed = share_records(std::span(steps_).subspan(first), gpu, neighbours);
  passed_.before |= passed.before, passed_.behind |= passed.behind;
}

/// Returns a hash of all addresses that are passed to kernels.
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
  for (auto& [segments, part] : captured_) part.stale = true;
}

std::span<const Step> CudaPlan::steps(int first, int last) const {
  const size_t begin = begins_[static_cast<size_t>(first)], end = begins_[static_cast<size_t>(last)];
  return std::span(steps_).subspan(begin, end - begin);
}

void CudaPlan::run(const LaunchContext& context, int first, int last, bool recording, const AbortCallback& abort) {
  const auto range = steps(first, last);
  if (range.empty()) return;
  const HeldMemory held(*this);
  Captured& part = captured_[{first, last}];
  ++part.runs;
  const bool may_capture = backend_.uses_graphs() && !recording && !abort && range.size() > 1 && !part.broken;
  if (!may_capture || part.runs == 1) return launch(context, range, abort);
  if (part.exec == nullptr || part.stale) {
    const cudaError_t failure = capture(context, range, part);
    if (failure != cudaSuccess) {
      part.broken = true;
      backend_.cuda_device().note_no_graph(failure);
      return launch(context, range, abort);
    }
  }
  check(cudaGraphLaunch(part.exec, context.stream), backend_.name(), "launch a graph");
}

void CudaPlan::describe(int first, int last, TraceSpan& span) const {
  if (steps(first, last).empty()) return;
  const GraphRange& range = memory_.range();
  const auto begin_of = [&](int segment) {
    if (segment == 0) return range.begin;
    return segment < segments() ? cuts_[static_cast<size_t>(segment) - 1] : range.end;
  };
  span.describe_nodes(label_, begin_of(first), begin_of(last));
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
    run_step(context, step);
    if (const cudaError_t status = cudaPeekAtLastError(); status != cudaSuccess) {
      check(status, backend_.name(), fmt::format("run {} ({})", node.name, name_of(node.op)));
    }
  }
}

cudaError_t CudaPlan::capture(const LaunchContext& context, std::span<const Step> steps, Captured& into) const {
  cudaError_t status = cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal);
  cudaGraph_t graph = nullptr;
  if (status == cudaSuccess) {
    for (const Step& step : steps) run_step(context, step);
    const cudaError_t launched = cudaPeekAtLastError();  // if a launch failed, the graph lacks a kernel
    status = cudaStreamEndCapture(context.stream, &graph);
    if (launched != cudaSuccess) status = launched;
  }
  if (status == cudaSuccess && into.exec != nullptr) {
    cudaGraphExecUpdateResultInfo info{};
    if (cudaGraphExecUpdate(into.exec, graph, &info) != cudaSuccess) {
      cudaGraphExecDestroy(into.exec);
      into.exec = nullptr;
    }
  }
  if (status == cudaSuccess && into.exec == nullptr) status = cudaGraphInstantiate(&into.exec, graph, 0);
  // Uploads the graph now, so that other ranks do not wait for the upload at the first launch.
  if (status == cudaSuccess) cudaGraphUpload(into.exec, context.stream);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // clears the error, so that the next launch does not report it
  into.stale = false;
  return status;
}

}  // namespace shoal::cuda

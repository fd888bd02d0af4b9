#include "devices/cpu/cpu_plan.h"

#include <algorithm>

#include "base/error.h"
#include "devices/cpu/cpu_backend.h"

namespace shoal::cpu {
namespace {

/// If a node needs fewer scalar operations than this number, a single thread runs the node. The division of such a node
/// among threads would cost more time than it saves.
constexpr int64_t kAloneWork = 16 * 1024;

bool runs(const Tensor& node) {
  return !is_view(node.op) && !node.empty();
}

int64_t work_of(const OpKernel& kernel, const Tensor& node) {
  return kernel.work != nullptr ? kernel.work(node) : node.elements();
}

/// If possible, lets a step reuse the workspace contents of the previous step.
void follow(const Step& before, Step& step) {
  const OpKernel& kernel = kernel_for(step.node->op);
  if (kernel.can_follow == nullptr || step.workspace == nullptr) return;
  // Each part may store its own data in the workspace, so both steps must have the same number of parts.
  if (step.alone != before.alone) return;
  step.follows = step.workspace == before.workspace && kernel.can_follow(*before.node, *step.node);
}

/// Returns the range. Throws if the device cannot run it.
const GraphRange& checked(const Device& device, const GraphRange& range) {
  check_supported(device, range);
  return range;
}

}  // namespace

std::vector<Step> compile_steps(const GraphRange& range, int threads) {
  std::vector<Step> steps;
  for (Tensor* node : nodes_of(range)) {
    if (!runs(*node)) continue;
    const OpKernel& kernel = kernel_for(node->op);
    Step step{kernel.run, node, node->workspace, threads == 1 || work_of(kernel, *node) < kAloneWork};
    if (kernel.prepare != nullptr && kernel.prepares(*node, threads)) {
      steps.push_back(step);
      steps.back().run = kernel.prepare;
    }
    steps.push_back(step);
  }
  return steps;
}

CpuPlan::CpuPlan(CpuBackend& backend, const GraphRange& range, const PlanOptions& options)
    : NodePlan(backend, checked(backend.device(), range), options),
      backend_(backend),
      threads_(backend.threads()),
      label_(options.label),
      topology_(range.graph->topology()) {
  compile();
}

CpuPlan::~CpuPlan() {
  wait();
}

void CpuPlan::compile() {
  steps_ = compile_steps(memory().range(), threads_);
  unpacked_.insert_into(steps_);
  begins_ = {0};
  for (const int cut : cuts()) {
    const auto behind = std::ranges::lower_bound(steps_, cut, {}, [](const Step& step) { return step.node->id; });
    begins_.push_back(static_cast<size_t>(behind - steps_.begin()));
  }
  begins_.push_back(steps_.size());
  for (size_t i = 1; i < steps_.size(); ++i) {
    // The first step of a segment reuses no workspace contents, because another plan may have run before the segment.
    if (!std::ranges::binary_search(begins_, i)) follow(steps_[i - 1], steps_[i]);
  }
}

void CpuPlan::move_to(Graph& graph) {
  memory().move_to(graph);
  note_memory(memory().range());
  compile();
  graph.freeze();
}

void CpuPlan::run(Team& team, int first, int last) {
  const size_t begin = begins_[static_cast<size_t>(first)], end = begins_[static_cast<size_t>(last)];
  const HeldMemory held(*this);
  const Tensor* stopped = team.run(std::span(steps_).subspan(begin, end - begin), threads_);
  if (stopped == nullptr) return;
  fail<Aborted>("[{}] stopped by the abort callback before node {} ({})", backend_.name(), stopped->name,
                name_of(stopped->op));
}

void CpuPlan::describe(int first, int last, TraceSpan& span) const {
  if (begins_[static_cast<size_t>(first)] == begins_[static_cast<size_t>(last)]) return;  // no nodes to run
  span.describe_nodes(label_, begin_of(first), begin_of(last));
}

void CpuPlan::wait() const {
  if (has_backend()) backend_.wait_for(last_run_);
}

}  // namespace shoal::cpu

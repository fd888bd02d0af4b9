#include "tests/support/sched_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/text.h"
#include "tests/support/poison.h"

namespace shoal::test {
namespace {

/// A case whose leaves have memory on several devices.
class Placed {
 public:
  Placed(const RandomCase& one, std::span<Backend* const> backends, uint64_t seed)
      : one_(one), backends_(backends), random_(seed) {
    parse_graph(one.graph, graph, weights);
    std::vector<std::vector<Tensor*>> homes(backends.size());
    // In half of the cases, most leaves are placed on one random backend, so that other backends need copies. In the
    // other half of the cases, each leaf is placed on a random backend.
    const size_t usual = draw(backends.size());
    const bool anywhere = draw(2) == 0;
    for (Tensor* leaf : weights.tensors()) {
      const bool to_host = leaf->name.starts_with("experts") && draw(2) == 0;
      const size_t home = to_host ? backends.size() - 1 : anywhere ? draw(backends.size()) : usual;
      homes[can_write(backends[home]->device(), *leaf) ? home : backends.size() - 1].push_back(leaf);
    }
    for (size_t b = 0; b < backends.size(); ++b) {
      if (homes[b].empty()) continue;
      memory_.push_back(allocate_tensors(homes[b], backends[b]->device().buffer_type(), Usage::kWeights));
    }
  }

  /// Assigns some nodes to random backends that support them. Products with experts are assigned more often than other
  /// nodes.
  void set_nodes(sched::Scheduler& scheduler) {
    const size_t every = 2 + draw(6);
    for (const Tensor* node : graph.nodes()) {
      const bool writes = info(node->op).alias == Alias::kWrites;
      if (is_view(node->op) || writes || draw(node->op == Op::kMulMatId ? 2 : every) != 0) continue;
      Backend* backend = backends_[draw(backends_.size())];
      if (backend->device().supports_op(*node)) scheduler.set_backend(*node, backend);
    }
  }

  void fill_leaves() {
    for (Tensor* leaf : weights.tensors()) fill(*leaf, 0);
    fill_inputs(0);
  }
  /// Fills the inputs with values that depend on the run.
  void fill_inputs(uint64_t run) {
    for (Tensor* input : graph.inputs()) fill(*input, run);
  }

  Results results() const { return read_results(one_, graph, weights); }

  TensorContext weights;
  Graph graph{"random"};

 private:
  /// Whether the device supports all nodes that write to the cache. Such nodes run on the device of the cache.
  bool can_write(const Device& device, const Tensor& cache) const {
    return std::all_of(graph.nodes().begin(), graph.nodes().end(), [&](const Tensor* node) {
      const bool writes = info(node->op).alias == Alias::kWrites && node->storage() == &cache;
      return !writes || device.supports_op(*node);
    });
  }
  size_t draw(size_t count) { return static_cast<size_t>(random_() % count); }
  void fill(Tensor& leaf, uint64_t run) const { write_leaf(one_, leaf, leaf_values(one_, leaf, run)); }

  const RandomCase& one_;
  std::span<Backend* const> backends_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

/// Runs the graph several times with different inputs, and returns the bytes of all outputs of all runs. If `queued` is
/// set, all runs are queued before the first synchronize().
std::vector<std::vector<std::byte>> run_several(Placed& placed, sched::Scheduler& scheduler, bool queued) {
  constexpr uint64_t kRuns = 5;
  placed.fill_leaves();
  std::vector<std::vector<std::byte>> outputs;
  for (uint64_t run = 0; run < kRuns; ++run) {
    for (const Tensor* node : placed.graph.nodes()) {
      if (node->is_output) outputs.emplace_back(node->bytes());
    }
  }
  auto next = outputs.begin();
  for (uint64_t run = 0; run < kRuns; ++run) {
    placed.fill_inputs(run);
    scheduler.compute_async(placed.graph);
    for (const Tensor* node : placed.graph.nodes()) {
      if (!node->is_output) continue;
      scheduler.get_async(*node, next->data(), 0, next->size());
      ++next;
    }
    if (!queued) scheduler.synchronize();
  }
  scheduler.synchronize();
  return outputs;
}

}  // namespace

Results run_scheduled(const RandomCase& one, std::span<Backend* const> backends, uint64_t seed) {
  Placed placed(one, backends, seed);
  sched::SchedulerOptions options;
  options.copies = 1 + static_cast<int>(seed % 3);
  sched::Scheduler scheduler({backends.begin(), backends.end()}, options);
  placed.set_nodes(scheduler);
  scheduler.allocate(placed.graph);
  for (int i = 0; i < scheduler.backends(); ++i) {
    if (const GraphPlan* plan = scheduler.scheduled().plan(i)) poison(placed.graph, *plan);
  }
  Results results;
  for (int run = 0; run < 2; ++run) {
    placed.fill_leaves();
    scheduler.compute_async(placed.graph);
    scheduler.synchronize();
    Results now = placed.results();
    const std::string changed = run > 0 ? difference(results, now, 0.0) : "";
    if (!changed.empty()) throw std::runtime_error("another run of the same plan differs: " + changed);
    results = std::move(now);
  }
  const auto alone = run_several(placed, scheduler, false);
  if (run_several(placed, scheduler, true) != alone) {
    throw std::runtime_error("queued runs differ from separate runs");
  }
  return results;
}

std::string check_scheduled(const RandomCase& one, std::span<Backend* const> backends, Device& reference,
                            uint64_t seed) {
  try {
    return difference(run_on_one(one, reference), run_scheduled(one, backends, seed), one.tolerance);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace shoal::test

#include "tests/support/sched_session.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "sched/scheduler.h"
#include "tests/sched/proxy.h"
#include "tests/support/dice.h"
#include "tests/support/placed_weights.h"
#include "tests/support/poison.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr int kRuns = 5;

/// One or two meta devices, perhaps a device with memory of its own, then a simple device.
class Machine {
 public:
  Machine(const RandomCase& one, std::span<Device* const> devices, const Dice& dice) {
    const auto ranks = static_cast<size_t>(one.ranks);
    metas_.push_back(meta_device(one, devices));
    if (dice.one_in(3, "second")) metas_.push_back(meta_device(one, devices.subspan(ranks)));
    for (const auto& meta : metas_) add(*meta, "");
    if (dice.one_in(2, "own memory")) add(*(own_memory_ = std::make_unique<ProxyDevice>(*devices[2 * ranks + 1])), "");
    Device& last = *devices[2 * ranks];
    add(last, last.type() == DeviceType::kCpu ? "threads=1" : "");
  }
  const std::vector<Backend*>& backends() const { return backends_; }

 private:
  void add(Device& device, const std::string& params) {
    owned_.push_back(device.init(params));
    backends_.push_back(owned_.back().get());
  }

  std::vector<std::unique_ptr<meta::MetaDevice>> metas_;
  std::unique_ptr<ProxyDevice> own_memory_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
};

class Session {
 public:
  Session(const RandomCase& one, std::span<Device* const> devices)
      : one_(one), dice_(one.seed), machine_(one, devices, dice_), model_(one), weights_(one) {
    place(dice_);
    const bool shared = dice_.one_in(2, "one scheduler");
    for (size_t i = 0; i < graphs_.size(); ++i) {
      graphs_[i] = std::make_unique<Graph>(fmt::format("seed {} graph {}", one.seed, i));
      parse_graph(one.graph, *graphs_[i], weights_.context());
      schedulers_[i] = shared && i > 0 ? schedulers_[0] : new_scheduler(i);
      set_nodes(i);
    }
  }

  /// Throws when something is wrong.
  void run_all() {
    for (int run = 0; run < kRuns; ++run) {
      run_ = dice_.of(fmt::format("run {}", run));
      try {
        if (run > 0 && run_.one_in(5, "place")) place(run_);
        model_.evaluate(static_cast<uint64_t>(run));
        one_run();
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("run {}: {}{}", run, error.what(), where()));
      }
    }
  }

 private:
  std::shared_ptr<sched::Scheduler> new_scheduler(size_t number) const {
    sched::SchedulerOptions options;
    options.copies = 1 + static_cast<int>(dice_.draw(fmt::format("copies {}", number), 3));
    return std::make_shared<sched::Scheduler>(machine_.backends(), options);
  }

  /// Sets some nodes to backends that can run them, more of the nodes that choose or use experts. The first backend
  /// gets most products with experts, and streams the experts of the last backend.
  void set_nodes(size_t number) {
    for (const Tensor* node : graphs_[number]->nodes()) {
      const bool free = !is_view(node->op) && info(node->op).alias != Alias::kWrites;
      const size_t every = node->op == Op::kMulMatId || node->op == Op::kTopK ? 2 : 5;
      if (!free || !dice_.one_in(every, fmt::format("set {} {}", number, node->name))) continue;
      const bool first = node->op == Op::kMulMatId && dice_.one_in(2, "stream " + node->name);
      const size_t place = first ? 0 : dice_.draw("at " + node->name, machine_.backends().size());
      Backend* backend = machine_.backends()[place];
      if (backend->device().supports_op(*node)) schedulers_[number]->set_backend(*node, backend);
    }
  }

  /// Mostly on the first device, so that what is elsewhere has neighbours there; experts also in host memory.
  void place(const Dice& dice) {
    const auto& backends = machine_.backends();
    weights_.place([&](const Tensor& tensor) -> Device& {
      if (tensor.name.starts_with("experts") && dice.one_in(2, "host " + tensor.name)) return backends.back()->device();
      const bool first = !dice.one_in(3, "away " + tensor.name);
      return backends[first ? 0 : dice.draw("home " + tensor.name, backends.size())]->device();
    });
    written_ = false;
  }

  void one_run() {
    const size_t number = run_.draw("graph", graphs_.size());
    Graph& graph = *graphs_[number];
    sched::Scheduler& scheduler = *schedulers_[number];
    scheduled_ = nullptr;
    scheduler.allocate(graph);
    scheduled_ = &scheduler;
    if (run_.one_in(2, "poison")) poison_all(graph, scheduler);
    if (!written_) weights_.write(model_);
    written_ = true;
    for (Tensor* input : graph.inputs()) write_leaf(one_, *input, model_.leaf(input->name));
    scheduler.compute_async(graph);
    scheduler.synchronize();
    compare(graph);
  }

  void poison_all(const Graph& graph, const sched::Scheduler& scheduler) {
    for (int i = 0; i < scheduler.backends(); ++i) {
      if (const GraphPlan* plan = scheduler.scheduled().plan(i)) poison(graph, *plan);
    }
    written_ = false;
  }

  void compare(const Graph& graph) {
    const std::string what =
        difference(model_.results(), read_results(one_, graph, weights_.context()), one_.tolerance);
    if (!what.empty()) throw std::runtime_error(what);
    model_.done();
  }

  /// What ran where.
  std::string where() const {
    return scheduled_ == nullptr ? "" : fmt::format("\n{}", sched::to_string(scheduled_->schedule()));
  }

  const RandomCase& one_;
  const Dice dice_;
  Dice run_{0};
  Machine machine_;
  CaseModel model_;
  PlacedWeights weights_;
  bool written_ = false;
  std::array<std::unique_ptr<Graph>, 2> graphs_;
  std::array<std::shared_ptr<sched::Scheduler>, 2> schedulers_;
  const sched::Scheduler* scheduled_ = nullptr;  ///< ran last
};

}  // namespace

std::string check_schedulers(const RandomCase& one, std::span<Device* const> devices) {
  try {
    Session(one, devices).run_all();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace shoal::test

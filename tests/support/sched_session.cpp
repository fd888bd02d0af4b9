#include "tests/support/sched_session.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
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

/// The exception that evaluation callbacks throw.
struct Thrown : std::runtime_error {
  Thrown() : std::runtime_error("thrown by the callback") {}
};

/// The backends of a session, in this order: one or two meta devices, in some sessions a device with separate memory,
/// and one ordinary device.
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

/// A graph that evaluation callbacks run. It has its own scheduler over the same backends.
class Inner {
 public:
  explicit Inner(const std::vector<Backend*>& backends) : scheduler_(backends) {
    x_ = graph_.input("inner x", DType::kF32, {kLength, 1, 1, 1});
    Tensor* twice = add(graph_, x_, x_, "inner twice");
    y_ = graph_.output(scale(graph_, twice, {3.0f, 0.0f}, "inner y"));
    scheduler_.set_backend(*twice, backends.back());
    scheduler_.set_backend(*y_, backends.front());
  }
  /// Runs the graph. Returns "" if the result is right, otherwise a description of the error.
  std::string run() {
    scheduler_.allocate(graph_);
    Values values(kLength);
    std::iota(values.begin(), values.end(), ++runs_);
    write_values(*x_, values);
    scheduler_.compute_async(graph_);
    scheduler_.synchronize();
    for (double& value : values) value *= 6;
    return read_values(*y_) == values ? "" : "wrong inner y, computed by a scheduler that a callback ran";
  }

 private:
  static constexpr int64_t kLength = 24;
  Graph graph_{"inner"};
  Tensor *x_, *y_;
  sched::Scheduler scheduler_;
  int runs_ = 0;
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

  /// Throws an exception that describes the first error.
  void run_all() {
    for (int run = 0; run < kRuns; ++run) {
      run_ = dice_.of(fmt::format("run {}", run));
      const Observer& observer = kObservers[run_.draw("observer", kObservers.size())];
      try {
        if (run > 0 && run_.one_in(5, "place")) place(run_);
        model_.evaluate(static_cast<uint64_t>(run));
        one_run(observer);
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("run {}, {}: {}{}", run, observer.name, error.what(), where()));
      }
    }
  }

 private:
  enum class Act { kNothing, kLook, kStop, kThrow, kNest, kUnregister, kReset };
  struct Observer {
    std::string_view name;
    size_t every;  ///< the callback reads a node with probability 1 / `every`
    Act act;
  };
  static constexpr std::array<Observer, 10> kObservers = {{{"no callback", 0, Act::kNothing},
                                                           {"no callback", 0, Act::kNothing},
                                                           {"looks at all nodes", 1, Act::kLook},
                                                           {"looks at some nodes", 3, Act::kLook},
                                                           {"looks at few nodes", 6, Act::kLook},
                                                           {"stops", 3, Act::kStop},
                                                           {"throws", 3, Act::kThrow},
                                                           {"runs another scheduler", 3, Act::kNest},
                                                           {"unregisters itself", 2, Act::kUnregister},
                                                           {"resets the scheduler", 2, Act::kReset}}};

  std::shared_ptr<sched::Scheduler> new_scheduler(size_t number) const {
    sched::SchedulerOptions options;
    options.copies = 1 + static_cast<int>(dice_.draw(fmt::format("copies {}", number), 3));
    return std::make_shared<sched::Scheduler>(machine_.backends(), options);
  }

  /// Assigns some nodes to random backends that support them. Nodes that select or use experts are assigned more often
  /// than other nodes. Most of the assigned products with experts run on the first backend. This backend then streams
  /// the experts that are placed on the last backend.
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

  /// Places most weights and caches on the first device, so that other devices need copies. Places some experts on the
  /// last device, in host memory.
  void place(const Dice& dice) {
    const auto& backends = machine_.backends();
    weights_.place([&](const Tensor& tensor) -> Device& {
      if (tensor.name.starts_with("experts") && dice.one_in(2, "host " + tensor.name)) return backends.back()->device();
      const bool first = !dice.one_in(3, "away " + tensor.name);
      return backends[first ? 0 : dice.draw("home " + tensor.name, backends.size())]->device();
    });
    written_ = false;
  }

  void one_run(const Observer& observer) {
    const size_t number = run_.draw("graph", graphs_.size());
    Graph& graph = *graphs_[number];
    sched::Scheduler& scheduler = *schedulers_[number];
    observe(scheduler, observer);
    scheduled_ = nullptr;
    scheduler.allocate(graph);
    scheduled_ = &scheduler;
    if (run_.one_in(2, "poison")) poison_all(graph, scheduler);
    if (!written_) weights_.write(model_);
    written_ = true;
    for (Tensor* input : graph.inputs()) write_leaf(one_, *input, model_.leaf(input->name));
    bool finished = false;
    try {
      finished = scheduler.compute_async(graph);
    } catch (const Thrown&) {
    }
    scheduler.synchronize();
    if (!wrong_.empty()) throw std::runtime_error("in a callback: " + wrong_);
    written_ = finished;  // after an incomplete run, the content of the caches is unknown
    if (finished) compare(graph);
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

  /// The schedule of the current run as text; "" if there is no schedule.
  std::string where() const {
    return scheduled_ == nullptr ? "" : fmt::format("\n{}", sched::to_string(scheduled_->schedule()));
  }

  void observe(sched::Scheduler& scheduler, const Observer& observer) {
    if (observer.act == Act::kNothing) return scheduler.set_eval_callback({});
    const auto token = std::make_shared<const char>();  // destroyed together with the callback
    scheduler.set_eval_callback([this, &scheduler, &observer, token](const Tensor& node, bool ask) {
      const bool here = run_.one_in(4, (ask ? "act when asked about " : "act at ") + node.name);
      const bool looks = !ask || run_.one_in(observer.every, "look at " + node.name);
      if (!ask && wrong_.empty()) wrong_ = wrong_value(node);
      if (here && observer.act == Act::kReset && wrong_.empty()) wrong_ = try_to_reset(scheduler);
      if (here && observer.act == Act::kUnregister) return unregister(scheduler, token, wrong_), looks;
      if (ask) return looks;
      if (here && observer.act == Act::kThrow) throw Thrown();
      if (here && observer.act == Act::kNest && wrong_.empty()) wrong_ = inner_.run();
      return !here || observer.act != Act::kStop;
    });
  }

  static std::string try_to_reset(sched::Scheduler& scheduler) {
    try {
      scheduler.reset();
      return "reset() succeeded inside a callback";
    } catch (const InvalidArgument&) {
      return {};
    }
  }

  /// This function is static, because set_eval_callback() may destroy the callback that is currently running. After
  /// that call, this function may use only its arguments.
  static void unregister(sched::Scheduler& scheduler, std::weak_ptr<const char> token, std::string& wrong) {
    scheduler.set_eval_callback({});
    if (token.expired()) wrong = "the callback was destroyed while it ran";
  }

  /// Returns "" if the values of the computed node match the reference, otherwise the difference.
  std::string wrong_value(const Tensor& node) const {
    const bool integers = node.dtype == DType::kI32 || node.dtype == DType::kI64;
    const Results want{{node.name, {model_.node(node.name), integers}}},
        got{{node.name, {read_values(node), integers}}};
    return difference(want, got, one_.tolerance);
  }

  const RandomCase& one_;
  const Dice dice_;
  Dice run_{0};
  Machine machine_;
  Inner inner_{machine_.backends()};
  CaseModel model_;
  PlacedWeights weights_;
  bool written_ = false;
  std::string wrong_;  ///< first error in a node that a callback read
  std::array<std::unique_ptr<Graph>, 2> graphs_;
  std::array<std::shared_ptr<sched::Scheduler>, 2> schedulers_;
  const sched::Scheduler* scheduled_ = nullptr;  ///< scheduler that ran last
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

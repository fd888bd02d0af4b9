#include "tests/support/device_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>

#include "devices/allocate.h"
#include "graph/text.h"
#include "tests/support/dice.h"
#include "tests/support/placed_weights.h"
#include "tests/support/poison.h"

namespace shoal::test {
namespace {

constexpr int kRuns = 4;

class Session {
 public:
  Session(const RandomCase& one, Device& device)
      : one_(one),
        device_(device),
        dice_(one.seed),
        backend_(device.init(params_of(device))),
        model_(one),
        weights_(one) {
    place();
  }

  /// Throws an exception that describes the first error.
  void run_all() {
    for (int run = 0; run < kRuns; ++run) {
      run_ = dice_.of(fmt::format("run {}", run));
      const Way& way = kWays[run_.draw("way", kWays.size())];
      try {
        if (run > 0 && run_.one_in(4, "place")) place();
        model_.evaluate(static_cast<uint64_t>(run));
        (this->*way.run)();
        model_.done();
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("on {}, run {}, {}: {}", device_.name(), run, way.name, error.what()));
      }
    }
  }

 private:
  struct Way {
    std::string_view name;
    void (Session::*run)();
  };
  static const std::array<Way, 6> kWays;

  static std::string params_of(const Device& device) { return device.type() == DeviceType::kCpu ? "threads=1" : ""; }

  /// Moves weights and caches to new memory and destroys all plans.
  void place() {
    backend_->plans().clear();
    kept_ = std::make_unique<Kept>();
    weights_.place([this](const Tensor&) -> Device& { return device_; });
    written_ = false;
  }

  std::unique_ptr<Graph> parse() {
    auto graph = std::make_unique<Graph>(fmt::format("seed {}", one_.seed));
    parse_graph(one_.graph, *graph, weights_.context());
    return graph;
  }

  /// Writes all leaves except `late`. `fresh` contains the new plans. In some runs, the memory of these plans is first
  /// filled with NaN.
  void write(Graph& graph, std::span<const GraphPlan* const> fresh = {}, const std::set<const Tensor*>& late = {}) {
    if (!fresh.empty() && run_.one_in(2, "poison")) {
      for (const GraphPlan* plan : fresh) poison(graph, *plan);
      written_ = false;
    }
    if (!written_) weights_.write(model_);
    written_ = true;
    for (Tensor* input : graph.inputs()) {
      // Skips inputs without memory: the plan for a range of nodes allocates no memory for inputs that these nodes do
      // not use.
      if (!late.contains(input) && input->buffer != nullptr) write_input(*input);
    }
  }

  void write_input(Tensor& input) { write_leaf(one_, input, model_.leaf(input.name)); }

  void compare(const Graph& graph) {
    const std::string what =
        difference(model_.results(), read_results(one_, graph, weights_.context()), one_.tolerance);
    if (!what.empty()) throw std::runtime_error(what);
  }

  void finish(Graph& graph, GraphPlan& plan) {
    const auto held = hold();
    backend_->compute_async(plan);
    wait("at the end");
    compare(graph);
  }

  /// Creates zero, one or two HeldBackend objects for the backend.
  std::vector<std::unique_ptr<HeldBackend>> hold() const {
    std::vector<std::unique_ptr<HeldBackend>> holds;
    for (size_t i = run_.draw("holds", 3); i > 0; --i) holds.push_back(std::make_unique<HeldBackend>(*backend_));
    return holds;
  }

  void wait(std::string_view when) {
    if (run_.one_in(2, fmt::format("finish {}", when))) finish_queued(*backend_);
    backend_->synchronize();
  }

  void whole_graph() {
    const auto graph = parse();
    const auto plan = backend_->create_plan(*graph);
    write(*graph, std::array{plan.get()});
    finish(*graph, *plan);
  }

  /// A plan of the nodes [begin, end). Its runs may pause at the cuts in `options`.
  struct Piece {
    int begin, end;
    PlanOptions options;
    std::unique_ptr<GraphPlan> plan;
  };

  /// Randomly selects the nodes in (begin, end) at which a new range or segment begins.
  std::vector<int> draw_cuts(const Graph& graph, int begin, int end, std::string_view what) const {
    std::vector<int> cuts;
    for (int i = begin + 1; i < end; ++i) {
      if (run_.one_in(3, fmt::format("{} {}", what, graph.nodes()[static_cast<size_t>(i)]->name))) cuts.push_back(i);
    }
    return cuts;
  }

  Piece plan_piece(Graph& graph, int begin, int end) {
    Piece piece{begin, end, {}, nullptr};
    piece.options.cuts = draw_cuts(graph, begin, end, "cut");
    for (const Tensor* node : nodes_of({&graph, begin, end})) {
      const bool fixed = node->storage()->role != Role::kCache;  // later nodes before the cut may overwrite a cache
      if (fixed && run_.one_in(4, "show " + node->name)) piece.options.shown.push_back(node);
    }
    add_late_inputs(graph, piece);
    piece.plan = backend_->create_plan(GraphRange{&graph, begin, end}, piece.options);
    return piece;
  }

  void in_segments() { run_pieces(false); }
  /// Plans all ranges in order, then runs all plans.
  void range_by_range() { run_pieces(true); }

  void run_pieces(bool ranges) {
    const auto graph = parse();
    const int nodes = static_cast<int>(graph->nodes().size());
    std::vector<int> ends = ranges ? draw_cuts(*graph, 0, nodes, "range") : std::vector<int>{};
    ends.push_back(nodes);
    std::vector<Piece> pieces;
    std::vector<const GraphPlan*> fresh;
    std::set<const Tensor*> late;
    for (const int end : ends) {
      pieces.push_back(plan_piece(*graph, pieces.empty() ? 0 : pieces.back().end, end));
      fresh.push_back(pieces.back().plan.get());
      for (const LateInput& input : pieces.back().options.late) late.insert(input.input);
    }
    write(*graph, fresh, late);
    const auto held = hold();
    for (const Piece& piece : pieces) run_piece(*graph, piece);
    wait("at the end");
    compare(*graph);
    while (!pieces.empty()) pieces.pop_back();  // later plans refer to earlier plans
  }

  /// Some inputs whose first user is in this piece become late inputs (PlanOptions::late). Each late input is written
  /// before a random segment. This segment is not later than the segment of the first user.
  void add_late_inputs(const Graph& graph, Piece& piece) const {
    for (const Tensor* input : graph.inputs()) {
      const int user = first_user(graph, *input);
      if (user < piece.begin || user >= piece.end || !run_.one_in(2, "late " + input->name)) continue;
      const auto& cuts = piece.options.cuts;
      const auto used = static_cast<size_t>(std::upper_bound(cuts.begin(), cuts.end(), user) - cuts.begin());
      piece.options.late.push_back({input, static_cast<int>(run_.draw("segment for " + input->name, used + 1))});
    }
  }

  /// Index of the first node that uses the input; -1 if no node uses it.
  static int first_user(const Graph& graph, const Tensor& input) {
    for (const Tensor* node : graph.nodes()) {
      if (std::find(node->src.begin(), node->src.end(), &input) != node->src.end()) return node->id;
    }
    return -1;
  }

  static bool has_late_input(const Piece& piece, size_t segment) {
    return std::any_of(piece.options.late.begin(), piece.options.late.end(),
                       [&](const LateInput& late) { return static_cast<size_t>(late.segment) == segment; });
  }

  void write_late_inputs(const Graph& graph, const Piece& piece, size_t segment) {
    if (has_late_input(piece, segment)) backend_->synchronize();
    for (const LateInput& late : piece.options.late) {
      if (static_cast<size_t>(late.segment) == segment)
        write_input(*graph.inputs()[static_cast<size_t>(late.input->id)]);
    }
  }

  /// Queues one or several segments per call. At each pause, the nodes in `options.shown` are compared with the
  /// reference.
  void run_piece(const Graph& graph, const Piece& piece) {
    std::vector<int> bounds = piece.options.cuts;  // segment i contains nodes [bounds[i], bounds[i + 1])
    bounds.insert(bounds.begin(), piece.begin);
    bounds.push_back(piece.end);
    const size_t segments = bounds.size() - 1;
    for (size_t done = 0; done < segments;) {
      write_late_inputs(graph, piece, done);
      size_t last = done + 1;
      const auto goes_on = [&] { return run_.one_in(3, fmt::format("go on {} {}", piece.begin, last)); };
      while (last < segments && !has_late_input(piece, last) && goes_on()) ++last;
      backend_->compute_async(*piece.plan, static_cast<int>(done), static_cast<int>(last));
      if (run_.one_in(2, fmt::format("pause {} {}", piece.begin, last))) {
        wait(fmt::format("at {}", last));
        compare_shown(piece.options.shown, bounds[last - 1], bounds[last]);
      }
      done = last;
    }
  }

  /// Compares the nodes of `shown` in [begin, end) with the reference.
  void compare_shown(const std::vector<const Tensor*>& shown, int begin, int end) {
    for (const Tensor* node : shown) {
      if (node->id < begin || node->id >= end) continue;
      const Results want{{node->name, {model_.node(node->name)}}}, got{{node->name, {read_values(*node)}}};
      const std::string what = difference(want, got, one_.tolerance);
      if (!what.empty()) throw std::runtime_error("at a pause: " + what);
    }
  }

  /// Runs a plan that was created for a second graph of the same topology. The second graph is destroyed before the
  /// run.
  void handed_over() {
    auto before = parse();
    auto plan = backend_->create_plan(*before);
    const auto graph = parse();
    if (!backend_->update_plan(*plan, *graph)) return whole_graph();  // some devices do not support update_plan()
    before.reset();
    write(*graph, std::array{plan.get()});
    finish(*graph, *plan);
  }

  /// Runs one of two graphs. The plan cache of the backend plans each graph only once.
  void kept_plan() {
    auto& graph = kept_->graphs[run_.draw("graph", 2)];
    if (graph == nullptr) graph = parse();
    GraphPlan& plan = backend_->plans().plan(*graph);
    write(*graph);
    finish(*graph, plan);
  }

  /// Runs one of two plans. Both plans use the same arena.
  void in_arena() {
    if (kept_->arena == nullptr) kept_->arena = std::make_unique<ComputeArena>(*backend_);
    auto& [graph, plan] = kept_->in_arena[run_.draw("graph", 2)];
    if (graph == nullptr) {
      graph = parse();
      PlanOptions options;
      options.arena = kept_->arena.get();
      options.cuts = draw_cuts(*graph, 0, static_cast<int>(graph->nodes().size()), "cut");
      plan = backend_->create_plan(*graph, options);
    }
    write(*graph);
    finish(*graph, *plan);
  }

  struct Planned {
    std::unique_ptr<Graph> graph;
    std::unique_ptr<GraphPlan> plan;
  };
  /// Graphs and plans that later runs use again. place() destroys them.
  struct Kept {
    std::array<std::unique_ptr<Graph>, 2> graphs;
    std::unique_ptr<ComputeArena> arena;
    std::array<Planned, 2> in_arena;
  };

  const RandomCase& one_;
  Device& device_;
  const Dice dice_;
  Dice run_{0};
  std::unique_ptr<Backend> backend_;
  CaseModel model_;
  PlacedWeights weights_;
  bool written_ = false;
  std::unique_ptr<Kept> kept_;
};

constexpr std::array<Session::Way, 6> Session::kWays = {{
    {"planned as a whole", &Session::whole_graph},
    {"in segments", &Session::in_segments},
    {"range by range", &Session::range_by_range},
    {"updated for another graph", &Session::handed_over},
    {"with a cached plan", &Session::kept_plan},
    {"in an arena", &Session::in_arena},
}};

}  // namespace

std::string check_on_device(const RandomCase& one, Device& device) {
  try {
    Session(one, device).run_all();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace shoal::test

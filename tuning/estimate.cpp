#include "tuning/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "machine/costs.h"
#include "machine/expert_load.h"
#include "tuning/estimate_fluid.h"

namespace shoal::tuning {
namespace {

/// A rank of the plan, and what does not depend on the segments.
struct Member {
  const machine::DeviceModel* device = nullptr;
  std::vector<Work> nodes;                     ///< by number; nothing for those that do not run
  std::map<std::string, double> pair_seconds;  ///< of each mul_mat_id, by name
  /// By number: what luck adds to the longest of all ranks that have the product (expert_load.h).
  std::vector<double> excess;
};

/// Ranks whose devices share a domain.
struct Group {
  const machine::Domain* domain = nullptr;
  std::vector<size_t> ranks;
};

/// Nodes of one step: pieces of work up to number `end`.
struct Stretch {
  NodeRange nodes;
  size_t end = 0;
};

/// What a rank does between two collectives.
struct Todo {
  std::vector<Work> work;
  std::vector<Stretch> stretches;
  std::vector<double> ends;
  double end() const { return ends.empty() ? 0 : ends.back(); }
};

/// What a rank did, for people.
struct Row {
  explicit Row(std::string name) : name(std::move(name)) {}
  std::string name;
  int64_t end_ns = 0;
  std::vector<TraceEvent> events;
};

/// A plan on a machine.
struct Ground {
  Ground(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices,
         const EstimateOptions& options)
      : plan(plan), machine(machine), devices(devices.begin(), devices.end()), options(options) {
    require<InvalidArgument>(devices.size() == plan.ranks.size(), "the plan of {} has {} ranks, got {} devices",
                             plan.graph_name, plan.ranks.size(), devices.size());
    find_experts();
    for (size_t rank = 0; rank < devices.size(); ++rank) add_member(rank);
    add_excess();
  }

  const meta::Plan& plan;
  const machine::MachineModel& machine;
  std::vector<int> devices;
  EstimateOptions options;
  std::vector<Member> members;
  std::vector<Group> groups;

 private:
  /// Of a product those experts of the rank that ids may name.
  static int64_t reachable(const Tensor& product) {
    const auto& ranges = std::get<SelectParams>(product.params).ranges;
    int64_t count = ranges.empty() ? product.src[0]->shape[2] : 0;
    for (const IndexRange& range : ranges) count += range.begin < kNoId ? range.length : 0;
    return count;
  }

  /// Where each rank has some of the experts: how many there are in all. Ranks that have none have no product.
  void find_experts() {
    std::map<std::string, bool> divided;
    for (const meta::RankPlan& rank : plan.ranks) {
      for (const Tensor* node : rank.graph->nodes()) {
        if (node->op != Op::kMulMatId) continue;
        experts_[node->name] += reachable(*node);
        divided[node->name] |= !std::get<SelectParams>(node->params).ranges.empty();
      }
    }
    for (auto& [name, count] : experts_) count = divided[name] ? count : 0;
  }

  /// As node_cost() counts: in proportion to all that the rank has of them.
  int64_t experts_for(const Tensor& product) const {
    const int64_t here = reachable(product);
    return here == 0 ? 0 : experts_.at(product.name) * product.src[0]->shape[2] / here;
  }

  /// The device that has most of the experts that a token takes is another one each time.
  void add_excess() {
    if (members.size() < 2) return;
    std::map<std::string_view, std::vector<std::pair<size_t, const Tensor*>>> products;  // by name, with their ranks
    for (size_t rank = 0; rank < members.size(); ++rank) {
      for (const Tensor* node : plan.ranks[rank].graph->nodes()) {
        if (node->op == Op::kMulMatId) products[node->name].emplace_back(rank, node);
      }
    }
    std::map<std::pair<std::vector<int64_t>, std::vector<double>>, double> known;  // layers are alike
    for (const auto& [name, of_ranks] : products) {
      const std::string all(name);
      if (experts_.at(all) == 0) continue;
      const Tensor& ids = *of_ranks.front().second->src[2];
      std::vector<int64_t> counts;
      std::vector<double> seconds;
      for (const auto& [rank, node] : of_ranks) {
        counts.push_back(reachable(*node));
        seconds.push_back(members[rank].pair_seconds.at(all));
      }
      std::vector<int64_t> key = counts;
      key.insert(key.end(), {ids.shape[0], ids.shape[1]});
      const auto [found, is_new] = known.try_emplace({std::move(key), seconds}, 0.0);
      if (is_new) found->second = machine::expected_excess(counts, seconds, ids.shape[0], ids.shape[1]);
      for (const auto& [rank, node] : of_ranks) {
        std::vector<double>& excess = members[rank].excess;
        excess.resize(plan.ranks[rank].graph->nodes().size());
        excess[static_cast<size_t>(node->id)] = found->second;
      }
    }
  }

  void add_member(size_t rank) {
    const int index = devices[rank];
    require<InvalidArgument>(index >= 0 && static_cast<size_t>(index) < machine.devices.size(),
                             "machine {} has {} devices, got number {}", machine.name, machine.devices.size(), index);
    const machine::DeviceModel& device = machine.devices[static_cast<size_t>(index)];
    require<InvalidArgument>(device.domain >= 0 && static_cast<size_t>(device.domain) < machine.domains.size(),
                             "machine {} has {} domains, got number {} of {}", machine.name, machine.domains.size(),
                             device.domain, device.name);
    const Graph& graph = *plan.ranks[rank].graph;
    const machine::ProductTable products(device);
    const bool in_cache = device.cache_bytes > 0 && machine::working_set(graph, options.kv_rows) <= device.cache_bytes;
    Member member{&device, {}, {}, {}};
    member.nodes.reserve(graph.nodes().size());
    for (const Tensor* node : graph.nodes()) {
      const bool has_experts = node->op == Op::kMulMatId;
      const int64_t experts = has_experts ? experts_for(*node) : 0;
      const machine::NodeCost cost = node_cost(device, products, *node, options.kv_rows, in_cache, experts);
      member.nodes.push_back({cost.seconds, cost.bytes});
      if (has_experts) {
        member.pair_seconds.emplace(node->name, pair_seconds(device, products, *node, in_cache, experts));
      }
    }
    members.push_back(std::move(member));

    const machine::Domain* domain = &machine.domains[static_cast<size_t>(device.domain)];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return other.domain == domain; });
    if (group == groups.end()) group = groups.insert(group, {domain, {}});
    group->ranks.push_back(rank);
  }

  std::map<std::string, int64_t> experts_;  ///< by name of the product; 0: every rank has all of them
};

/// Goes over the steps of some segments. All ranks meet at every collective: one clock will do.
class Walk {
 public:
  explicit Walk(const Ground& ground) : ground_(ground), excess_(ground.members.size()), todo_(ground.members.size()) {
    result_.ranks.resize(ground.members.size());
    for (const Member& member : ground.members) rows_.emplace_back(member.device->name);
  }

  Estimate run(size_t first_step, size_t last_step) {
    if (ground_.options.begins_run) begin_run();
    for (size_t i = first_step; i < last_step; ++i) {
      const meta::Step& step = ground_.plan.steps[i];
      if (step.kind == meta::StepKind::kCollective) {
        add_nodes(step, Part::kBefore);
        meet(step);
      }
      add_nodes(step, Part::kRest);
    }
    compute();
    result_.seconds = now_;
    for (Row& row : rows_) std::move(row.events.begin(), row.events.end(), std::back_inserter(result_.events));
    return std::move(result_);
  }

 private:
  void begin_run() {
    now_ = ground_.machine.run_seconds(ground_.devices);
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      result_.ranks[rank].host = now_;
      add_event(rank, TraceKind::kHost, now_, [] { return "run"; });
    }
  }

  /// Of a collective's step: the nodes before that of the collective, which make what it sends; all others.
  enum class Part { kBefore, kRest };

  NodeRange part_of(const meta::Step& step, size_t rank, Part part) const {
    const NodeRange& range = step.ranges[rank];
    if (step.kind != meta::StepKind::kCollective) return range;
    const auto nodes = ground_.plan.ranks[rank].graph->nodes();
    const auto begin = nodes.begin() + range.begin, end = nodes.begin() + range.end;
    const auto first = std::find_if(begin, end, [](const Tensor* node) { return is_collective(node->op); });
    const int middle = first == end ? range.begin : static_cast<int>(first - nodes.begin());
    return part == Part::kBefore ? NodeRange{range.begin, middle} : NodeRange{middle, range.end};
  }

  /// What a part of the step has for each rank to compute, when its turn comes.
  void add_nodes(const meta::Step& step, Part part) {
    const bool joined = step.kind == meta::StepKind::kCollective;
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      const Member& member = ground_.members[rank];
      Todo& todo = todo_[rank];
      const size_t before = todo.work.size();
      const NodeRange range = part_of(step, rank, part);
      for (int i = range.begin; i < range.end; ++i) {
        Work work = member.nodes[static_cast<size_t>(i)];
        // Nodes that are joined with a collective are part of its call.
        if (joined) work.seconds -= std::min(work.seconds, member.device->op_seconds);
        if (work.seconds > 0) todo.work.push_back(work);
        if (!member.excess.empty()) excess_[rank] += member.excess[static_cast<size_t>(i)];
      }
      if (todo.work.size() == before) continue;
      if (!joined && member.device->step_seconds > 0) todo.work.push_back({member.device->step_seconds, 0});
      if (ground_.options.events) todo.stretches.push_back({range, todo.work.size()});
    }
  }

  /// All ranks do what they have to do; a rank that is done waits for the others.
  void compute() {
    for (const Group& group : ground_.groups) {
      flows_.clear();
      for (const size_t rank : group.ranks) {
        Todo& todo = todo_[rank];
        todo.ends.resize(todo.work.size());
        const machine::DeviceModel& device = *ground_.members[rank].device;
        flows_.push_back({device.cores, device.bandwidth, todo.work, todo.ends});
      }
      run_flows(*group.domain, flows_);
    }
    double longest = 0;
    for (const Todo& todo : todo_) longest = std::max(longest, todo.end());
    longest += *std::max_element(excess_.begin(), excess_.end());
    std::fill(excess_.begin(), excess_.end(), 0.0);
    for (size_t rank = 0; rank < todo_.size(); ++rank) finish(rank, longest);
    now_ += longest;
  }

  void finish(size_t rank, double longest) {
    Todo& todo = todo_[rank];
    result_.ranks[rank].compute += todo.end();
    result_.ranks[rank].waiting += longest - todo.end();
    for (const Stretch& stretch : todo.stretches) {
      add_event(rank, TraceKind::kCompute, now_ + todo.ends[stretch.end - 1],
                [&] { return fmt::format("nodes {}-{}", stretch.nodes.begin, stretch.nodes.end - 1); });
    }
    add_event(rank, TraceKind::kWait, now_ + longest, [] { return "wait"; });
    todo.work.clear();
    todo.stretches.clear();
    todo.ends.clear();
  }

  void meet(const meta::Step& step) {
    compute();
    auto& kinds = result_.collectives;
    auto same = std::find_if(kinds.begin(), kinds.end(), [&](const CollectiveTime& time) {
      return time.kind == step.collective && time.bytes == step.bytes;
    });
    if (same == kinds.end()) {
      const double seconds =
          ground_.machine.collective_seconds(step.collective, ground_.devices, static_cast<double>(step.bytes));
      same = kinds.insert(same, {step.collective, step.bytes, 0, seconds});
    }
    ++same->count;
    now_ += same->seconds;
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      result_.ranks[rank].communication += same->seconds;
      add_event(
          rank, TraceKind::kCollective, now_,
          [&] { return fmt::format("{} {}", name_of(step.collective), step.tensor); }, step.bytes);
    }
  }

  /// From the end of the row's last event. Rounded ends, so that the events of a row have no gaps.
  template <class Name>
  void add_event(size_t rank, TraceKind kind, double end, const Name& name, int64_t bytes = 0) {
    if (!ground_.options.events) return;
    Row& row = rows_[rank];
    constexpr double kLongest = 9e18;  // 285 years, in ns
    const int64_t end_ns = std::llround(std::min(end * 1e9, kLongest));
    if (end_ns <= row.end_ns) return;
    row.events.push_back({row.name, kind, name(), row.end_ns, end_ns, bytes});
    row.end_ns = end_ns;
  }

  const Ground& ground_;
  double now_ = 0;
  std::vector<double> excess_;  ///< by rank: that it will wait for one of those with the same products
  std::vector<Todo> todo_;
  std::vector<Flow> flows_;
  std::vector<Row> rows_;
  Estimate result_;
};

}  // namespace

struct Estimator::Impl {
  Ground ground;
};

Estimator::Estimator(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices,
                     const EstimateOptions& options)
    : impl_(std::make_unique<Impl>(Impl{{plan, machine, devices, options}})) {}
Estimator::~Estimator() = default;
Estimator::Estimator(Estimator&&) noexcept = default;

Estimate Estimator::segments(int first, int last) const {
  const meta::Plan& plan = impl_->ground.plan;
  const int count = static_cast<int>(plan.segments.size());
  require<InvalidArgument>(0 <= first && first <= last && last <= count,
                           "the plan of {} has {} segments, got those from {} to {}", plan.graph_name, count, first,
                           last);
  const auto step_of = [&](int segment) {
    return segment < count ? static_cast<size_t>(plan.segments[static_cast<size_t>(segment)]) : plan.steps.size();
  };
  return Walk(impl_->ground).run(step_of(first), step_of(last));
}

Estimate estimate(const meta::Plan& plan, int first_segment, int last_segment, const machine::MachineModel& machine,
                  std::span<const int> devices, const EstimateOptions& options) {
  return Estimator(plan, machine, devices, options).segments(first_segment, last_segment);
}

}  // namespace shoal::tuning

#include "tuning/estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "machine/costs.h"
#include "machine/expert_load.h"
#include "tuning/estimate_fluid.h"

namespace shoal::tuning {
namespace {

struct Member {
  const machine::DeviceModel* device = nullptr;
  std::vector<Work> nodes;  ///< work of each node, by node number; zero for nodes that are not executed
  /// Seconds by which the busiest rank exceeds the average rank in an expert product, by node number (expert_load.h).
  std::vector<double> excess;
};

/// Ranks whose devices share a domain.
struct Group {
  const machine::Domain* domain = nullptr;
  std::vector<size_t> ranks;
};

/// A mul_mat_id op, with its node on each rank that stores some of the experts.
struct ExpertProduct {
  int64_t experts = 0;  ///< number of experts that the ids tensor may select, summed over all ranks
  bool is_divided = false;
  std::vector<std::pair<size_t, const Tensor*>> parts;  ///< each rank with its mul_mat_id node
  std::vector<double> pair_seconds;                     ///< seconds that one additional (token, selected expert) pair
                                                        ///< takes, in the order of `parts`
};

/// Number of experts that the ids tensor may select on the rank of this node.
int64_t reachable(const Tensor& product) {
  const auto& ranges = std::get<SelectParams>(product.params).ranges;
  int64_t count = ranges.empty() ? product.src[0]->shape[2] : 0;
  for (const IndexRange& range : ranges) count += range.begin < kNoId ? range.length : 0;
  return count;
}

}  // namespace

/// The plan, the machine and all costs that are the same for every range of segments.
struct Estimator::Ground {
  Ground(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices, double kv_rows)
      : plan(plan), machine(machine), devices(devices.begin(), devices.end()) {
    require<InvalidArgument>(devices.size() == plan.ranks.size(), "the plan of {} has {} ranks, got {} devices",
                             plan.graph_name, plan.ranks.size(), devices.size());
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      for (const Tensor* node : plan.ranks[rank].graph->nodes()) {
        if (node->op != Op::kMulMatId) continue;
        ExpertProduct& product = products_[node->name];
        product.experts += reachable(*node);
        product.is_divided |= !std::get<SelectParams>(node->params).ranges.empty();
        product.parts.emplace_back(rank, node);
      }
    }
    for (size_t rank = 0; rank < devices.size(); ++rank) add_member(rank, kv_rows);
    add_excess();
  }

  const meta::Plan& plan;
  const machine::MachineModel& machine;
  std::vector<int> devices;
  std::vector<Member> members;
  std::vector<Group> groups;

 private:
  void add_member(size_t rank, double kv_rows) {
    const int index = devices[rank];
    require<InvalidArgument>(index >= 0 && static_cast<size_t>(index) < machine.devices.size(),
                             "machine {} has {} devices, got index {}", machine.name, machine.devices.size(), index);
    const machine::DeviceModel& device = machine.devices[static_cast<size_t>(index)];
    require<InvalidArgument>(device.domain >= 0 && static_cast<size_t>(device.domain) < machine.domains.size(),
                             "machine {} has {} domains, got index {} for {}", machine.name, machine.domains.size(),
                             device.domain, device.name);
    const Graph& graph = *plan.ranks[rank].graph;
    const machine::ProductTable products(device);
    const bool in_cache = device.cache_bytes > 0 && machine::working_set(graph, kv_rows) <= device.cache_bytes;
    Member member{&device, {}, {}};
    member.nodes.reserve(graph.nodes().size());
    for (const Tensor* node : graph.nodes()) {
      const bool has_experts = node->op == Op::kMulMatId;
      const int64_t experts = has_experts ? experts_for(*node) : 0;
      const machine::NodeCost cost = node_cost(device, products, *node, kv_rows, in_cache, experts);
      member.nodes.push_back({cost.seconds, cost.bytes});
      if (has_experts) {
        products_[node->name].pair_seconds.push_back(pair_seconds(device, products, *node, in_cache, experts));
      }
    }
    members.push_back(std::move(member));

    const machine::Domain* domain = &machine.domains[static_cast<size_t>(device.domain)];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return other.domain == domain; });
    if (group == groups.end()) group = groups.insert(group, {domain, {}});
    group->ranks.push_back(rank);
  }

  /// The value for the parameter `experts` of node_cost(). If the ids tensor may select m of the n experts on this
  /// rank, the result is n / m times the number of selectable experts on all ranks. The result is 0 if m is 0 or every
  /// rank has all experts.
  int64_t experts_for(const Tensor& node) const {
    const ExpertProduct& product = products_.at(node.name);
    const int64_t here = reachable(node);
    return here == 0 || !product.is_divided ? 0 : product.experts * node.src[0]->shape[2] / here;
  }

  /// Adds the seconds by which the busiest rank exceeds the average rank. The busiest rank changes from token to token,
  /// so all ranks that store some of the experts get the same excess.
  void add_excess() {
    std::map<std::pair<std::vector<int64_t>, std::vector<double>>, double> known;  // one entry for all equal layers
    for (const auto& [name, product] : products_) {
      if (members.size() < 2 || !product.is_divided || product.experts == 0) continue;
      const Tensor& ids = *product.parts.front().second->src[2];
      std::vector<int64_t> counts;
      for (const auto& [rank, node] : product.parts) counts.push_back(reachable(*node));
      std::vector<int64_t> key = counts;
      key.insert(key.end(), {ids.shape[0], ids.shape[1]});
      const auto [found, is_new] = known.try_emplace({std::move(key), product.pair_seconds}, 0.0);
      if (is_new) {
        found->second = machine::expected_excess(counts, product.pair_seconds, ids.shape[0], ids.shape[1]);
      }
      for (const auto& [rank, node] : product.parts) {
        std::vector<double>& excess = members[rank].excess;
        excess.resize(plan.ranks[rank].graph->nodes().size());
        excess[static_cast<size_t>(node->id)] = found->second;
      }
    }
  }

  std::map<std::string_view, ExpertProduct> products_;  ///< by node name
};

/// Adds up the time of the steps of some segments. All ranks meet at every collective, so one clock is enough for all
/// ranks.
class Estimator::Walk {
 public:
  explicit Walk(const Ground& ground) : ground_(ground), excess_(ground.members.size()), todo_(ground.members.size()) {
    result_.ranks.resize(ground.members.size());
  }

  Estimate run(size_t first_step, size_t last_step) {
    for (size_t i = first_step; i < last_step; ++i) {
      const meta::Step& step = ground_.plan.steps[i];
      if (step.kind == meta::StepKind::kCollective) {
        add_nodes(step, Part::kBefore);
        meet(step);
      }
      add_nodes(step, Part::kRest);
    }
    compute();
    return std::move(result_);
  }

 private:
  /// Work of a rank until the next collective.
  struct Todo {
    std::vector<Work> work;
    std::vector<double> ends;
    double end() const { return ends.empty() ? 0 : ends.back(); }
  };

  /// The two ranges of nodes in a step. kBefore: the nodes before the collective, which compute its operand. kRest: the
  /// collective and the nodes after it, or all nodes of a step without a collective.
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

  /// Adds the work of each rank in this range of the step.
  void add_nodes(const meta::Step& step, Part part) {
    const bool joined = step.kind == meta::StepKind::kCollective;
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      const Member& member = ground_.members[rank];
      std::vector<Work>& todo = todo_[rank].work;
      const size_t before = todo.size();
      const NodeRange range = part_of(step, rank, part);
      for (int i = range.begin; i < range.end; ++i) {
        Work work = member.nodes[static_cast<size_t>(i)];
        // A node that is fused with a collective does not have the cost of a separate op.
        if (joined) work.seconds -= std::min(work.seconds, member.device->op_seconds);
        if (work.seconds > 0) todo.push_back(work);
        if (!member.excess.empty()) excess_[rank] += member.excess[static_cast<size_t>(i)];
      }
      if (!joined && todo.size() > before && member.device->step_seconds > 0) {
        todo.push_back({member.device->step_seconds, 0});
      }
    }
  }

  /// Runs the queued work of all ranks. Ranks that finish early wait for the slowest rank.
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
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      Todo& todo = todo_[rank];
      result_.ranks[rank].compute += todo.end();
      result_.ranks[rank].waiting += longest - todo.end();
      todo.work.clear();
      todo.ends.clear();
    }
    result_.seconds += longest;
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
    result_.seconds += same->seconds;
    for (RankTime& rank : result_.ranks) rank.communication += same->seconds;
  }

  const Ground& ground_;
  std::vector<double> excess_;  ///< seconds that each rank waits for the busiest rank of the same expert products
  std::vector<Todo> todo_;
  std::vector<Flow> flows_;
  Estimate result_;
};

Estimator::Estimator(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices,
                     double kv_rows)
    : ground_(std::make_unique<const Ground>(plan, machine, devices, kv_rows)) {}
Estimator::~Estimator() = default;
Estimator::Estimator(Estimator&&) noexcept = default;

Estimate Estimator::segments(int first, int last) const {
  const meta::Plan& plan = ground_->plan;
  const int count = static_cast<int>(plan.segments.size());
  require<InvalidArgument>(0 <= first && first <= last && last <= count,
                           "the plan of {} has {} segments, got the range {} to {}", plan.graph_name, count, first,
                           last);
  const auto step_of = [&](int segment) {
    return segment < count ? static_cast<size_t>(plan.segments[static_cast<size_t>(segment)]) : plan.steps.size();
  };
  return Walk(*ground_).run(step_of(first), step_of(last));
}

}  // namespace shoal::tuning

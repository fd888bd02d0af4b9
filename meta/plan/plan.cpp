#include "meta/plan/plan.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "collectives/factory.h"
#include "devices/allocate.h"
#include "graph/memory_plan.h"
#include "meta/plan/joined_norm.h"
#include "meta/plan/lower.h"

namespace shoal::meta {
namespace {

size_t role_bytes(std::span<Tensor* const> tensors, const ShardStore& store, Role role, int rank,
                  const BufferType& type) {
  std::vector<Tensor*> locals;
  for (const Tensor* tensor : tensors) {
    if (tensor->role != role) continue;
    const Shards* shards = store.find(*tensor);
    require<InvalidArgument>(shards != nullptr, "{} has no layout; declare the tensor first", describe(*tensor));
    locals.push_back(shards->local[rank]);
  }
  return layout_tensors(locals, type).total_bytes();
}

/// Sizes of the allocations for a rank's local graph.
std::vector<size_t> compute_chunks(const RankPlan& rank, Device& device) {
  MemoryPlanOptions options = memory_options(device);
  options.cuts = rank.cuts;
  options.shown = rank.shown;
  options.late = rank.late;
  options.fused = rank.fused;
  std::vector<size_t> chunks = plan_chunks(whole(*rank.graph), options);
  const size_t most = device.buffer_type().max_size();
  if (std::all_of(chunks.begin(), chunks.end(), [&](size_t chunk) { return chunk <= most; })) return chunks;
  const MemoryPlan memory = plan_memory(whole(*rank.graph), options);
  for (const auto& [tensor, placement] : memory.tensors) {
    if (placement.size <= most) continue;
    fail<DeviceError>(
        "[{}] {} needs {}, but one allocation is limited to {}: split the tensor over more devices or use "
        "smaller batches",
        device.name(), describe(*tensor), format_bytes(placement.size), format_bytes(most));
  }
  return chunks;
}

/// Tensors that the range reads but does not compute: leaves, and nodes of earlier ranges. They are in order of first
/// use.
std::vector<const Tensor*> outside_tensors(const GraphRange& range) {
  std::vector<const Tensor*> found;
  std::unordered_set<const Tensor*> seen;
  const auto nodes = range.graph->nodes().subspan(range.begin, range.end - range.begin);
  for (const Tensor* node : nodes) {
    for (const Tensor* source : node->src) {
      if (source == nullptr) continue;
      const bool inside = !source->is_leaf() && source->id >= range.begin;
      if (!inside && seen.insert(source).second) found.push_back(source);
    }
  }
  return found;
}

/// Adds the bytes of a placed weight or cache, including alignment.
void add_placed(const Shards& shards, Role role, std::vector<RankPlan>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Tensor& local = *shards.local[rank];
    if (local.buffer == nullptr) continue;
    const BufferType& type = local.buffer->type();
    const size_t alignment = type.alignment();
    size_t& sum = role == Role::kWeight ? ranks[rank].memory.weights : ranks[rank].memory.cache;
    sum += (type.alloc_size(local) + alignment - 1) / alignment * alignment;
  }
}

/// Removes the constraints of inputs that an earlier range has placed. Throws InvalidArgument if such an input does not
/// have its required layout.
void drop_placed_inputs(std::vector<ConstrainedTensor>& constraints, const ShardLookup& placed) {
  std::erase_if(constraints, [&](const ConstrainedTensor& one) {
    const Shards* shards = one.tensor->is_leaf() ? placed(*one.tensor) : nullptr;
    if (shards == nullptr) return false;
    require<InvalidArgument>(
        !one.constraint.required || shards->layout == one.constraint.layout,
        "the required layout '{}' of input {} contradicts the layout '{}', in which an earlier range of the graph has "
        "placed the input; require the same layout for all ranges",
        one.constraint.layout.to_string(), one.tensor->name, shards->layout.to_string());
    return true;
  });
}

}  // namespace

const Layout& Plan::layout(const Tensor& tensor) const {
  const auto it =
      std::find_if(layouts.begin(), layouts.end(), [&](const auto& entry) { return entry.first == &tensor; });
  require<InvalidArgument>(it != layouts.end(), "{} is not part of the plan of {}", describe(tensor), graph_name);
  return it->second;
}

bool Plan::communicates() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == StepKind::kCollective; });
}

int Plan::count(Collective collective) const {
  return static_cast<int>(std::count_if(steps.begin(), steps.end(), [&](const Step& step) {
    return step.kind == StepKind::kCollective && step.collective == collective;
  }));
}

std::vector<int> Plan::repeated() const {
  // Only the graph of the first rank is checked. A node is fixed if it depends on weights only.
  const auto nodes = ranks[0].graph->nodes();
  std::vector<bool> fixed(nodes.size());
  const auto is_fixed = [&](const Tensor* source) {
    if (source == nullptr) return true;
    return source->is_leaf() ? source->storage()->role == Role::kWeight : fixed[static_cast<size_t>(source->id)];
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    fixed[i] = !nodes[i]->src.empty() && std::all_of(nodes[i]->src.begin(), nodes[i]->src.end(), is_fixed);
  }
  std::vector<int> found;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::kCollective) continue;
    if (fixed[static_cast<size_t>(steps[i].ranges[0].begin)]) found.push_back(static_cast<int>(i));
  }
  return found;
}

int64_t Plan::collective_bytes() const {
  int64_t bytes = 0;
  for (const Step& step : steps) bytes += step.bytes;
  return bytes;
}

uint64_t digest(const Plan& plan) {
  uint64_t sum = 14695981039346656037U;
  const auto add = [&](std::string_view text) {
    for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
  };
  for (const auto& [tensor, layout] : plan.layouts) {
    add(fmt::format("{} {} {} {};", tensor->name, name_of(tensor->dtype), fmt::join(tensor->shape, "x"),
                    layout.to_string()));
  }
  for (const int segment : plan.segments) add(fmt::format("{};", segment));
  for (const Step& step : plan.steps) {
    add(fmt::format("{} {} {} {}", static_cast<int>(step.kind), static_cast<int>(step.collective), step.tensor,
                    step.bytes));
    for (const NodeRange& range : step.ranges) add(fmt::format(" {}-{}", range.begin, range.end));
  }
  return sum;
}

PlanOptions allocation_options(const RankPlan& rank, ComputeArena* arena) {
  return {.cuts = rank.cuts, .shown = rank.shown, .late = rank.late, .fused = rank.fused, .arena = arena};
}

Plan make_plan(const GraphRange& range, const PlanContext& context, std::span<Device* const> devices,
               const PlanOptions& options) {
  check_range(range);
  require<InvalidArgument>(!devices.empty() && std::ranges::find(devices, nullptr) == devices.end(),
                           "a plan needs at least one device, and no device may be nullptr");
  require<InvalidArgument>(context.shards != nullptr && context.rules != nullptr,
                           "a plan needs PlanContext::{}; set this field before planning {}",
                           context.shards == nullptr ? "shards" : "rules", range.graph->name());
  const int ranks = static_cast<int>(devices.size());
  std::unordered_map<const Tensor*, Layout> asked;  // answers of the callback, which is called once per weight
  const LeafLayout leaf_layout = [&](const Tensor& tensor) {
    const Shards* shards = context.shards(tensor);
    if (shards == nullptr && tensor.role != Role::kInput) {
      fail<InvalidArgument>("{} is not on the meta device; place it in a buffer of this device before planning {}",
                            describe(tensor), range.graph->name());
    }
    if (shards != nullptr) return shards->layout;
    const bool asks = is_weight(tensor) && context.copied_weights != nullptr;
    if (!asks) return Layout::mirrored();
    const auto known = asked.find(&tensor);
    if (known != asked.end()) return known->second;
    return asked.emplace(&tensor, context.copied_weights(*tensor.copied_from)).first->second;
  };
  Plan plan;
  const std::vector<const Tensor*> outside = outside_tensors(range);
  for (const Tensor* tensor : outside) {
    if (tensor->is_leaf() && tensor->is_persistent()) check_unconstrained(*tensor, context.constraints);
  }
  plan.constraints = constraints_of(range, ranks, context.constraints);
  drop_placed_inputs(plan.constraints, context.shards);
  const Propagation propagation = propagate(range, ranks, leaf_layout, context.costs, context.rules, plan.constraints);
  const LeafLayout input_layout = [&](const Tensor& input) {
    const auto found = plan.constraints.empty() ? propagation.end() : propagation.find(&input);
    return found != propagation.end() ? found->second.result : leaf_layout(input);
  };
  lower(range, ranks, propagation, input_layout, context, options, plan);
  plan.layouts.reserve(static_cast<size_t>(range.end - range.begin) + 64);
  plan.graph_uid = range.graph->uid();
  plan.graph_name = range.graph->name();
  for (const Tensor* tensor : outside) plan.layouts.emplace_back(tensor, input_layout(*tensor));
  for (int i = range.begin; i < range.end; ++i) {
    const Tensor* node = range.graph->nodes()[i];
    plan.layouts.emplace_back(node, propagation.at(node).layout());
  }
  for (ConstrainedTensor& one : plan.constraints) {
    const auto found = propagation.find(one.tensor);
    one.followed = found != propagation.end() && found->second.layout() == one.constraint.layout;
  }
  const bool communicates = plan.communicates();
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan& part = plan.ranks[static_cast<size_t>(rank)];
    for (const Step& step : plan.steps) {
      if (is_joined(step)) part.fused.push_back(step.ranges[static_cast<size_t>(rank)]);
    }
    part.chunks = compute_chunks(part, *devices[rank]);
    part.memory.compute = std::accumulate(part.chunks.begin(), part.chunks.end(), size_t{0});
    const auto& held = context.communicator.buffer_bytes;
    part.memory.communication = communicates && !held.empty() ? held.at(static_cast<size_t>(rank)) : 0;
    plan.devices.push_back(devices[rank]->name());
  }
  for (const auto& [tensor, layout] : plan.layouts) {
    const Shards* shards = tensor->is_leaf() && tensor->is_persistent() ? context.shards(*tensor) : nullptr;
    if (shards != nullptr) add_placed(*shards, tensor->role, plan.ranks);
  }
  range.graph->freeze();
  return plan;
}

Plan make_plan(Graph& graph, const ShardStore& store, std::span<Device* const> devices) {
  PlanContext context{[&](const Tensor& tensor) { return store.find(tensor); }};
  context.communicator = collectives::communicator_for(devices).describe(devices);
  Plan plan = make_plan(whole(graph), context, devices);
  std::vector<Tensor*> persistent;
  for (Tensor* leaf : graph.leaves()) {
    if (leaf->is_persistent()) persistent.push_back(leaf);
  }
  const auto memory = persistent_memory(persistent, store, devices);
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    plan.ranks[rank].memory.weights = memory[rank].weights;
    plan.ranks[rank].memory.cache = memory[rank].cache;
  }
  return plan;
}

std::vector<MemoryUse> persistent_memory(std::span<Tensor* const> tensors, const ShardStore& store,
                                         std::span<Device* const> devices, BufferType& (Device::*weights_type)()) {
  std::vector<MemoryUse> memory(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = *devices[i];
    const int rank = static_cast<int>(i);
    memory[i].weights = role_bytes(tensors, store, Role::kWeight, rank, (device.*weights_type)());
    memory[i].cache = role_bytes(tensors, store, Role::kCache, rank, device.buffer_type());
  }
  return memory;
}

}  // namespace shoal::meta

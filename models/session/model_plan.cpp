#include "models/session/model_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "devices/allocate.h"
#include "models/place/weights_placement.h"
#include "processes/remote_device.h"

namespace shoal::models {
namespace {

/// Layout of a tensor on a device. Simple devices, and meta devices with one member, hold whole tensors and need no
/// communication.
meta::Layout layout_on(const Placement& placement, int device, const Tensor& tensor) {
  const SplitPolicy* policy = placement.policy_of(device);
  if (policy == nullptr || policy->devices() == 1) return meta::Layout::mirrored();
  return meta::to_layout((*policy)(tensor), tensor, policy->devices());
}

/// Declares the tensors of a device. For a simple device, declares all tensors, because the device can also use tensors
/// in host memory.
void declare(meta::ShardStore& store, const Placement& placement, int device, std::span<Tensor* const> tensors) {
  for (const Tensor* tensor : tensors) {
    if (placement.policy_of(device) != nullptr && placement.device_of(*tensor) != device) continue;
    store.declare(*tensor, layout_on(placement, device, *tensor));
  }
}

std::vector<Tensor*> tensors_on(const Placement& placement, size_t device, std::span<Tensor* const> tensors) {
  std::vector<Tensor*> found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [&](const Tensor* tensor) { return placement.device_of(*tensor) == static_cast<int>(device); });
  return found;
}

/// Plans graphs one by one. Records the maximum compute memory over all graphs.
class Planner {
 public:
  Planner(const Model& model, const Placement& placement, const SessionOptions& options,
          std::span<const WeightsPlacement> homes, const ModelPlan& plan)
      : model_(model),
        placement_(placement),
        options_(options),
        homes_(homes),
        plan_(plan),
        chunks_(placement.devices().size()) {}

  PlannedGraph plan(BatchShape shape) {
    PlannedGraph planned;
    planned.shape = shape;
    shape.candidates = std::min(options_.candidates, model_.hparams.vocab);
    shape.keeps_logits = options_.candidates == 0 || options_.keeps_logits;
    planned.graph = model_.architecture->build(model_.hparams, model_.weights, plan_.cache, shape);
    sched::ScheduleOptions options;
    options.op_offload = options_.op_offload;
    options.home = [this](const Tensor& tensor) -> const BufferType* {
      const auto d = static_cast<size_t>(placement_.device_of(tensor));
      return tensor.role == Role::kWeight ? homes_[d].type : &placement_.devices()[d]->buffer_type();
    };
    planned.schedule = sched::make_schedule(*planned.graph.graph, placement_.devices(), options);
    planned.local = sched::make_local_graphs(planned.schedule);
    const int copies = scheduler_options(placement_, options_).copies;
    host_bytes_ += sched::host_bytes(planned.schedule, sched::copies_for(planned.schedule, copies)) +
                   sched::input_bytes(*planned.graph.graph);
    for (size_t d = 0; d < placement_.devices().size(); ++d) {
      planned.plans.emplace_back();
      if (planned.local.backends[d].graph != nullptr) planned.plans.back() = plan_on(d, planned.local.backends[d]);
    }
    return planned;
  }

  size_t host_bytes() const { return host_bytes_; }
  /// Bytes of compute memory that member `rank` of a device needs for all graphs planned so far.
  size_t compute(size_t device, size_t rank) const {
    if (rank >= chunks_[device].size()) return 0;
    const auto& sizes = chunks_[device][rank];
    return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  }

 private:
  meta::Plan plan_on(size_t device, const sched::LocalGraph& local) {
    const auto members = placement_.members_of(static_cast<int>(device));
    const meta::ShardStore& store = plan_.stores[device];
    const auto* mesh = dynamic_cast<const meta::MetaDevice*>(placement_.devices()[device]);
    meta::PlanContext context = mesh != nullptr ? mesh->plan_context() : meta::PlanContext();
    context.shards = [&store](const Tensor& tensor) { return store.find(tensor); };
    context.copied_weights = [&](const Tensor& weight) {
      return layout_on(placement_, static_cast<int>(device), weight);
    };
    meta::Plan plan = meta::make_plan(whole(*local.graph), context, members, sched::plan_options(local));
    chunks_[device].resize(members.size());
    for (size_t rank = 0; rank < members.size(); ++rank) {
      const std::vector<size_t>& sizes = plan.ranks[rank].chunks;
      std::vector<size_t>& most = chunks_[device][rank];
      most.resize(std::max(most.size(), sizes.size()));
      for (size_t i = 0; i < sizes.size(); ++i) most[i] = std::max(most[i], sizes[i]);
    }
    return plan;
  }

  const Model& model_;
  const Placement& placement_;
  const SessionOptions& options_;
  std::span<const WeightsPlacement> homes_;
  const ModelPlan& plan_;
  std::vector<std::vector<std::vector<size_t>>> chunks_;  ///< maximum bytes over all graphs, by device, member and
                                                          ///< chunk
  size_t host_bytes_ = 0;
};

/// Bytes of a device's weights that stay in the file's mapping.
size_t mapped_bytes(const Model& model, const WeightsPlacement& home, std::span<Tensor* const> weights) {
  if (weights.empty() || !home.mapped) return 0;
  if (weights.size() == model.weights.tensors().size()) return model.file.tensor_span().size();
  size_t bytes = 0;
  for (const Tensor* weight : weights) bytes += weight->bytes();
  return bytes;
}

/// Locations and layouts of weights and caches.
struct Persistent {
  const Model& model;
  const Placement& placement;
  const KvCache& cache;
  std::span<const meta::ShardStore> stores;
  std::span<const WeightsPlacement> homes;
};

/// Memory of each simple device for weights and caches. Calls add(use, device, rank) for each member of each device.
template <class Add>
std::vector<DeviceUse> add_up(const Persistent& p, const Add& add) {
  std::vector<DeviceUse> uses;
  for (Device* member : p.placement.members()) {
    uses.push_back({member->name(), {}, member->memory(), 0, family_name(*member) == "CPU"});
  }
  for (size_t d = 0; d < p.placement.devices().size(); ++d) {
    const auto members = p.placement.members_of(static_cast<int>(d));
    const std::vector<Tensor*> weights = tensors_on(p.placement, d, p.model.weights.tensors());
    const size_t mapped = mapped_bytes(p.model, p.homes[d], weights);
    const auto weight_use = meta::persistent_memory(weights, p.stores[d], members,
                                                    p.homes[d].repacked ? &Device::weights_type : &Device::buffer_type);
    const auto cache_use =
        meta::persistent_memory(tensors_on(p.placement, d, p.cache.context.tensors()), p.stores[d], members);
    for (size_t rank = 0; rank < members.size(); ++rank) {
      const auto known = std::find(p.placement.members().begin(), p.placement.members().end(), members[rank]);
      DeviceUse& use = uses[static_cast<size_t>(known - p.placement.members().begin())];
      use.use.weights += mapped > 0 ? 0 : weight_use[rank].weights;
      use.mapped += mapped;
      use.use.cache += cache_use[rank].cache;
      add(use, d, rank);
    }
  }
  return uses;
}

std::vector<meta::ShardStore> stores_of(const Model& model, const Placement& placement, const KvCache& cache) {
  std::vector<meta::ShardStore> stores;
  for (size_t d = 0; d < placement.devices().size(); ++d) {
    stores.emplace_back(static_cast<int>(placement.members_of(static_cast<int>(d)).size()));
    declare(stores.back(), placement, static_cast<int>(d), model.weights.tensors());
    declare(stores.back(), placement, static_cast<int>(d), cache.context.tensors());
  }
  return stores;
}

std::vector<WeightsPlacement> homes_of(const Model& model, const Placement& placement, const LoadOptions& load) {
  std::vector<WeightsPlacement> homes;
  for (size_t d = 0; d < placement.devices().size(); ++d) {
    const auto weights = tensors_on(placement, d, model.weights.tensors());
    homes.push_back(place_weights(model, *placement.devices()[d], weights, placement.devices().first(d), load));
  }
  return homes;
}

}  // namespace

ModelPlan::ModelPlan(const Model& model, const Placement& placement, const SessionOptions& options,
                     const LoadOptions& load, size_t most_prompts)
    : load(load), size(session_size(model.hparams, options)) {
  declare_cache(cache, model.hparams, cache_options(size, options, placement.latent_parts()));
  stores = stores_of(model, placement, cache);
  const std::vector<WeightsPlacement> homes = homes_of(model, placement, load);
  Planner planner(model, placement, options, homes, *this);
  step = planner.plan({1, 1});
  for (const BatchShape& shape : largest_shapes(size, options)) {
    if (prompts.size() < most_prompts) prompts.push_back(planner.plan(shape));
  }
  memory = add_up({model, placement, cache, stores, homes}, [&](DeviceUse& use, size_t d, size_t rank) {
    use.use.compute += planner.compute(d, rank);
    if (placement.policy_of(static_cast<int>(d)) != nullptr && step.plans[d]) {
      use.use.communication += step.plans[d]->ranks[rank].memory.communication;
    }
  });
  host_bytes = planner.host_bytes();
}

std::vector<DeviceUse> persistent_use(const Model& model, const Placement& placement, const SessionOptions& options,
                                      const LoadOptions& load) {
  KvCache cache;
  declare_cache(cache, model.hparams,
                cache_options(session_size(model.hparams, options), options, placement.latent_parts()));
  const std::vector<meta::ShardStore> stores = stores_of(model, placement, cache);
  const std::vector<WeightsPlacement> homes = homes_of(model, placement, load);
  return add_up({model, placement, cache, stores, homes}, [](DeviceUse&, size_t, size_t) {});
}

std::optional<CacheRoom> cache_room(const Model& model, const Placement& placement, const SessionOptions& options,
                                    const ModelPlan& plan) {
  constexpr int64_t kMore = 1 << 20;  // a multiple of all usual pages
  SessionOptions larger = options;
  larger.context = plan.cache.rows + kMore;
  const std::vector<DeviceUse> uses = persistent_use(model, placement, larger, plan.load);
  std::optional<CacheRoom> room;
  for (size_t i = 0; i < uses.size(); ++i) {
    const double more = static_cast<double>(uses[i].use.cache) - static_cast<double>(plan.memory[i].use.cache);
    if (more <= 0) continue;
    const double spare = static_cast<double>(plan.memory[i].memory.free) - static_cast<double>(plan.memory[i].needed());
    const auto tokens = plan.cache.rows + static_cast<int64_t>(spare / more * static_cast<double>(kMore));
    if (!room || tokens < room->tokens) room = CacheRoom{tokens, uses[i].device};
  }
  if (room) room->tokens = std::max<int64_t>(0, room->tokens);
  return room;
}

void ModelPlan::announce(const Model& model, const Placement& placement) const {
  for (size_t d = 0; d < placement.devices().size(); ++d) {
    auto* device = dynamic_cast<meta::MetaDevice*>(placement.devices()[d]);
    if (device == nullptr) continue;
    for (const TensorContext* context : {&model.weights, &cache.context}) {
      for (const Tensor* tensor : tensors_on(placement, d, context->tensors())) device->adopt(*tensor, stores[d]);
    }
  }
}

PlannedGraph plan_graph(const Model& model, const Placement& placement, const SessionOptions& options,
                        const ModelPlan& plan, BatchShape shape) {
  const std::vector<WeightsPlacement> homes = homes_of(model, placement, plan.load);
  return Planner(model, placement, options, homes, plan).plan(shape);
}

bool has_room(std::span<const DeviceUse> uses) {
  return std::all_of(uses.begin(), uses.end(), [](const DeviceUse& use) { return use.use.total() <= use.memory.free; });
}

bool fits(std::span<const DeviceUse> uses) {
  return std::all_of(uses.begin(), uses.end(), [](const DeviceUse& use) { return use.needed() <= use.memory.free; });
}

}  // namespace shoal::models

#include "models/model_plan.h"

#include <algorithm>

#include "devices/params.h"
#include "graph/error.h"

namespace shoal::models {
namespace {

/// On one device everything lies whole, and there is nothing to communicate.
meta::Layout layout_for(const Placement& placement, const Tensor& tensor) {
  if (!placement.is_meta()) return meta::Layout::mirrored();
  return meta::to_layout(placement.policy()(tensor), tensor, placement.policy().devices());
}

void declare(meta::ShardStore& store, const Placement& placement, std::span<Tensor* const> tensors) {
  for (const Tensor* tensor : tensors) store.declare(*tensor, layout_for(placement, *tensor));
}

DecoderGraph build(const Model& model, const KvCache& cache, BatchShape shape) {
  return model.architecture->build(model.hparams, model.weights, cache, shape);
}

std::vector<DeviceUse> add_up(const ModelPlan& plan, const Model& model, const Placement& placement, bool mapped) {
  std::span<Device* const> members = placement.members();
  auto weights = meta::persistent_memory(model.weights.tensors(), plan.store, members);
  auto cache = meta::persistent_memory(plan.cache.context.tensors(), plan.store, members);
  std::vector<DeviceUse> out;
  for (size_t d = 0; d < members.size(); ++d) {
    DeviceUse use{members[d]->name(), {}, members[d]->memory()};
    use.use.weights = mapped ? 0 : weights[d].weights;
    use.mapped = mapped ? model.file.tensor_span().size() : 0;
    use.use.cache = cache[d].cache;
    use.use.compute = plan.step.ranks[d].memory.compute;
    for (const meta::Plan& prompt : plan.prompts) use.use.compute += prompt.ranks[d].memory.compute;
    if (placement.is_meta()) use.use.communication = plan.step.ranks[d].memory.communication;
    out.push_back(std::move(use));
  }
  return out;
}

}  // namespace

ModelPlan::ModelPlan(const Model& model, const Placement& placement, const SessionOptions& options,
                     const LoadOptions& load)
    : size(session_size(model.hparams, options)), store(static_cast<int>(placement.members().size())) {
  declare_cache(cache, model.hparams, {size.context, options.dtype_k, options.dtype_v});
  declare(store, placement, model.weights.tensors());
  declare(store, placement, cache.context.tensors());
  step_graph = build(model, cache, {1, 1});
  step = meta::make_plan(*step_graph.graph, store, placement.members());
  for (const BatchShape& shape : largest_prompt_shapes(size.batch)) {
    prompt_graphs.push_back(build(model, cache, shape));
    prompts.push_back(meta::make_plan(*prompt_graphs.back().graph, store, placement.members()));
  }
  memory = add_up(*this, model, placement, load.use_mapping && can_use_mapping(model, placement.device()));
}

void require_memory(std::span<const DeviceUse> uses) {
  for (const DeviceUse& use : uses) {
    require<DeviceError>(use.use.total() <= use.memory.free,
                         "{} needs {} and has {} free; use more devices, a smaller share for it (--tensor-split), a "
                         "smaller context (-c) or batch (-ub), or a quantised cache (-ctk q8_0 -ctv q8_0)",
                         use.device, format_bytes(use.use.total()), format_bytes(use.memory.free));
  }
}

std::string mapping_warning(std::span<const DeviceUse> uses) {
  for (const DeviceUse& use : uses) {
    if (use.mapped == 0 || use.mapped <= use.memory.free - std::min(use.use.total(), use.memory.free)) continue;
    return fmt::format(
        "{} has {} free for {} of weights and {} more: parts of the model file will be read again and again; use more "
        "devices or a smaller model",
        use.device, format_bytes(use.memory.free), format_bytes(use.mapped), format_bytes(use.use.total()));
  }
  return {};
}

}  // namespace shoal::models

#include "tools/report/compared_model.h"

#include <map>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "devices/allocate.h"
#include "models/session/loader.h"

namespace shoal::tools {
namespace {

meta::Layout stored_layout(const models::Placement& placement, const Tensor& tensor) {
  if (!placement.is_meta()) return meta::Layout::mirrored();
  return meta::to_layout(placement.policy()(tensor), tensor, placement.policy().devices());
}

std::vector<std::byte> stored(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

/// What writes into a cache shows all of it, which comes afterwards.
bool is_compared(const Tensor& node) {
  return info(node.op).alias == Alias::kNone;
}

}  // namespace

ComparedModel::ComparedModel(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                             const models::PlacementOptions& placement, const models::SessionOptions& options,
                             int64_t prompt_tokens)
    : model_(std::move(model)),
      one_(*model_, std::vector<Device*>{devices.front()}, {.ratio = {}, .threads = placement.threads}),
      many_(*model_, devices, placement),
      one_backend_(std::move(one_.init().front())),
      many_backend_(std::move(many_.init().front())),
      prompt_tokens_(prompt_tokens),
      copies_(many_.device()) {
  models::declare_cache(cache_, model_->hparams, {options.context, options.dtype_k, options.dtype_v});
}

ComparedModel::~ComparedModel() {
  // The memory belongs to the placement's device.
  models::unload_weights(*model_);
}

models::DecoderGraph ComparedModel::build(int64_t tokens) const {
  return model_->architecture->build(model_->hparams, model_->weights, cache_, {tokens, tokens});
}

std::vector<models::DeviceUse> ComparedModel::memory(const models::Placement& placement) const {
  std::span<Device* const> members = placement.members();
  meta::ShardStore store(static_cast<int>(members.size()));
  for (const Tensor* tensor : model_->weights.tensors()) store.declare(*tensor, stored_layout(placement, *tensor));
  for (const Tensor* tensor : cache_.context.tensors()) store.declare(*tensor, stored_layout(placement, *tensor));
  auto weights = meta::persistent_memory(model_->weights.tensors(), store, members);
  auto caches = meta::persistent_memory(cache_.context.tensors(), store, members);
  std::vector<models::DeviceUse> uses;
  for (size_t d = 0; d < members.size(); ++d) {
    models::DeviceUse use{members[d]->name(), {}, members[d]->memory()};
    use.use.weights = weights[d].weights;
    use.use.cache = caches[d].cache;
    uses.push_back(use);
  }
  const auto* mesh = dynamic_cast<const meta::MetaDevice*>(&placement.device());
  meta::PlanContext context = mesh != nullptr ? mesh->plan_context() : meta::PlanContext();
  context.shards = [&](const Tensor& tensor) { return store.find(tensor); };
  for (int64_t tokens : {prompt_tokens_, int64_t{1}}) {
    models::DecoderGraph graph = build(tokens);
    meta::Plan plan =
        meta::make_plan(whole(*graph.graph), context, members, sched::comparison_options(*graph.graph, is_compared));
    for (size_t d = 0; d < members.size(); ++d) {
      // A graph goes before the next one comes.
      uses[d].use.compute = std::max(uses[d].use.compute, plan.ranks[d].memory.compute);
      if (placement.is_meta()) uses[d].use.communication = plan.ranks[d].memory.communication;
    }
  }
  return uses;
}

void ComparedModel::require_memory() const {
  std::map<std::string, size_t> one_needs;
  for (const models::DeviceUse& use : memory(one_)) one_needs[use.device] = use.use.total();
  for (const models::DeviceUse& use : memory(many_)) {
    const size_t needed = use.use.total() + one_needs[use.device];
    require<DeviceError>(needed <= use.memory.free,
                         "{} needs {} and has {} free{}; use a shorter prompt (-p), a smaller context (-c) or other "
                         "devices",
                         use.device, format_bytes(needed), format_bytes(use.memory.free),
                         one_needs[use.device] > 0 ? ", for it has the whole model too" : "");
  }
}

void ComparedModel::load() {
  // Weights that are copied lie as those that are loaded, as memory() counts them.
  models::load_weights(*model_, one_, {}, {.use_mapping = false, .repack = false});
  cache_buffer_ = allocate_tensors(cache_.context.tensors(), one_.device().buffer_type(), Usage::kAny);
  cache_buffer_->clear(0);
}

std::vector<float> ComparedModel::step(std::span<const int32_t> tokens,
                                       const std::function<void(const Compared&)>& show) {
  models::DecoderGraph graph = build(static_cast<int64_t>(tokens.size()));
  sched::Comparison comparison(*one_backend_, *graph.graph, *many_backend_, copies_, is_compared);
  std::vector<int32_t> positions(tokens.size()), outputs(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
  std::iota(outputs.begin(), outputs.end(), 0);
  tensor_set(*graph.tokens, tokens.data(), 0, tokens.size_bytes());
  tensor_set(*graph.positions, positions.data(), 0, tokens.size_bytes());
  tensor_set(*graph.cache_rows, positions.data(), 0, tokens.size_bytes());
  tensor_set(*graph.out_ids, outputs.data(), 0, tokens.size_bytes());
  std::vector<float> logits;
  const meta::Plan& plan = meta::plan_of(comparison.second_plan());
  comparison.run([&](const sched::ComparedNode& node) {
    show({node.node, plan.layout(node.copy).to_string(), node.first, node.second});
    if (&node.node == graph.logits) logits = to_floats(node.node, node.first);
    return true;
  });
  show_caches(show);
  position_ += static_cast<int64_t>(tokens.size());
  check(!logits.empty(), "no logits among the nodes of {}", graph.graph->name());
  logits.erase(logits.begin(), logits.end() - graph.logits->shape[0]);
  return logits;
}

void ComparedModel::show_caches(const std::function<void(const Compared&)>& show) const {
  for (const Tensor* cache : cache_.context.tensors()) {
    const Tensor* copy = copies_.find(*cache);
    check(copy != nullptr, "cache {} is not used", cache->name);
    const auto one = stored(*cache), many = stored(*copy);
    show({*cache, stored_layout(many_, *cache).to_string(), one, many});
  }
}

std::vector<float> to_floats(const Tensor& tensor, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

}  // namespace shoal::tools

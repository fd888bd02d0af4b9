#include "tools/comparison_side.h"

#include <numeric>

#include "devices/allocate.h"
#include "models/loader.h"

namespace shoal::tools {

ComparisonSide::ComparisonSide(const std::string& path, std::vector<Device*> devices,
                               const models::PlacementOptions& placement, const models::SessionOptions& options,
                               int64_t prompt_tokens)
    : model_(models::open_model(path)),
      placement_(*model_, std::move(devices), placement),
      backend_(std::move(placement_.init().front())),
      prompt_tokens_(prompt_tokens) {
  models::declare_cache(cache_, model_->hparams, {options.context, options.dtype_k, options.dtype_v});
}

ComparisonSide::~ComparisonSide() {
  // The memory belongs to the placement's device.
  models::unload_weights(*model_);
}

models::DecoderGraph ComparisonSide::build(int64_t tokens) const {
  models::DecoderGraph graph = model_->architecture->build(model_->hparams, model_->weights, cache_, {tokens, tokens});
  for (Tensor* node : graph.graph->nodes()) {
    if (info(node->op).alias == Alias::kNone) graph.graph->output(node);
  }
  return graph;
}

meta::Layout ComparisonSide::stored_layout(const Tensor& tensor) const {
  if (!placement_.is_meta()) return meta::Layout::mirrored();
  return meta::to_layout(placement_.policy()(tensor), tensor, placement_.policy().devices());
}

std::vector<models::DeviceUse> ComparisonSide::memory() const {
  std::span<Device* const> members = placement_.members();
  meta::ShardStore store(static_cast<int>(members.size()));
  for (const Tensor* tensor : model_->weights.tensors()) store.declare(*tensor, stored_layout(*tensor));
  for (const Tensor* tensor : cache_.context.tensors()) store.declare(*tensor, stored_layout(*tensor));
  auto weights = meta::persistent_memory(model_->weights.tensors(), store, members);
  auto caches = meta::persistent_memory(cache_.context.tensors(), store, members);
  std::vector<models::DeviceUse> uses;
  for (size_t d = 0; d < members.size(); ++d) {
    models::DeviceUse use{members[d]->name(), {}, members[d]->memory()};
    use.use.weights = weights[d].weights;
    use.use.cache = caches[d].cache;
    uses.push_back(use);
  }
  for (int64_t tokens : {prompt_tokens_, int64_t{1}}) {
    models::DecoderGraph graph = build(tokens);
    meta::Plan plan = meta::make_plan(*graph.graph, store, members);
    for (size_t d = 0; d < members.size(); ++d) {
      // A graph goes before the next one comes.
      uses[d].use.compute = std::max(uses[d].use.compute, plan.ranks[d].memory.compute);
      if (placement_.is_meta()) uses[d].use.communication = plan.ranks[d].memory.communication;
    }
  }
  return uses;
}

void ComparisonSide::load() {
  // Both sides hold weights in the same way, as memory() counts them.
  models::load_weights(*model_, placement_, {}, {.use_mapping = false});
  cache_buffer_ = allocate_tensors(cache_.context.tensors(), placement_.device().buffer_type(), Usage::kAny);
  cache_buffer_->clear(0);
}

void ComparisonSide::run(std::span<const int32_t> tokens) {
  plan_.reset();
  graph_ = build(static_cast<int64_t>(tokens.size()));
  plan_ = backend_->create_plan(*graph_.graph);
  std::vector<int32_t> positions(tokens.size()), outputs(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
  std::iota(outputs.begin(), outputs.end(), 0);
  tensor_set(*graph_.tokens, tokens.data(), 0, tokens.size_bytes());
  tensor_set(*graph_.positions, positions.data(), 0, tokens.size_bytes());
  tensor_set(*graph_.cache_rows, positions.data(), 0, tokens.size_bytes());
  tensor_set(*graph_.out_ids, outputs.data(), 0, tokens.size_bytes());
  backend_->compute_async(*plan_);
  backend_->synchronize();
  position_ += static_cast<int64_t>(tokens.size());
}

std::string ComparisonSide::layout(const Tensor& node) const {
  return meta::plan_of(*plan_).layout(node).to_string();
}

std::string ComparisonSide::cache_layout(const Tensor& cache) const {
  return stored_layout(cache).to_string();
}

std::vector<float> read_values(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  std::vector<float> values(tensor.elements());
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

}  // namespace shoal::tools

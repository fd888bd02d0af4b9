#include "tools/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "devices/allocate.h"
#include "models/session/inputs.h"
#include "models/session/loader.h"
#include "models/session/model_plan.h"
#include "sched/compare.h"
#include "tools/cli/threads.h"

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

/// Whether the result of a node is compared. Nodes that write into a cache are not compared, because their result is
/// the whole cache, which is compared afterwards.
bool is_compared(const Tensor& node) {
  return info(node.op).alias == Alias::kNone;
}

/// Converts the stored bytes of a tensor to f32.
std::vector<float> to_floats(const Tensor& tensor, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

/// A model on one device, and a copy of the model on several devices that act as one device. Owns all loaded weights
/// and caches. Only one thread may use an object.
class ComparedModel {
 public:
  /// Creates the placements and starts the threads of the devices, but does not load weights. `options.context` must be
  /// set.
  ComparedModel(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                const models::PlacementOptions& placement, const models::SessionOptions& options,
                int64_t prompt_tokens);
  ~ComparedModel();
  ComparedModel(const ComparedModel&) = delete;
  ComparedModel& operator=(const ComparedModel&) = delete;

  /// Throws DeviceError if a device has too little memory for weights, caches and the larger of the two graphs (whole
  /// prompt, one token). The first device needs memory for both copies of the model.
  void require_memory() const;
  void load();
  /// Evaluates the tokens: the whole prompt in the first call, one token in the second. Appends the error of each node
  /// in graph order, then the error of each cache. Returns the logits of the last token on the single device.
  std::vector<float> step(const char* name, std::span<const int32_t> tokens, std::vector<NodeError>& errors);

 private:
  models::DecoderGraph build(int64_t tokens) const;
  std::vector<models::DeviceUse> memory(const models::Placement& placement) const;

  std::unique_ptr<models::Model> model_;
  models::Placement one_, many_;
  std::unique_ptr<Backend> one_backend_, many_backend_;
  int64_t prompt_tokens_;
  models::KvCache cache_;
  std::unique_ptr<Buffer> cache_buffer_;
  sched::LeafCopies copies_;
  int64_t position_ = 0;
};

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
  // Frees the weights before the placement is destroyed, because the placement's device owns the memory of the weights.
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
      // Only one graph exists at a time, the graph for the prompt or for one token. So only the larger graph counts.
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
                         one_needs[use.device] > 0 ? " (this device also holds the whole model)" : "");
  }
}

void ComparedModel::load() {
  // Loads the weights without mapping and repacking. The copies of the weights then have the same layout, as memory()
  // assumes.
  models::load_weights(*model_, one_, {}, {.use_mapping = false, .repack = false});
  cache_buffer_ = allocate_tensors(cache_.context.tensors(), one_.device().buffer_type(), Usage::kAny);
  cache_buffer_->clear(0);
}

std::vector<float> ComparedModel::step(const char* name, std::span<const int32_t> tokens,
                                       std::vector<NodeError>& errors) {
  models::DecoderGraph graph = build(static_cast<int64_t>(tokens.size()));
  sched::Comparison comparison(*one_backend_, *graph.graph, *many_backend_, copies_, is_compared);
  std::vector<int32_t> positions(tokens.size()), outputs(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
  std::iota(outputs.begin(), outputs.end(), 0);
  tensor_set(*graph.tokens, tokens.data(), 0, tokens.size_bytes());
  models::WholeCache(cache_).write_inputs(graph, model_->hparams, positions);
  tensor_set(*graph.out_ids, outputs.data(), 0, tokens.size_bytes());
  std::vector<float> logits;
  const auto add = [&](const Tensor& tensor, std::string_view op, const meta::Layout& layout,
                       std::span<const std::byte> one, std::span<const std::byte> many) {
    const std::vector<float> expected = to_floats(tensor, one);
    errors.push_back({name, tensor.name, std::string(op), layout.to_string(),
                      normalised_error(expected, to_floats(tensor, many)), is_finite(expected)});
    if (&tensor == graph.logits) logits.assign(expected.end() - tensor.shape[0], expected.end());
  };
  const meta::Plan& plan = meta::plan_of(comparison.second_plan());
  comparison.run([&](const sched::ComparedNode& node) {
    add(node.node, name_of(node.node.op), plan.layout(node.copy), node.first, node.second);
    return true;
  });
  for (const Tensor* cache : cache_.context.tensors()) {
    const Tensor* copy = copies_.find(*cache);
    check(copy != nullptr, "cache {} is not used", cache->name);
    add(*cache, "cache", stored_layout(many_, *cache), stored(*cache), stored(*copy));
  }
  position_ += static_cast<int64_t>(tokens.size());
  check(!logits.empty(), "no logits among the nodes of {}", graph.graph->name());
  return logits;
}

}  // namespace

double normalised_error(std::span<const float> a, std::span<const float> b) {
  check(a.size() == b.size(), "{} values cannot be compared with {} values", a.size(), b.size());
  double squares = 0.0, differences = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    differences += difference * difference;
  }
  if (differences == 0.0) return 0.0;
  double error = differences / squares;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

std::vector<NodeError> compare_nodes(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, models::SessionOptions session,
                                     std::span<const int32_t> tokens) {
  int64_t needed = static_cast<int64_t>(tokens.size()) + 1;
  if (session.context == 0) session.context = needed;
  require<InvalidArgument>(
      needed <= session.context,
      "{} prompt tokens and one generated token do not fit into a context of {}; use -c {} or more", tokens.size(),
      session.context, needed);
  require_threads(threads_needed({devices.data(), 1}, placement.threads) + threads_needed(devices, placement.threads));
  ComparedModel compared(std::move(model), devices, placement, session, needed - 1);
  compared.require_memory();
  compared.load();
  std::vector<NodeError> errors;
  const std::vector<float> logits = compared.step("prompt", tokens, errors);
  const auto next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  compared.step("token", {&next, 1}, errors);
  return errors;
}

}  // namespace shoal::tools

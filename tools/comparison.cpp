#include "tools/comparison.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "devices/allocate.h"
#include "graph/error.h"
#include "models/loader.h"

namespace shoal::tools {
namespace {

/// One side: the model loaded on a placement and its graph run once with every node kept.
class Side {
 public:
  Side(const std::string& path, std::vector<Device*> devices, const models::PlacementOptions& placement)
      : model_(models::open_model(path)), placement_(*model_, std::move(devices), placement) {}
  ~Side() {
    // The memory belongs to the placement's device.
    model_->buffer.reset();
  }

  void run(const models::SessionOptions& options, std::span<const int32_t> tokens) {
    Device& device = placement_.device();
    models::load_weights(*model_, device);
    models::SessionSize size = models::session_size(model_->hparams, options);
    int64_t count = static_cast<int64_t>(tokens.size());
    require<InvalidArgument>(count <= size.context, "{} tokens do not fit into a context of {}; use -c {} or more",
                             count, size.context, count);
    models::declare_cache(cache_, model_->hparams, {size.context, options.dtype_k, options.dtype_v});
    cache_buffer_ = allocate_tensors(cache_.context.tensors(), device.buffer_type(), Usage::kAny);
    cache_buffer_->clear(0);
    graph_ = model_->architecture->build(model_->hparams, model_->weights, cache_, {count, count});
    for (Tensor* node : graph_.graph->nodes()) {
      if (info(node->op).alias == Alias::kNone) graph_.graph->output(node);
    }
    backend_ = placement_.init();
    plan_ = backend_->create_plan(*graph_.graph);
    set_inputs(tokens);
    backend_->compute_async(*plan_);
    backend_->synchronize();
  }

  std::span<Tensor* const> nodes() const { return graph_.graph->nodes(); }
  std::string layout(const Tensor& node) const { return meta::plan_of(*plan_).layout(node).to_string(); }

 private:
  void set_inputs(std::span<const int32_t> tokens) {
    std::vector<int32_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    size_t bytes = tokens.size_bytes();
    tensor_set(*graph_.tokens, tokens.data(), 0, bytes);
    for (Tensor* input : {graph_.positions, graph_.cache_rows, graph_.out_ids}) {
      tensor_set(*input, order.data(), 0, bytes);
    }
  }

  std::unique_ptr<models::Model> model_;
  models::Placement placement_;
  models::KvCache cache_;
  std::unique_ptr<Buffer> cache_buffer_;
  models::DecoderGraph graph_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GraphPlan> plan_;
};

std::vector<float> read(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  std::vector<float> values(tensor.elements());
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

}  // namespace

double normalised_error(std::span<const float> a, std::span<const float> b) {
  check(a.size() == b.size(), "{} values against {}", a.size(), b.size());
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

std::vector<NodeError> compare_nodes(const std::string& path, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, const models::SessionOptions& session,
                                     std::span<const int32_t> tokens) {
  require<InvalidArgument>(devices.size() >= 2, "comparing needs at least two devices; name them with --devices");
  Side one(path, {devices.front()}, {{}, placement.threads});
  Side many(path, devices, placement);
  one.run(session, tokens);
  many.run(session, tokens);
  std::vector<NodeError> errors;
  for (size_t i = 0; i < one.nodes().size(); ++i) {
    const Tensor &expected = *one.nodes()[i], &actual = *many.nodes()[i];
    if (info(expected.op).alias != Alias::kNone) continue;
    errors.push_back({expected.name, std::string(name_of(expected.op)), many.layout(actual),
                      normalised_error(read(expected), read(actual))});
  }
  return errors;
}

}  // namespace shoal::tools

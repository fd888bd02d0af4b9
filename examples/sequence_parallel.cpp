// Divides the tokens around a norm. Between two feed-forward layers, every device would normally compute the same sum
// and the same norm after an all-reduce. Here each device computes them for its tokens: a reduce-scatter before the
// norm and an all-gather behind the norm replace the all-reduce, and the norm costs less time and memory.
#include <fmt/core.h>

#include <exception>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"

using namespace shoal;

/// down * relu(up * x). The hidden elements are divided, so the result is a partial sum on each device.
static Tensor* feed_forward(Graph& graph, TensorContext& weights, Tensor* x, const std::string& layer) {
  Tensor* up = weights.add(layer + ".up", DType::kF32, {4, 6, 1, 1});
  Tensor* down = weights.add(layer + ".down", DType::kF32, {6, 4, 1, 1});
  Tensor* hidden = unary(graph, mul_mat(graph, up, x, layer + ".hidden"), UnaryKind::kRelu, layer + ".active");
  return mul_mat(graph, down, hidden, layer + ".sum");
}

static void run() {
  cpu::configure("devices=2,threads=1");
  TensorContext weights;
  Graph graph("sequence_parallel");
  Tensor* x = graph.input("x", DType::kF32, {4, 3, 1, 1});
  // The op reshard requires the layout of its result: the tokens (axis 1) are divided evenly, whatever their number is.
  Tensor* first = reshard(graph, feed_forward(graph, weights, x, "first"), "axis 1", "first.tokens");
  Tensor* residual = add(graph, x, first, "residual");
  Tensor* norm = rms_norm(graph, residual, {1e-6f}, "norm");
  Tensor* second = reshard(graph, feed_forward(graph, weights, norm, "second"), "axis 1", "second.tokens");
  Tensor* y = graph.output(add(graph, residual, second, "y"));

  auto callback = [](const Tensor& weight) {
    return meta::SplitState::by_ratio(weight.name.ends_with(".up") ? 1 : 0, {2, 1});
  };
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), callback);
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  const std::vector<float> ones(24, 1.0f);
  for (Tensor* weight : weights.tensors()) tensor_set(*weight, ones.data(), 0, weight->bytes());

  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  fmt::print("{}", meta::to_string(meta::plan_of(*plan)));

  const std::vector<float> input{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  std::vector<float> result(12);
  tensor_set(*x, input.data(), 0, x->bytes());
  backend->compute_async(*plan);
  backend->synchronize();
  tensor_get(*y, result.data(), 0, y->bytes());
  fmt::print("y = {:.3f} {:.3f} {:.3f}\n", result[0], result[4], result[8]);  // 25 x + 24
}

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "sequence_parallel: error: {}\n", error.what());
    return 1;
  }
}

// Shards a graph of your own over three devices with a split-state callback, prints its plan, and runs it.
#include <fmt/core.h>

#include <exception>
#include <numeric>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"

using namespace shoal;

static void run() {
  // Three CPU devices with one thread each. For GPUs, replace the device list below by CUDA0,CUDA1,CUDA2.
  cpu::configure("devices=3,threads=1");

  // y = relu(down * relu(up * x)). In a shape, the first dimension is innermost. So `up` maps 4 elements to 6 elements,
  // and `down` maps 6 elements to 3 elements.
  TensorContext weights;
  Tensor* up = weights.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* down = weights.add("down", DType::kF32, {6, 3, 1, 1});

  // The 6 hidden elements are divided 3 : 2 : 1. The hidden elements are axis 1 of `up` and axis 0 of `down`.
  auto callback = [](const Tensor& weight) {
    return meta::SplitState::split(weight.name == "up" ? 1 : 0, {{3, 2, 1}});
  };
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1,CPU2"), callback);

  // One call allocates the shards of all weights. Writing a weight distributes its elements to the shards.
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  std::vector<float> ones(24, 1.0f), ramp(18);
  std::iota(ramp.begin(), ramp.end(), 0.0f);
  tensor_set(*up, ones.data(), 0, up->bytes());
  tensor_set(*down, ramp.data(), 0, down->bytes());

  // The graph does not depend on the devices.
  Graph graph("example");
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* hidden = unary(graph, mul_mat(graph, up, x, "hidden"), UnaryKind::kRelu, "active");
  Tensor* sum = mul_mat(graph, down, hidden, "sum");
  Tensor* y = graph.output(unary(graph, sum, UnaryKind::kRelu, "y"));

  // Each device has a partial sum over its hidden elements. One all-reduce adds the partial sums before the last relu.
  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  fmt::print("{}", meta::to_string(meta::plan_of(*plan)));

  std::vector<float> input{1, 2, 3, 4}, result(3);
  tensor_set(*x, input.data(), 0, x->bytes());
  backend->compute_async(*plan);
  backend->synchronize();
  tensor_get(*y, result.data(), 0, y->bytes());
  fmt::print("y = {} {} {}\n", result[0], result[1], result[2]);  // 10 * (0+..+5), 10 * (6+..+11), 10 * (12+..+17)
}

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "custom_graph: error: {}\n", error.what());
    return 1;
  }
}

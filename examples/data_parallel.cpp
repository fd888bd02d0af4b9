// Divides a batch: each device computes its samples with a copy of all weights. Only the layout of the input is
// required. The plan derives the layouts of all other tensors and has no collective.
#include <fmt/core.h>

#include <exception>
#include <numeric>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"

using namespace shoal;

static void run() {
  cpu::configure("devices=3,threads=1");
  TensorContext weights;
  Tensor* up = weights.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* down = weights.add("down", DType::kF32, {6, 4, 1, 1});

  // CPU0 gets three of six samples, CPU1 gets two samples, and CPU2 gets one sample. The samples are axis 1 of x.
  meta::MetaOptions options;
  options.constraints =
      meta::constraints({{"x", meta::Constraint::requirement(meta::SplitState::by_ratio(1, {3, 2, 1}))}});
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1,CPU2"), meta::split_states({}),
                                         options);  // without states, all weights are mirrored
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  const std::vector<float> ones(24, 1.0f);
  tensor_set(*up, ones.data(), 0, up->bytes());
  tensor_set(*down, ones.data(), 0, down->bytes());

  Graph graph("data_parallel");
  Tensor* x = graph.input("x", DType::kF32, {4, 6, 1, 1});
  Tensor* hidden = unary(graph, mul_mat(graph, up, x, "hidden"), UnaryKind::kRelu, "active");
  Tensor* y = graph.output(add(graph, x, mul_mat(graph, down, hidden, "sum"), "y"));

  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  fmt::print("{}", meta::to_string(meta::plan_of(*plan)));

  // Writing the input distributes the samples. Reading the output collects the samples.
  std::vector<float> input(24), result(24);
  std::iota(input.begin(), input.end(), 0.0f);
  tensor_set(*x, input.data(), 0, x->bytes());
  backend->compute_async(*plan);
  backend->synchronize();
  tensor_get(*y, result.data(), 0, y->bytes());
  fmt::print("y = {} {} {} {} {} {}\n", result[0], result[4], result[8], result[12], result[16], result[20]);
}

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_parallel: error: {}\n", error.what());
    return 1;
  }
}

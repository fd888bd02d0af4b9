// Uses the installed library as a stranger would: a device that is two, a weight split over them, one product.
#include <cstdio>
#include <vector>

#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "meta/meta_device.h"

int main() {
  using namespace shoal;
  const auto by_rows = [](const Tensor&) { return meta::SplitState::split(1, {{2, 1}}); };
  const auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), by_rows);

  TensorContext weights;
  Tensor* weight = weights.add("weight", DType::kF32, {2, 3, 1, 1});
  const auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);

  Graph graph("product");
  Tensor* x = graph.input("x", DType::kF32, {2, 1, 1, 1});
  Tensor* y = graph.output(mul_mat(graph, weight, x));
  const auto backend = device->init("threads=1");
  const auto plan = backend->create_plan(graph);

  const std::vector<float> rows = {1, 2, 3, 4, 5, 6}, vector = {10, 1};
  tensor_set(*weight, rows.data(), 0, weight->bytes());
  tensor_set(*x, vector.data(), 0, x->bytes());
  backend->compute_async(*plan);
  backend->synchronize();
  std::vector<float> result(3);
  tensor_get(*y, result.data(), 0, y->bytes());
  std::printf("%g %g %g\n", result[0], result[1], result[2]);
  return result == std::vector<float>{12, 34, 56} ? 0 : 1;
}

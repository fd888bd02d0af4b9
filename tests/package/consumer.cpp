// Uses the installed library as an external program would. Runs one matrix product on a meta device of two devices that
// split the weight. Reads a model file. Loads and runs the plug-in whose file is the first argument.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"
#include "models/arch/model.h"
#include "models/place/split_policy.h"

namespace {

using namespace shoal;

/// Checks three functions for models. The smallest possible GGUF file is read. The error for a missing file names this
/// file. A ratio is converted to shares.
bool models_can_be_opened() {
  std::vector<std::byte> image(24);
  std::memcpy(image.data(), "GGUF\3", 5);
  const models::GgufFile file("smallest", image);
  if (file.version() != 3 || !file.tensors().empty()) return false;
  if (models::parse_ratio("3,1", 2) != std::vector<double>{0.75, 0.25}) return false;
  try {
    models::open_model("not/there.gguf");
  } catch (const InvalidArgument& error) {
    return std::string(error.what()).find("not/there.gguf") == 0;
  }
  return false;
}

bool plugin_can_be_used(const char* file) {
  Registry& registry = Registry::instance();
  registry.load(file);
  Graph graph("sum");
  Tensor* x = graph.input("x", DType::kF32, {2, 1, 1, 1});
  Tensor* y = graph.output(add(graph, x, x));
  std::vector<float> values = {1, 2};
  {
    const auto backend = registry.init("SIMPLE0");
    const auto plan = backend->create_plan(graph);
    tensor_set(*x, values.data(), 0, x->bytes());
    if (backend->compute(*plan) != Status::kSuccess) return false;
    tensor_get(*y, values.data(), 0, y->bytes());
  }
  registry.unload("SIMPLE");
  return values == std::vector<float>{2, 4};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !plugin_can_be_used(argv[1])) return 1;
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
  return models_can_be_opened() && result == std::vector<float>{12, 34, 56} ? 0 : 1;
}

// Divides the context of an attention. The tokens are 4 parts of 2 tokens, and a device has whole parts. Each device
// computes keys and values of its tokens only. The queries of all tokens attend to each part separately, and
// merge_attention adds up the results of the parts, weighted by their lse.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/ops/ops.h"
#include "meta/meta.h"

using namespace shoal;

static constexpr int64_t kWidth = 4, kTokens = 8, kParts = 4;

static Graph& add_nodes(Graph& graph, TensorContext& weights) {
  Tensor* wq = weights.add("wq", DType::kF32, {kWidth, kWidth, 1, 1});
  Tensor* wk = weights.add("wk", DType::kF32, {kWidth, kWidth, 1, 1});
  Tensor* wv = weights.add("wv", DType::kF32, {kWidth, kWidth, 1, 1});
  Tensor* x = graph.input("x", DType::kF32, {kWidth, kTokens, 1, 1});
  // attention() takes [width, tokens, heads, parts]. This example has one head.
  const Shape parts{kWidth, kTokens / kParts, 1, kParts};
  Tensor* q = mul_mat(graph, wq, x, "q");
  Tensor* k = reshape(graph, mul_mat(graph, wk, x, "k"), parts, "k.parts");
  Tensor* v = reshape(graph, mul_mat(graph, wv, x, "v"), parts, "v.parts");
  AttentionParams params{.scale = 0.5f};
  params.parts = kParts;
  Tensor* each = attention(graph, q, k, v, nullptr, nullptr, nullptr, params, "each");
  Tensor* lse = permute(graph, slice(graph, each, {0, kWidth, 1}, "each.lse"), {3, 1, 2, 0}, "lse");
  Tensor* merged = merge_attention(graph, each, lse, "merged");
  graph.output(reshape(graph, merged, {kWidth, kTokens, 1, 1}, "y"));
  return graph;
}

static std::vector<float> result_on(Device& device, bool prints) {
  TensorContext weights;
  Graph graph("context_parallel");
  add_nodes(graph, weights);
  auto memory = allocate_tensors(weights.tensors(), device.buffer_type(), Usage::kWeights);
  std::vector<float> values(kWidth * kTokens), result(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) / 7.0f;
  for (Tensor* weight : weights.tensors()) tensor_set(*weight, values.data(), 0, weight->bytes());
  auto backend = device.init();
  auto plan = backend->create_plan(graph);
  if (prints) fmt::print("{}", meta::to_string(meta::plan_of(*plan)));
  tensor_set(*graph.find("x"), values.data(), 0, graph.find("x")->bytes());
  backend->compute_async(*plan);
  backend->synchronize();
  tensor_get(*graph.find("y"), result.data(), 0, graph.find("y")->bytes());
  return result;
}

static void run() {
  cpu::configure("devices=2,threads=1");
  // CPU0 has three parts (6 tokens), and CPU1 has one part (2 tokens). The merged result has the same division.
  using meta::Constraint, meta::SplitState;
  meta::MetaOptions options;
  options.constraints = meta::constraints({{"x", Constraint::requirement(SplitState::split(1, {{6, 2}}))},
                                           {"merged", Constraint::requirement(SplitState::split(2, {{6, 2}}))}});
  auto device =
      meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), meta::split_states({}), options);
  const std::vector<float> whole = result_on(Registry::instance().device("CPU0"), false);
  const std::vector<float> divided = result_on(*device, true);
  float most = 0;
  for (size_t i = 0; i < whole.size(); ++i) most = std::max(most, std::abs(whole[i] - divided[i]));
  fmt::print("the largest difference to one device is {}\n", most < 1e-6f ? "below 1e-6" : "too large");
}

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "context_parallel: error: {}\n", error.what());
    return 1;
  }
}

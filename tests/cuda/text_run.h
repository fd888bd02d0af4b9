// Runs a graph in text form on an emulated GPU or another device. Returns the results and the number of kernel
// launches. The number is 0 on devices that are not emulated GPUs.
//
//   const Outcome fused = run_text(backend, text), alone = run_text(backend, text, {.alone = true});
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/meta/mesh.h"

namespace shoal::test {

inline std::vector<std::byte> read_bytes(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

/// Expects finite values. The error of each value must be at most `bound` times the largest expected magnitude.
inline void expect_close(const std::vector<float>& found, const std::vector<float>& expected, float bound,
                         const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0, worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::isfinite(found[i])) << what << " " << i;
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(found[i] - expected[i]));
  }
  EXPECT_GT(largest, 0) << what;
  EXPECT_LE(worst, bound * largest) << what;
}

/// Replaces each occurrence of `what` in the text with `by`.
inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

struct TextOptions {
  std::vector<int> cuts = {};
  bool alone = false;                   ///< whether to cut the graph between all nodes; nodes of `shown` then become
                                        ///< outputs
  std::vector<std::string> shown = {};  ///< nodes whose values are returned
  std::function<void(const Loaded& loaded)> more_inputs = {};  ///< may overwrite random inputs
};

struct Outcome {
  ptrdiff_t launches = 0;
  std::map<std::string, std::vector<std::byte>> bytes = {};  ///< bytes of outputs, caches and nodes of `shown`
  template <class T>
  std::vector<T> get(const std::string& name) const {
    std::vector<T> values(bytes.at(name).size() / sizeof(T));
    std::memcpy(values.data(), bytes.at(name).data(), bytes.at(name).size());
    return values;
  }
};

/// Runs a plan of the graph once.
inline Outcome run_text(Backend& backend, const std::string& text, const TextOptions& options = {}) {
  Loaded loaded(text, backend.device());
  PlanOptions of_plan;
  of_plan.cuts = options.cuts;
  for (int i = 1; options.alone && i < std::ssize(loaded.graph.nodes()); ++i) of_plan.cuts.push_back(i);
  std::vector<const Tensor*> seen;
  for (Tensor* node : loaded.graph.nodes()) {
    const bool shown = std::count(options.shown.begin(), options.shown.end(), node->name) > 0;
    if (shown && !options.alone) of_plan.shown.push_back(node);
    if (shown && options.alone) loaded.graph.output(node);  // after a cut, other nodes may overwrite the value
    if (shown || node->is_output) seen.push_back(node);
  }
  for (const Tensor* leaf : loaded.weights.tensors()) {
    if (leaf->role == Role::kCache) seen.push_back(leaf);
  }
  const auto plan = backend.create_plan(loaded.graph, of_plan);
  loaded.fill_inputs();
  if (options.more_inputs) options.more_inputs(loaded);
  cuda::emulator::record_calls();
  backend.compute_async(*plan);
  backend.synchronize();
  const auto calls = cuda::emulator::take_calls();
  Outcome outcome{std::count(calls.begin(), calls.end(), "cudaLaunchKernel")};
  for (const Tensor* tensor : seen) outcome.bytes[tensor->name] = read_bytes(*tensor);
  return outcome;
}

}  // namespace shoal::test

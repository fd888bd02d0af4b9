// A graph for a small test. All leaves have given values, and the graph has one result.
#pragma once

#include <fmt/format.h>

#include <string>

#include "devices/device.h"
#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

class Eval {
 public:
  Graph graph;

  /// Adds an input with these values. The name of the input is "x" followed by the index of the input.
  Tensor* input(DType dtype, const Shape& shape, const Values& values) {
    Tensor* leaf = graph.input(fmt::format("x{}", graph.inputs().size()), dtype, shape);
    leaves_[leaf] = rounded(dtype, values);
    return leaf;
  }
  Tensor* input(const Shape& shape, const Values& values) { return input(DType::kF32, shape, values); }
  Tensor* integers(const Values& values) {
    return input(DType::kI32, {static_cast<int64_t>(values.size()), 1, 1, 1}, values);
  }
  Tensor* cache(DType dtype, const Shape& shape, const Values& values) {
    Tensor* leaf = persistent_.add(fmt::format("c{}", persistent_.tensors().size()), dtype, shape, Role::kCache);
    leaves_[leaf] = rounded(dtype, values);
    return leaf;
  }
  /// Runs the graph and returns the values of `result`. May be called only once.
  Values run(Tensor* result, const std::string& spec = "CPU0:threads=2") {
    graph.output(result);
    const auto backend = Registry::instance().init(spec);
    return run_graph(*backend, graph, leaves_).at(result);
  }

 private:
  TensorContext persistent_;
  TensorValues leaves_;
};

/// Returns `count` values: first, first + step, ...
inline Values counting(int64_t count, double first = 0, double step = 1) {
  Values values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = first + step * static_cast<double>(i);
  return values;
}

}  // namespace shoal::test

// Element-wise ops, which run between the matrix products of a layer.
#include <fmt/format.h>

#include <cmath>

#include "benchmarks/ops_bench/subject.h"
#include "graph/ops/ops.h"

namespace shoal::bench {
namespace {

constexpr int64_t kEmbd = 2048, kHidden = 8192;
/// Number of nodes in a graph. With this many nodes, the time to wake a device is negligible.
constexpr int kMany = 64;

/// Times node(graph, a, b) for two leaves of shape [width, rows]. expected(a, b) returns one element of the result.
/// `sources`: number of leaves that the node reads, 1 or 2.
template <class Node, class Expected>
void add_one(Target& target, const std::string& name, int64_t width, int64_t rows, int sources, size_t result_bytes,
             double tolerance, Node node, Expected expected) {
  add_benchmark(target, fmt::format("{}/rows:{}", name, rows), [=](Subject& s) {
    const Leaf& a = s.leaf(DType::kF32, {width, rows, 1, 1});
    const Leaf& b = s.leaf(DType::kF32, {width, rows, 1, 1});
    for (int n = 0; n < kMany; ++n) s.node(node(s.graph(), a.tensor, b.tensor));
    const int64_t elements = width * rows;
    Cost cost{.bytes = static_cast<double>(elements) * (4.0 * sources + static_cast<double>(result_bytes)),
              .tolerance = tolerance};
    for (int64_t i = 0; i < elements; i += 97) {
      cost.samples.push_back({i, expected(a.at(i % width, i / width), b.at(i % width, i / width))});
    }
    return cost;
  });
}

}  // namespace

void add_elementwise(Target& target) {
  for (const int64_t rows : {1, 512}) {
    add_one(
        target, "add/f32", kEmbd, rows, 2, 4, 1e-12, [](Graph& g, Tensor* a, Tensor* b) { return add(g, a, b); },
        [](double a, double b) { return a + b; });
    add_one(
        target, "mul/f32", kEmbd, rows, 2, 4, 1e-12, [](Graph& g, Tensor* a, Tensor* b) { return mul(g, a, b); },
        [](double a, double b) { return a * b; });
    add_one(
        target, "swiglu/f32", kHidden, rows, 2, 4, 1e-12,
        [](Graph& g, Tensor* a, Tensor* b) { return glu(g, a, b, GluKind::kSwiglu); },
        [](double a, double b) { return a / (1 + std::exp(-a)) * b; });
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      add_one(
          target, fmt::format("cast/f32-{}", name_of(dtype)), kEmbd, rows, 1, 2, dtype == DType::kF16 ? 1e-6 : 1e-4,
          [=](Graph& g, Tensor* a, Tensor*) { return cast(g, a, dtype); }, [](double a, double) { return a; });
    }
  }
}

}  // namespace shoal::bench

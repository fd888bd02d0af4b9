// Matrix products with the sizes of a layer of a Llama with 1B parameters, and with the sizes of a layer of routed
// experts.
#include <fmt/format.h>

#include "benchmarks/ops_bench/subject.h"
#include "graph/ops/ops.h"

namespace shoal::bench {
namespace {

constexpr int64_t kColumns[] = {1, 2, 4, 6, 8, 16, 32, 64, 512};

struct Size {
  int64_t k, m;
};
constexpr Size kSizes[] = {{2048, 2048}, {2048, 8192}, {8192, 2048}};

struct Experts {
  int64_t k = 2048, m = 1024, count = 32, used = 4;
};
/// Sizes of the experts of gpt-oss. Each row consists of 90 blocks of 32 elements.
constexpr Experts kGptOss{2880, 2880, 32, 4};
constexpr int64_t kExpertTokens[] = {1, 8, 32, 512};

/// A product with quantised weights may round the columns to 8 bits. The relative error of each element is then
/// 1/254/sqrt(3).
double tolerance(DType weights) {
  if (traits(weights).is_quantized) return 1e-4;
  return weights == DType::kF32 ? 1e-10 : 1e-5;
}

/// The arithmetic that CPU devices use for a product. They multiply f16 and bf16 weights as fixed-point numbers.
Arithmetic arithmetic_of(DType weights) {
  if (traits(weights).is_quantized) return Arithmetic::kInt8;
  return weights == DType::kF32 ? Arithmetic::kF32 : Arithmetic::kInt16;
}

Cost product_cost(DType dtype, double ops) {
  Cost cost;
  cost.ops = ops;
  cost.arithmetic = arithmetic_of(dtype);
  cost.tolerance = tolerance(dtype);
  return cost;
}

double dot(const Leaf& a, int64_t a_row, const Leaf& b, int64_t b_row) {
  double sum = 0;
  for (int64_t i = 0; i < a.tensor->shape[0]; ++i) sum += static_cast<double>(a.at(i, a_row)) * b.at(i, b_row);
  return sum;
}

Cost build_mul_mat(Subject& s, DType dtype, Size size, int64_t columns) {
  const auto [k, m] = size;
  const auto weight_bytes = static_cast<double>(bytes_for(dtype, k * m));
  // A product with many columns reuses its matrix often. The first read of the matrix is then negligible, so one matrix
  // is enough.
  const int64_t matrices = columns < 512 ? leaves_for(s.target(), weight_bytes) : 1;
  const Leaf& b = s.leaf(DType::kF32, {k, columns, 1, 1});
  const Leaf* a = nullptr;
  for (int64_t i = 0; i < matrices; ++i) {
    a = &s.leaf(dtype, {k, m, 1, 1}, Role::kWeight, s.target().weights);
    s.node(mul_mat(s.graph(), a->tensor, b.tensor));
  }
  Cost cost = product_cost(dtype, 2.0 * static_cast<double>(k * m * columns));
  cost.bytes = weight_bytes + 4.0 * static_cast<double>((k + m) * columns);
  for (int64_t i = 0; i < 128; ++i) {
    const int64_t row = i * (m - 1) / 127, column = i * (columns - 1) / 127;
    cost.samples.push_back({column * m + row, dot(*a, row, b, column)});
  }
  return cost;
}

Cost build_mul_mat_id(Subject& s, DType dtype, const Experts& e, int64_t tokens) {
  const auto all_bytes = static_cast<double>(bytes_for(dtype, e.k * e.m * e.count));
  const int64_t pairs = tokens * e.used, touched = std::min(e.count, pairs);
  const Leaf& x = s.leaf(DType::kF32, {e.k, 1, tokens, 1});
  const Leaf* a = nullptr;
  std::vector<int32_t> ids(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < (tokens < 512 ? leaves_for(s.target(), all_bytes) : 1); ++i) {
    a = &s.leaf(dtype, {e.k, e.m, e.count, 1}, Role::kWeight, s.target().weights);
    // Successive nodes use different experts.
    for (int64_t first = 0; first < e.count; first += touched) {
      for (int64_t j = 0; j < pairs; ++j) ids[static_cast<size_t>(j)] = static_cast<int32_t>((first + 5 * j) % e.count);
      s.node(mul_mat_id(s.graph(), a->tensor, x.tensor, s.ints(ids, {e.used, tokens, 1, 1})));
    }
  }
  Cost cost = product_cost(dtype, 2.0 * static_cast<double>(e.k * e.m * pairs));
  cost.bytes = all_bytes * static_cast<double>(touched) / static_cast<double>(e.count) +
               4.0 * static_cast<double>(e.k * tokens + e.m * pairs);
  for (int64_t i = 0; i < 128; ++i) {
    const int64_t row = i * (e.m - 1) / 127, pair = i * (pairs - 1) / 127;
    const int64_t expert = ids[static_cast<size_t>(pair)];
    cost.samples.push_back({pair * e.m + row, dot(*a, expert * e.m + row, x, pair / e.used)});
  }
  return cost;
}

void add_mul_mat_id(Target& target, DType dtype, const Experts& experts) {
  for (const int64_t tokens : kExpertTokens) {
    add_benchmark(target,
                  fmt::format("mul_mat_id/{}/k:{}/m:{}/experts:{}/used:{}/n:{}", name_of(dtype), experts.k, experts.m,
                              experts.count, experts.used, tokens),
                  [=](Subject& s) { return build_mul_mat_id(s, dtype, experts, tokens); });
  }
}

}  // namespace

void add_products(Target& target) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!traits(dtype).is_float && !traits(dtype).is_quantized) continue;
    for (const Size& size : kSizes) {
      for (const int64_t columns : kColumns) {
        add_benchmark(target, fmt::format("mul_mat/{}/k:{}/m:{}/n:{}", name_of(dtype), size.k, size.m, columns),
                      [=](Subject& s) { return build_mul_mat(s, dtype, size, columns); });
      }
    }
  }
  for (const DType dtype : {DType::kF16, DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kMXFP4}) {
    add_mul_mat_id(target, dtype, {});
  }
  for (const DType dtype : {DType::kQ4_0, DType::kMXFP4}) add_mul_mat_id(target, dtype, kGptOss);
}

}  // namespace shoal::bench

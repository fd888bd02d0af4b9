// Internal to the random graphs (random_graph.h): the float values from which the graph grows, and the ops on images.
#pragma once

#include <fmt/format.h>

#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/random_graph.h"

namespace shoal::test {

/// A float value of the graph. `exact`: every sharding gives the same bits. A value is not exact if the sharding
/// changes the order of a sum on which the value depends. Only exact values may be sources of ops with discrete
/// results. `magnitude`: approximate largest absolute value.
struct Value {
  Tensor* tensor;
  bool exact;
  double magnitude;
};

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : rng_(seed), f32_only_(seed % 2 == 0), graph_("random") { case_.seed = seed; }

 protected:
  int pick(int64_t n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  int nodes() const { return static_cast<int>(graph_.nodes().size()); }
  std::string name(std::string_view prefix) { return fmt::format("{}.{}", prefix, counter_++); }

  Shape random_shape() {
    static constexpr int64_t kInner[] = {1, 2, 3, 4, 5, 8, 32, 64}, kOuter[] = {1, 1, 2, 3, 4, 6};
    Shape shape{kInner[pick(8)], kOuter[pick(6)], kOuter[pick(6)], pick(3) == 0 ? kOuter[pick(6)] : 1};
    if (!values_.empty() && pick(12) == 0) shape[pick(4)] = 0;
    return shape;
  }

  /// Returns `dtype`, or f32 if the case has only f32 values.
  DType rounding(DType dtype) {
    if (f32_only_) return DType::kF32;
    if (dtype != DType::kF32) case_.tolerance = kRounded;
    return dtype;
  }

  DType random_float(bool quantised) {
    static constexpr DType kTypes[] = {DType::kF32,  DType::kF32,  DType::kF32,  DType::kF16,  DType::kBF16,
                                       DType::kQ8_0, DType::kQ4_0, DType::kQ5_1, DType::kMXFP4};
    return rounding(kTypes[pick(quantised ? 9 : 5)]);
  }

  /// A new leaf with dtype f32 by default. The leaf is an input or a weight with a split state. A weight that may be
  /// Partial is inexact.
  Value fresh(Shape shape, std::string_view prefix = "x", DType dtype = DType::kF32) {
    if (prefix == "x" && pick(3) == 0) return {graph_.input(name(prefix), dtype, shape), true, 1.0};
    Tensor* leaf = weights_.add(name(prefix == "x" ? "w" : prefix), dtype, shape);
    const bool exact = prefix != "x" || pick(4) != 0;
    if (!exact) summable_.insert(leaf);
    return {leaf, exact, prefix == "div" ? 2.0 : 1.0};
  }

  /// A weight or cache for an op whose result is always inexact. The leaf may be Partial if its dtype can be summed.
  Tensor* operand(std::string_view prefix, DType dtype, Shape shape, Role role = Role::kWeight) {
    Tensor* leaf = weights_.add(name(prefix), dtype, shape, role);
    if (traits(dtype).is_float) summable_.insert(leaf);
    return leaf;
  }

  Value any() { return values_[pick(static_cast<int>(values_.size()))]; }
  void keep(Tensor* tensor, bool exact, double magnitude) {
    if (tensor->elements() > 4096 || (tensor->empty() && pick(3) != 0)) return;
    if (magnitude > 16) {
      tensor = scale(graph_, tensor, {static_cast<float>(1.0 / magnitude), 0.0f});
      magnitude = 1;
    }
    values_.push_back({tensor, exact, magnitude});
  }

  Tensor* dense(Tensor* x) { return x->is_contiguous() ? x : contiguous(graph_, x); }

  std::mt19937_64 rng_;
  const bool f32_only_;
  RandomCase case_;
  TensorContext weights_;
  Graph graph_;
  std::vector<Value> values_;
  std::set<Tensor*> summable_;  ///< leaves that may be Partial
  int counter_ = 0;
};

class RandomImages : public RandomValues {
 protected:
  using RandomValues::RandomValues;

  void make_image();
  void make_pool();
  void make_pad();
  void make_upsample();
};

}  // namespace shoal::test

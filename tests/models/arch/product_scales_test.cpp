// Tests the additional tensors of nvfp4 weights. X.scale contains one factor per matrix or per expert. Each product
// with the matrix or expert is multiplied by its factor. X.input_scale contains factors of activations, which shoal
// ignores.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

const std::vector<int32_t> kScaledText{3, 14, 15, 92, 65, 35};

/// Logits of a model with product scales. The scales are `factor` times powers of two. If `factor` is 0, the model has
/// no scales. The scales of the two matrices of each pair cancel exactly. If `only_first` is true, only the first
/// matrix of each pair has scales.
std::vector<float> logits_with(float factor, int64_t experts, const char* devices_ratio, int devices,
                               bool only_first = false) {
  SyntheticModel model;
  model.dtype = DType::kNVFP4;
  model.h.embd = 64, model.h.ff = 128;
  model.h.experts = experts, model.h.experts_used = experts > 0 ? 2 : 0;
  model.keys = [=](test::GgufWriter& writer) {
    if (factor == 0) return;
    const auto add = [&](int64_t layer, const std::string& of, float value, int64_t count) {
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) values.push_back(value * (value < 1 ? 1.0f / (1 << i) : 1 << i));
      writer.add_tensor(fmt::format("blk.{}.{}.scale", layer, of), DType::kF32, {count}, values);
      writer.add_tensor(fmt::format("blk.{}.{}.input_scale", layer, of), DType::kF32, {count},
                        std::vector<float>(count, 3.0f));
    };
    const std::string suffix = experts > 0 ? "_exps" : "";
    const int64_t count = std::max<int64_t>(experts, 1);
    for (int64_t layer = 0; layer < model.h.layers; ++layer) {
      const std::vector<std::pair<std::string, std::string>> pairs{
          {"attn_q", "attn_k"}, {"attn_v", "attn_output"}, {"ffn_up" + suffix, "ffn_down" + suffix}};
      for (const auto& [first, second] : pairs) {
        const int64_t each = first.starts_with("ffn") ? count : 1;
        add(layer, first, factor, each);
        if (!only_first) add(layer, second, 1 / factor, each);
      }
    }
  };
  SessionOptions options;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.batch = 4;
  LoadedModel loaded(model.write(), devices, devices_ratio, options);
  loaded.session->evaluate(kScaledText);
  const auto logits = loaded.session->logits();
  return {logits.begin(), logits.end()};
}

TEST(ProductScales, MultiplyProducts) {
  for (const int64_t experts : {0, 4}) {
    for (const int devices : {1, 2}) {
      SCOPED_TRACE(testing::Message() << experts << " experts, " << devices << " devices");
      const std::vector<float> without = logits_with(0, experts, "", devices);
      EXPECT_EQ(logits_with(4, experts, "", devices), without);
      EXPECT_NE(logits_with(4, experts, "", devices, true), without);
    }
  }
}

std::vector<float> logits_of_scaled(const SyntheticModel& model) {
  LoadedModel loaded(model.write(), 2, "", {.context = 32, .batch = 4});
  loaded.session->evaluate(kScaledText);
  const auto logits = loaded.session->logits();
  return {logits.begin(), logits.end()};
}

// With one expert, a matrix that fuses gate and up has the same elements in the same order as two separate matrices.
TEST(ProductScales, MultiplyFusedGateAndUp) {
  const auto logits = [](bool fused, float factor) {
    SyntheticModel model;
    model.dtype = DType::kNVFP4;
    model.h.embd = 64, model.h.ff = 128, model.h.experts = model.h.experts_used = 1;
    model.edit = [=](TensorSpec& spec) {
      if (!fused) return true;
      if (const size_t at = spec.name.find("ffn_gate_exps"); at != std::string::npos) {
        spec.name.replace(at, 13, "ffn_gate_up_exps");
        spec.shape[1] *= 2;
      }
      return spec.name.find("ffn_up_exps") == std::string::npos;
    };
    model.keys = [=, layers = model.h.layers](test::GgufWriter& writer) {
      const std::vector<const char*> both{"ffn_gate_exps", "ffn_up_exps"}, one{"ffn_gate_up_exps"};
      for (int64_t layer = 0; layer < layers; ++layer) {
        for (const char* of : fused ? one : both) {
          writer.add_tensor(fmt::format("blk.{}.{}.scale", layer, of), DType::kF32, {1}, std::vector<float>{factor});
        }
      }
    };
    return logits_of_scaled(model);
  };
  EXPECT_EQ(logits(true, 4), logits(false, 4));
  EXPECT_NE(logits(true, 4), logits(true, 1));
}

TEST(ProductScales, MultiplyLogits) {
  SyntheticModel model;
  model.dtype = DType::kNVFP4;
  model.h.embd = 64, model.h.ff = 128;
  std::vector<float> expected = logits_of_scaled(model);
  for (float& logit : expected) logit *= 4;
  model.keys = [](test::GgufWriter& writer) {
    writer.add_tensor("output.scale", DType::kF32, {1}, std::vector<float>{4.0f});
  };
  EXPECT_EQ(logits_of_scaled(model), expected);
}

}  // namespace
}  // namespace shoal::models

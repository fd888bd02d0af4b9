// Each architecture but llama, which has tests of its own, against logits of Hugging Face transformers for a tiny
// random model (scripts/make_golden.py), on one device and on meta devices of two and three, even and uneven.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

struct Shares {
  int devices;
  const char* ratio;
};

class Golden : public ::testing::TestWithParam<std::tuple<const char*, Shares>> {};

TEST_P(Golden, LogitsAreThoseOfTransformers) {
  const auto& [architecture, shares] = GetParam();
  const std::string name = fmt::format("tiny-{}-f16", architecture);
  std::ifstream file(fmt::format("{}/data/models/expected/{}.json", SHOAL_SOURCE_DIR, name));
  const auto expected = nlohmann::json::parse(file);
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  SessionOptions options;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.batch = 4;
  LoadedModel loaded(test::model_file(name + ".gguf"), shares.devices, shares.ratio, options);
  EXPECT_EQ(loaded.model->hparams.architecture, architecture);
  // A prompt in uneven batches, then single tokens.
  constexpr size_t kPrompt = 10;
  loaded.session->evaluate({tokens.data(), kPrompt});
  for (size_t length = kPrompt; length <= tokens.size(); ++length) {
    if (length > kPrompt) loaded.session->evaluate({&tokens[length - 1], 1});
    const std::span<const float> logits = loaded.session->logits();
    const auto row = expected["logits"][length - 1].get<std::vector<double>>();
    ASSERT_EQ(logits.size(), row.size());
    for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(logits[i], row[i], 1e-4) << length << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         ::testing::Combine(::testing::Values("qwen2"),
                                            ::testing::Values(Shares{1, ""}, Shares{2, ""}, Shares{2, "3,1"},
                                                              Shares{3, ""}, Shares{3, "5,0,2"})),
                         [](const auto& info) {
                           const Shares& shares = std::get<1>(info.param);
                           return fmt::format("{}_{}{}", std::get<0>(info.param), shares.devices,
                                              *shares.ratio != 0 ? "_uneven" : "");
                         });

}  // namespace
}  // namespace shoal::models

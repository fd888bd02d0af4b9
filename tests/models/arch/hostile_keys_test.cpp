// Replaces each number in the architecture's keys by invalid numbers. Opening and planning the model must either
// succeed or fail with a one-line error.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "models/session/model_plan.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

constexpr std::array<uint32_t, 9> kNumbers{0, 1, 2, 3, 5, 64, 1u << 30, 1u << 31, std::numeric_limits<uint32_t>::max()};

/// A key of the architecture, and the file offset of one number of this key.
struct Place {
  std::string key;
  size_t offset = 0;
};

/// Returns the locations of all numbers. For an array, returns only the locations of the first and the last element.
std::vector<Place> places_of(const std::string& text, const std::string& architecture) {
  const GgufFile file("reference", std::as_bytes(std::span(text)));
  std::vector<Place> places;
  for (const GgufValue& value : file.values()) {
    const GgufType type = value.type == GgufType::kArray ? value.element : value.type;
    const bool is_number = type == GgufType::kU32 || type == GgufType::kI32;
    if (!value.key.starts_with(architecture + ".") || !is_number || value.count == 0) continue;
    const auto offset = static_cast<size_t>(value.data - reinterpret_cast<const std::byte*>(text.data()));
    places.push_back({std::string(value.key), offset});
    if (value.count > 1) places.push_back({std::string(value.key), offset + (value.count - 1) * sizeof(uint32_t)});
  }
  return places;
}

/// Returns "" if the model opens and can be planned, else the error.
std::string outcome_of(const std::string& path) {
  try {
    const auto model = open_model(path);
    split_units(model->hparams, model->split_tensors());
    const Placement placement(*model, cpu_devices(3), {"3,0,1", 1});
    ModelPlan(*model, placement, {.context = 32, .batch = 8}, {}, 1);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

class HostileKeys : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileKeys, AreAcceptedOrGiveOneLineErrors) {
  const std::string path = fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, GetParam());
  const std::string original = test::text_of(path), architecture = open_model(path)->hparams.architecture;
  const test::TemporaryFile changed(std::string(GetParam()) + "-hostile.gguf");
  int refused = 0;
  for (const Place& place : places_of(original, architecture)) {
    for (const uint32_t number : kNumbers) {
      SCOPED_TRACE(fmt::format("{} {}", place.key, number));
      std::string text = original;
      std::memcpy(text.data() + place.offset, &number, sizeof number);
      std::ofstream(changed.path, std::ios::binary) << text;
      const std::string outcome = outcome_of(changed.path);
      EXPECT_EQ(outcome.find('\n'), std::string::npos) << outcome;
      refused += outcome.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 20);
}

INSTANTIATE_TEST_SUITE_P(All, HostileKeys,
                         ::testing::Values("llama", "phi3", "gpt-oss", "glm4moe", "gemma3", "gemma4",
                                           "gemma4-embeddings", "gemma4-experts", "qwen35", "qwen35-draft", "qwen35moe",
                                           "qwen3next", "deepseek2", "deepseek2-lite", "deepseek2-lite-legacy",
                                           "deepseek2-temperature", "minimax-m2", "lfm2", "gemma3.saved",
                                           "gpt-oss.ollama"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::models

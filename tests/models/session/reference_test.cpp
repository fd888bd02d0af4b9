// Compares sessions with the reference outputs in data/models/expected. For each prompt, a reference has prompt ids and
// 48 greedy tokens of llama.cpp, and logits of a float64 forward pass. The sessions run on one device, on meta devices
// with even and uneven shares, and with layers, caches and weights on different devices. Model files outside the
// repository are tested only if the folder SHOAL_MODELS_DIR contains them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/session/sampler.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

/// Groups of devices, and the placement of the model on these groups.
struct Mesh {
  std::string name;
  std::vector<int> groups;
  PlacementOptions options;
  friend std::ostream& operator<<(std::ostream& out, const Mesh& mesh) { return out << mesh.name; }
};

Mesh one_group(int devices, const std::string& ratio = {}) {
  return {fmt::format("{}_{}", devices, ratio.empty() ? "even" : ratio), {devices}, {ratio, 1}};
}

std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (int devices : {1, 2, 3, 4, 5, 8}) all.push_back(one_group(devices));
  for (const char* ratio : {"3,1", "1,9", "0.9:0.1", "30:25"}) all.push_back(one_group(2, ratio));
  all.push_back(one_group(3, "5,0,2"));
  all.push_back(one_group(4, "4,3,2,1"));
  all.push_back(one_group(5, "0,1,0,0,3"));
  const PlacementOptions even{{}, 1}, layers{{}, 1, SplitMode::kLayer};
  const auto with = [](PlacementOptions options, auto&& change) {
    change(options);
    return options;
  };
  all.push_back({"layers_of_3", {1, 1, 1}, layers});
  all.push_back({"layers_uneven", {1, 1, 1}, with(layers, [](auto& o) { o.ratio = "1,0,4"; })});
  all.push_back({"layers_of_two_meta", {2, 3}, layers});
  all.push_back({"layers_of_meta_and_cpu", {2, 1}, with(layers, [](auto& o) { o.ratio = "2,1"; })});
  for (int count : {0, 1, 4, 6, 7}) {
    all.push_back(
        {fmt::format("{}_layers_on_meta", count), {2}, with(even, [&](auto& o) { o.device_layers = count; })});
  }
  all.push_back({"cache_on_host", {2}, with(even, [](auto& o) { o.cache_on_host = true; })});
  all.push_back({"cache_and_layers_on_host", {2}, with(even, [](auto& o) {
                   o.cache_on_host = true;
                   o.device_layers = 3;
                 })});
  all.push_back({"some_weights_on_host", {3}, with(even, [](auto& o) {
                   o.overrides = {{"ffn_(up|down)", "CPU"}, {"blk.2.attn_k", "CPU3"}};
                 })});
  return all;
}

class Reference : public ::testing::TestWithParam<std::tuple<std::string, Mesh>> {};

nlohmann::json expected(const std::string& type) {
  std::ifstream file(SHOAL_SOURCE_DIR "/data/models/expected/tiny-kjv-5m-" + type + ".json");
  return nlohmann::json::parse(file);
}

/// Best token after the prompt and after each token of the continuation. If the logits of the best token and of the
/// expected token differ by at most `tie`, the expected token counts as the best.
std::vector<int32_t> greedy(Session& session, std::span<const int32_t> prompt, std::span<const int32_t> continuation,
                            double tie) {
  std::vector<int32_t> tokens;
  session.rewind(0);
  session.evaluate(prompt);
  for (const int32_t& expected : continuation) {
    const TokenLogit best = top_logits(session.logits(), 1)[0];
    tokens.push_back(best.logit - session.logits()[static_cast<size_t>(expected)] <= tie ? expected : best.id);
    session.evaluate({&expected, 1});
  }
  return tokens;
}

/// Largest absolute difference between the logits and the exact logits of the reference, over the ten best tokens of
/// the reference.
double distance(std::span<const float> logits, const nlohmann::json& exact) {
  double worst = 0.0;
  for (const auto& entry : exact) {
    worst = std::max(worst, std::abs(logits[entry[0].get<size_t>()] - entry[1].get<double>()));
  }
  return worst;
}

TEST_P(Reference, TokensAndLogitsMatchReference) {
  const auto& [type, mesh] = GetParam();
  std::string path = tiny_model_path(type);
  if (path.empty()) GTEST_SKIP() << "no " << type << " file; set SHOAL_MODELS_DIR";
  LoadedModel loaded(path, cpu_groups(mesh.groups), mesh.options);
  Tokenizer tokenizer(loaded.model->file);
  nlohmann::json reference = expected(type);
  ASSERT_EQ(reference["cases"].size(), 3u);
  for (const auto& c : reference["cases"]) {
    auto prompt = c["prompt_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(c["prompt"].get<std::string>()), prompt);
    auto continuation = c["continuation_ids"].get<std::vector<int32_t>>();
    // The program of the reference rounds differently, so tokens with almost equal logits may be exchanged.
    const double tie = 0.1 * c["max_abs_diff_exact"].get<double>();
    EXPECT_EQ(greedy(*loaded.session, prompt, continuation, tie), continuation) << c["prompt"];
    EXPECT_EQ(tokenizer.decode(continuation, false), c["continuation_text"].get<std::string>());
    loaded.session->rewind(0);
    loaded.session->evaluate(prompt);
    double allowed = std::max(1.5 * c["max_abs_diff_exact"].get<double>(), 0.02);
    double found = distance(loaded.session->logits(), c["top10_exact"]);
    EXPECT_LE(found, allowed) << c["prompt"];
    RecordProperty("distance", std::to_string(found));
  }
}

std::string reference_case(const ::testing::TestParamInfo<Reference::ParamType>& info) {
  const auto& [type, mesh] = info.param;
  std::string name = fmt::format("{}_{}", type, mesh.name);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Reference,
                         ::testing::Combine(::testing::Values<std::string>("f16", "q8_0", "q4_k_m", "q4_0", "q6_k"),
                                            ::testing::ValuesIn(meshes())),
                         reference_case);

}  // namespace
}  // namespace shoal::models

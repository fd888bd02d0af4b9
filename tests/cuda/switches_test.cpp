// SHOAL_CUDA_OFF must switch off only the named features. The small model must still give the tokens of the reference.
#include "devices/cuda/switches.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "devices/cuda/kernels/wgmma_product.h"
#include "devices/functions.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/loaded_model.h"
#include "tests/support/model_files.h"

namespace shoal::cuda {
namespace {

using testing::Contains;
using testing::ThrowsMessage;

TEST(Switches, AreParsedAndPrintedByName) {
  EXPECT_EQ(parse_switched_off(""), SwitchedOff{});
  EXPECT_EQ(parse_switched_off("graphs,early"), (SwitchedOff{.early = true, .graphs = true}));
  EXPECT_EQ(to_string({}), "");
  const std::string all = "early,wgmma,stream,fuse,p2p_product,graphs";
  EXPECT_EQ(to_string(parse_switched_off(all)), all);
  EXPECT_EQ(parse_switched_off(all), (SwitchedOff{true, true, true, true, true, true}));
}

TEST(Switches, UnknownNameErrorListsKnownNames) {
  for (const char* text : {"mma,early", "early,mma", "early,mma,wgmma"}) {
    EXPECT_THAT([&] { parse_switched_off(text); },
                ThrowsMessage<InvalidArgument>("SHOAL_CUDA_OFF: unknown feature 'mma'; the features are "
                                               "early,wgmma,stream,fuse,p2p_product,graphs"));
  }
  EXPECT_THROW(parse_switched_off("early,,wgmma"), InvalidArgument);
  const test::Environment off("SHOAL_CUDA_OFF", "mma");
  EXPECT_THROW(CudaFamily{}, InvalidArgument);
}

TEST(Switches, AreListedInTheFeaturesOfTheFamily) {
  const auto shown = [](const char* names) {
    const test::Environment off("SHOAL_CUDA_OFF", names);
    const CudaFamily family;
    std::string text;
    for (const auto& feature : find_function(family, functions::kFeatures)()) {
      if (feature.name == "off") text += feature.value;
    }
    return text;
  };
  EXPECT_EQ(shown("wgmma,early"), "early,wgmma");
  EXPECT_EQ(shown(""), "");
}

using Names = std::set<std::string>;

/// Returns the features that were used since record_calls().
Names used() {
  Names names;
  for (const emulator::LaunchRecord& launch : emulator::take_launches()) {
    const auto is_of = [&](auto... starts) { return (launch.file.starts_with(starts) || ...); };
    if (launch.early) names.insert("early");
    if (is_of("mul_mat_tiles") && launch.threads == kWgmmaThreads && launch.shared_bytes > 0) names.insert("wgmma");
    if (is_of("mul_mat_stream", "product_norm")) names.insert("stream");
    if (is_of("fused_", "all_reduce_norm", "product_norm")) names.insert("fuse");
    if (is_of("product_norm")) names.insert("p2p_product");
  }
  const auto calls = emulator::take_calls();
  if (std::find(calls.begin(), calls.end(), "cudaGraphLaunch") != calls.end()) names.insert("graphs");
  return names;
}

struct Text {
  std::vector<int32_t> prompt, expected;
};
/// Returns the first `length` tokens of reference text `number` as a prompt, and the next three tokens.
Text text(size_t number, int length) {
  std::ifstream file(SHOAL_SOURCE_DIR "/data/models/expected/tiny-kjv-5m-q8_0.json");
  const nlohmann::json one = nlohmann::json::parse(file)["cases"][number];
  std::vector<int32_t> all = one["prompt_ids"];
  for (const int32_t token : one["continuation_ids"]) all.push_back(token);
  return {{all.begin(), all.begin() + length}, {all.begin() + length, all.begin() + length + 3}};
}

/// Parameters: the feature that is off, and the number of devices.
class SwitchOff : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(SwitchOff, KeepsOtherFeaturesOnAndTokensUnchanged) {
  const auto& [name, parts] = GetParam();
  const test::Environment off("SHOAL_CUDA_OFF", name == "nothing" ? "" : name);
  const test::LoadedModel model(test::model_file("tiny-kjv-5m-q8_0.gguf"), parts, 4);
  models::Session session = model.session();
  const bool is_long = parts > 1;  // the batch of a long prompt has 128 columns, the width of a warpgroup tile
  const Text wanted = is_long ? text(1, 100) : text(0, 10);
  std::vector<int32_t> tokens;
  emulator::record_calls();
  session.evaluate(wanted.prompt);
  while (true) {
    const auto logits = session.logits();
    tokens.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (tokens.size() == wanted.expected.size()) break;
    session.evaluate({&tokens.back(), 1});
  }
  EXPECT_EQ(tokens, wanted.expected);
  Names expected{"early", "wgmma", "stream", "fuse", "p2p_product", "graphs"};
  expected.erase(name);
  if (!is_long) expected.erase("wgmma");
  if (parts == 1 || name == "stream" || name == "fuse") expected.erase("p2p_product");
  EXPECT_EQ(used(), expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, SwitchOff,
    testing::Combine(testing::Values("nothing", "early", "wgmma", "stream", "fuse", "p2p_product", "graphs"),
                     testing::Values(1, 2)),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param)); });

}  // namespace
}  // namespace shoal::cuda

#include "tools/startup/choice_text.h"

#include <gmock/gmock.h>

#include "tests/models/tiny_model.h"

namespace shoal::tools {
namespace {

using models::SplitMode;
using ::testing::HasSubstr;
using tuning::Choice;
using tuning::Remedies;

constexpr size_t kGiB = size_t{1} << 30;

Choice with_context(Choice choice, int64_t context) {
  choice.context = context;
  return choice;
}

TEST(RemediesText, IsOneSentence) {
  Remedies remedies;
  remedies.asked = {models::cpu_groups({1, 1})};
  remedies.lacking = {{"CPU0", {.cache = 2 * kGiB}, {kGiB, kGiB}}};
  EXPECT_TRUE(remedies.none());
  EXPECT_EQ(remedies_text(remedies), "CPU0 needs 2.0 GiB and has 1.0 GiB free; use a smaller model");
  remedies.context = with_context({models::cpu_groups({1, 1}), SplitMode::kLayer, {3, 1}}, 1024);
  remedies.more_devices = 2;
  remedies.device = "CPU0";
  EXPECT_EQ(remedies_text(remedies),
            "CPU0 needs 2.0 GiB and has 1.0 GiB free; possible remedies: a context of 1024 (-c 1024 -ts 3,1 "
            "-sm layer); or 2 more devices like CPU0");
  remedies.more_devices = 1;
  remedies.even_shares = false;
  remedies.devices_mode = SplitMode::kLayer;
  EXPECT_THAT(remedies_text(remedies), HasSubstr("; or 1 more device like CPU0 (-ts auto -sm layer)"));
}

TEST(RemediesText, NamesAllFlagsOfASuggestedContext) {
  Remedies remedies;
  remedies.asked = {models::cpu_groups({1})};
  remedies.context = with_context(remedies.asked, 256);
  EXPECT_EQ(change_options(remedies.asked, *remedies.context), "");
  EXPECT_EQ(context_options(remedies, *remedies.context), "-c 256");
  remedies.context->cache_k = remedies.context->cache_v = DType::kQ4_0;
  EXPECT_EQ(context_options(remedies, *remedies.context), "-c 256 -ctk q4_0 -ctv q4_0");
  remedies.asked.cache_k = DType::kQ4_0;
  EXPECT_EQ(context_options(remedies, *remedies.context), "-c 256 -ctv q4_0");
  remedies.asked.cache_k.reset();
  remedies.asked.mode = SplitMode::kLayer;
  remedies.context_q8_0 = with_context({models::cpu_groups({2}), SplitMode::kTensor, {2, 1}}, 64);
  remedies.context_q8_0->cache_k = remedies.context_q8_0->cache_v = DType::kQ8_0;
  EXPECT_EQ(context_options(remedies, *remedies.context_q8_0),
            "-c 64 -ctk q8_0 -ctv q8_0 -dev CPU0,CPU1 -ts 2,1 -sm tensor");
  EXPECT_THAT(remedies_text(remedies), HasSubstr("a context of 64 with a q8_0 cache (-c 64 -ctk q8_0 -ctv q8_0 -dev "));
}

TEST(RemediesText, SuggestsEqualSharesIfUnequalSharesWereRequested) {
  const Choice asked{models::cpu_groups({2}), SplitMode::kTensor, {3, 1}}, even{models::cpu_groups({2})};
  EXPECT_EQ(change_options(asked, even), " -ts 1,1");
  EXPECT_EQ(change_options(even, asked), " -ts 3,1");
  EXPECT_EQ(change_options(asked, asked), "");
}

TEST(RemediesText, BitsPerWeightHaveEnoughDigitsToDiffer) {
  const auto text = [](double fit, double bits, std::vector<double> shares = {}) {
    Remedies remedies;
    remedies.asked = remedies.bits_choice = {models::cpu_groups({2})};
    remedies.bits_that_fit = fit;
    remedies.bits = bits;
    remedies.bits_choice.shares = std::move(shares);
    remedies.quantisations = {"Q4_0"};
    return remedies_text(remedies);
  };
  EXPECT_THAT(text(4.56, 8.5), HasSubstr("at most 4.5 bits instead of 8.5 (Q4_0)"));
  EXPECT_THAT(text(4.813, 4.822), HasSubstr("at most 4.81 bits instead of 4.82 (Q4_0)"));
  EXPECT_THAT(text(4.8219, 4.8223, {3, 5}), HasSubstr("at most 4.821 bits instead of 4.822 (Q4_0) with -ts 3,5"));
}

}  // namespace
}  // namespace shoal::tools

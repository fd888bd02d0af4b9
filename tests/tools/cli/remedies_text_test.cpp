#include "tools/cli/remedies_text.h"

#include <gmock/gmock.h>

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;
using tuning::ContextThatFits;
using tuning::Remedies;

constexpr size_t kGiB = size_t{1} << 30;

TEST(RemediesText, IsOneSentence) {
  Remedies remedies;
  remedies.lacking = {{"CPU0", {.cache = 2 * kGiB}, {kGiB, kGiB}}};
  EXPECT_TRUE(remedies.none());
  EXPECT_EQ(remedies_text(remedies), "CPU0 needs 2.0 GiB and has 1.0 GiB free; use a smaller model");
  remedies.context = {1024, {}, {"", "3,1", models::SplitMode::kLayer}};
  remedies.more_devices = 2;
  remedies.device = "CPU0";
  EXPECT_EQ(remedies_text(remedies),
            "CPU0 needs 2.0 GiB and has 1.0 GiB free; what would fit: a context of 1024 (-c 1024 -ts 3,1 "
            "-sm layer); or 2 more devices like CPU0");
  remedies.more_devices = 1;
  remedies.even_shares = false;
  remedies.devices_mode = models::SplitMode::kTensor;
  EXPECT_THAT(remedies_text(remedies), HasSubstr("; or 1 more device like CPU0 (-ts auto -sm tensor)"));
}

TEST(RemediesText, NamesEveryFlagThatAContextTakes) {
  const ContextThatFits same{256, {}, {}}, all{64, {}, {"CPU0,CPU1", "2,1", models::SplitMode::kTensor}, true, false};
  EXPECT_EQ(context_options(same), "-c 256");
  EXPECT_EQ(split_options(same), "");
  EXPECT_EQ(context_options(all), "-c 64 -ctk q8_0 -ctv q8_0 -dev CPU0,CPU1 -ts 2,1 -sm tensor --no-repack");
  EXPECT_EQ(split_options(all), " -dev CPU0,CPU1 -ts 2,1 -sm tensor --no-repack");
  Remedies remedies;
  remedies.context_q8_0 = all;
  EXPECT_THAT(remedies_text(remedies), HasSubstr("a context of 64 with a q8_0 cache (-c 64 -ctk q8_0 -ctv q8_0 -dev "));
}

TEST(RemediesText, BitsHaveAsManyDigitsAsTellThemApart) {
  const auto text = [](double fit, double bits, const std::string& ratio = "") {
    Remedies remedies;
    remedies.bits_that_fit = fit;
    remedies.bits = bits;
    remedies.bits_change.ratio = ratio;
    remedies.quantisations = {"Q4_0"};
    return remedies_text(remedies);
  };
  EXPECT_THAT(text(4.56, 8.5), HasSubstr("at most 4.5 bits instead of 8.5 (Q4_0)"));
  EXPECT_THAT(text(4.813, 4.822), HasSubstr("at most 4.81 bits instead of 4.82 (Q4_0)"));
  EXPECT_THAT(text(4.8219, 4.8223, "3,5"), HasSubstr("at most 4.821 bits instead of 4.822 (Q4_0) with -ts 3,5"));
}

}  // namespace
}  // namespace shoal::tools

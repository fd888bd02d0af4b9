#include "tools/report/comparison.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal::tools {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q8_0.gguf";
constexpr int32_t kTokens[] = {1, 20, 30, 40, 50, 60};

/// Runs the comparison on two devices with `bytes` of memory each. Returns the error, or "" if the memory suffices.
std::string try_with(size_t bytes) {
  const test::CpuConfiguration configuration("devices=2,threads=1,memory=" + std::to_string(bytes));
  try {
    const auto errors =
        compare_nodes(models::open_model(kModel), Registry::instance().device_list("CPU0,CPU1"), {}, {}, kTokens);
    EXPECT_GT(errors.size(), 200U);
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

// The test searches for the least memory with which the comparison succeeds. With less memory, the check before loading
// fails.
TEST(Comparison, ChecksMemoryBeforeLoading) {
  size_t too_little = 1U << 20, enough = 64U << 20;
  ASSERT_EQ(try_with(enough), "");
  while (enough - too_little > 4096) {
    const size_t middle = (enough + too_little) / 2;
    const std::string what = try_with(middle);
    (what.empty() ? enough : too_little) = middle;
    if (!what.empty()) {
      EXPECT_THAT(what, HasSubstr("CPU0 needs "))
          << "the check must fail before the run if the number of bytes is " << middle;
      EXPECT_THAT(what, HasSubstr("(this device also holds the whole model)"));
    }
  }
}

TEST(Comparison, ErrorsAreNormalised) {
  const std::vector<float> ones{1, 1, 1, 1}, zeros{0, 0, 0, 0}, off{1, 1, 1, 1.2f};
  EXPECT_EQ(normalised_error(ones, ones), 0.0);
  EXPECT_EQ(normalised_error(zeros, zeros), 0.0);
  EXPECT_NEAR(normalised_error(ones, off), 0.01, 1e-6);
  EXPECT_EQ(normalised_error(zeros, ones), std::numeric_limits<double>::infinity());
  EXPECT_EQ(normalised_error(ones, std::vector<float>{1, 1, 1, NAN}), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace shoal::tools

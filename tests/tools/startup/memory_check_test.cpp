#include "tools/startup/memory_check.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace shoal::tools {
namespace {

using models::DeviceUse;
using ::testing::HasSubstr;

TEST(RequireMemory, SuggestsASmallerShareWithSeveralDevices) {
  const DeviceUse uses[] = {{"CPU0", {.cache = 2}, {1, 1}, 0}, {"CPU1", {.cache = 1}, {1, 1}, 0}};
  const auto message = [](std::span<const DeviceUse> of) -> std::string {
    try {
      require_memory(of);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(uses), HasSubstr("use more devices, a smaller share (--tensor-split), a smaller context"));
  EXPECT_THAT(message({uses, 1}), HasSubstr("use more devices, a smaller context"));
}

TEST(RequireMemory, SuggestsNoSmallerContextIfWeightsDoNotFit) {
  const DeviceUse uses[] = {{"CPU0", {.weights = 2 << 10, .cache = 1}, {1 << 10, 1 << 10}, 0}};
  EXPECT_THAT([&] { require_memory(uses); },
              ::testing::ThrowsMessage<DeviceError>(
                  "CPU0 needs 2.0 KiB for weights alone and has 1.0 KiB free; use more devices, or a smaller model"));
}

TEST(MappingWarning, WarnsOfRepeatedReads) {
  constexpr size_t kMiB = size_t{1} << 20;
  const auto warning = [](size_t cache, size_t free, size_t mapped) {
    const DeviceUse uses[] = {{"CPU0", {.cache = 1}, {kMiB, kMiB}, 0},
                              {"CPU1", {.cache = cache}, {free, free}, mapped}};
    return mapping_warning(uses);
  };
  EXPECT_EQ(warning(2 * kMiB, 10 * kMiB, 8 * kMiB), "");
  EXPECT_THAT(
      warning(2 * kMiB, 10 * kMiB, 8 * kMiB + 1),
      HasSubstr("CPU1 has 10.0 MiB free, but needs 8.0 MiB for weights and 2.0 MiB for the rest: parts of the model"));
  EXPECT_NE(warning(12 * kMiB, 10 * kMiB, 1), "");  // the cache exceeds the free memory: require_memory() rejects these
                                                    // values, but the subtraction must not wrap around
  EXPECT_EQ(warning(12 * kMiB, 10 * kMiB, 0), "");
}

}  // namespace
}  // namespace shoal::tools

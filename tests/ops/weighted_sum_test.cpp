// The sum that attention makes of values, for every instruction-set level of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "devices/cpu/isa.h"

namespace shoal::cpu {
namespace {

class WeightedSum : public ::testing::TestWithParam<std::string_view> {};

TEST_P(WeightedSum, AddsRowsToWhatIsThere) {
  const auto weighted_sum = kernels_of(GetParam()).vector.weighted_sum;
  for (const int64_t n : {0, 1, 5, 16, 63, 64, 130, 300}) {
    for (const int64_t count : {0, 1, 3, 64}) {
      std::vector<std::vector<float>> rows(count, std::vector<float>(n));
      std::vector<const float*> x;
      std::vector<float> weights, y(n + 1, 0.5f);
      std::vector<double> expected(n, 0.5);
      for (int64_t j = 0; j < count; ++j) {
        weights.push_back(0.25f * static_cast<float>(j % 7) - 0.6f);
        for (int64_t i = 0; i < n; ++i) {
          rows[j][i] = std::sin(static_cast<float>(i * 31 + j));
          expected[i] += static_cast<double>(weights[j]) * rows[j][i];
        }
        x.push_back(rows[j].data());
      }
      weighted_sum(weights.data(), x.data(), count, y.data(), n);
      for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], expected[i], 1e-5) << n << " elements, " << count << " rows";
      EXPECT_EQ(y[n], 0.5f) << "written past the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, WeightedSum, ::testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::cpu

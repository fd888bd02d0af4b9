// The kernels of causal_conv and gated_delta, for every instruction-set level of this machine. A kernel must give the
// same bits for all divisions of its tokens, columns and channels.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "devices/cpu/isa.h"
#include "tests/support/kernel_inputs.h"
#include "tests/support/same_bits.h"

namespace shoal::cpu {
namespace {

using Floats = std::vector<float>;
using test::same_bits;

class StateKernels : public testing::TestWithParam<std::string_view> {
 protected:
  const Kernels& kernels() const { return kernels_of(GetParam()); }
};

/// A head with `count` tokens. The token `restart` starts a sequence.
struct Head {
  Head(int64_t size, int64_t count, int64_t restart = -1) : size(size), count(count), restart(restart) {
    for (float& value : k) value /= std::sqrt(static_cast<float>(size));
  }

  struct Result {
    Floats rows, state;
  };
  /// Calls the kernel for each combination of a part of the columns and a part of the tokens.
  Result run(const Kernels& kernels, const std::vector<int64_t>& column_parts,
             const std::vector<int64_t>& token_parts) const {
    Result result{Floats(count * size), Floats(size * size)};
    int64_t first = 0;
    for (const int64_t columns : column_parts) {
      std::vector<DeltaToken> tokens;
      for (int64_t t = 0; t < count; ++t) {
        const float factor = 0.5f + 0.4f * std::sin(static_cast<float>(t)),
                    beta = 0.5f + 0.5f * std::cos(2.5f * factor);
        tokens.push_back({&q[t * size], &k[t * size], &v[t * size + first], &result.rows[t * size + first], factor,
                          beta, t == restart});
      }
      float* const to = &result.state[first * size];
      const float* from = &state[first * stride()];
      int64_t from_stride = stride(), at = 0;
      for (const int64_t part : token_parts) {
        kernels.gated_delta({&tokens[at], part, size, columns, from, from_stride, to});
        from = to, from_stride = size;
        at += part;
      }
      EXPECT_EQ(at, count);
      first += columns;
    }
    EXPECT_EQ(first, size);
    return result;
  }
  int64_t stride() const { return size + 3; }

  int64_t size, count, restart;
  Floats q = test::random_floats(size * count, 1), k = test::random_floats(size * count, 2);
  Floats v = test::random_floats(size * count, 3), state = test::random_floats(size * stride(), 4);
};

/// Divides `count` into parts of `part` and a rest.
std::vector<int64_t> parts_of(int64_t count, int64_t part) {
  std::vector<int64_t> parts(count / part, part);
  if (count % part > 0) parts.push_back(count % part);
  return parts;
}

TEST_P(StateKernels, DivisionOfTokensAndColumnsDoesNotChangeBits) {
  for (const int64_t size : {1, 3, 8, 17, 40, 64, 128}) {
    for (const int64_t restart : {-1, 0, 9, 20}) {
      const Head head(size, 21, restart);
      const auto expected = head.run(kernels(), parts_of(size, 1), parts_of(21, 1));
      for (const int64_t columns : {1, 2, 5, 7, 16, 31, 128}) {
        for (const int64_t tokens : {1, 2, 4, 7, 20, 21}) {
          const auto result = head.run(kernels(), parts_of(size, columns), parts_of(21, tokens));
          EXPECT_TRUE(same_bits(result.rows, expected.rows)) << size << ": " << columns << ", " << tokens;
          EXPECT_TRUE(same_bits(result.state, expected.state)) << size << ": " << columns << ", " << tokens;
        }
      }
    }
  }
}

TEST_P(StateKernels, DivisionOfChannelsDoesNotChangeBits) {
  constexpr int64_t kChannels = 83, kTaps = 4, kStride = 90;
  const Floats weights = test::random_floats(kTaps * kStride, 1), x = test::random_floats(kTaps * kChannels, 2);
  for (const bool without_first : {false, true}) {
    const auto run = [&](int64_t part) {
      Floats result(kChannels);
      int64_t first = 0;
      for (const int64_t n : parts_of(kChannels, part)) {
        std::vector<const float*> inputs;
        for (int64_t j = 0; j < kTaps; ++j) inputs.push_back(&x[j * kChannels + first]);
        if (without_first) inputs[0] = nullptr;
        kernels().causal_conv({inputs.data(), kTaps, &weights[first], kStride, n, &result[first]});
        first += n;
      }
      return result;
    };
    const Floats expected = run(kChannels);
    for (const int64_t part : {1, 3, 4, 15, 16, 17, 40}) EXPECT_TRUE(same_bits(run(part), expected)) << part;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, StateKernels, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::cpu

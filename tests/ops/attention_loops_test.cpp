// Tests that both forms of the inner loops of attention give the same results (devices/cpu/kernels/attention.h), for
// every instruction-set level. So the number of queries in a batch does not change the result of a query.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "devices/cpu/isa.h"
#include "devices/cpu/kernels/attention.h"
#include "graph/dtype.h"

namespace shoal::cpu {
namespace {

using Floats = std::vector<float>;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kCounts[] = {1, 2, 3, 5, 8, 17, 31, 63, 64};  ///< numbers of rows and of KV rows

class AttentionLoops : public testing::TestWithParam<std::string_view> {
 protected:
  const AttentionKernels& kernels() const { return kernels_of(GetParam()).attention; }
  Floats random(int64_t count, float low = -1, float high = 1) {
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = low + (high - low) * static_cast<float>(engine_() >> 8) * 0x1p-24f;
    return values;
  }
  bool one_in(uint32_t n) { return engine_() % n == 0; }

 private:
  std::mt19937 engine_{7};
};

/// KV rows in a dtype, and the same rows as f32.
struct Rows {
  Rows(DType dtype, const Floats& values, int64_t row_length) : length(row_length), as_f32(values.size()) {
    const auto count = static_cast<int64_t>(values.size());
    stored.resize(bytes_for(dtype, count));
    traits(dtype).from_f32(values.data(), stored.data(), count);
    traits(dtype).to_f32(stored.data(), as_f32.data(), count);
    stride = bytes_for(dtype, length);
  }
  KvRows in_dtype(int64_t count) const { return {stored.data(), stride, count, length}; }
  KvRows converted(int64_t count) const {
    return {reinterpret_cast<const std::byte*>(as_f32.data()), length * sizeof(float), count, length};
  }
  int64_t length;
  size_t stride;
  std::vector<std::byte> stored;
  Floats as_f32;
};

/// Calls f(dtype, length) for each dtype that the rows form reads, with several lengths of KV rows.
template <class F>
void for_rows(const AttentionKernels& kernels, F&& f) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kernels.rows[i].scores == nullptr) continue;
    const auto dtype = static_cast<DType>(i);
    for (const int64_t length : {1, 2, 3, 5, 7, 8, 12, 16, 19, 32, 33, 47, 64, 80, 96, 128, 160, 250, 256, 576}) {
      if (length % traits(dtype).block_elems == 0) f(dtype, length);
    }
  }
}

TEST_P(AttentionLoops, ScoresAreTheSameInBothForms) {
  for_rows(kernels(), [&](DType dtype, int64_t length) {
    const Rows keys(dtype, random(kAttentionBlock * length), length);
    const Floats q = random(kAttentionRows * length);
    Floats packed(static_cast<size_t>(kAttentionRows * length));
    kernels().pack_queries(q.data(), length, kAttentionRows, length, packed.data());
    for (const int64_t rows : kCounts) {
      for (const int64_t count : kCounts) {
        Floats of_rows(kAttentionBlock * kAttentionRows), of_lanes = of_rows;
        kernels().rows[static_cast<size_t>(dtype)].scores(
            {keys.in_dtype(count), q.data(), length, rows, of_rows.data()});
        kernels().lane_scores({keys.converted(count), packed.data(), rows, of_lanes.data()});
        for (int64_t row = 0; row < rows; ++row) {
          double expected = 0;
          for (int64_t i = 0; i < length; ++i) {
            expected += static_cast<double>(q[row * length + i]) * keys.as_f32[(count - 1) * length + i];
          }
          ASSERT_NEAR(of_rows[row * kAttentionBlock + count - 1], expected, 1e-4);
          for (int64_t j = 0; j < count; ++j) {
            ASSERT_EQ(of_rows[row * kAttentionBlock + j], of_lanes[j * kAttentionRows + row])
                << name_of(dtype) << ", length " << length << ", row " << row << " of " << rows << ", KV row " << j
                << " of " << count;
          }
        }
      }
    }
  });
}

TEST_P(AttentionLoops, SumsAreTheSameInBothForms) {
  for_rows(kernels(), [&](DType dtype, int64_t length) {
    const Rows values(dtype, random(kAttentionBlock * length), length);
    for (const int64_t rows : kCounts) {
      for (const bool hidden : {false, true}) {
        const int64_t count = kCounts[static_cast<size_t>(rows) % std::size(kCounts)];
        Floats weights = random(kAttentionRows * kAttentionBlock, 0, 1), keep = random(kAttentionRows, 0, 1);
        for (float& weight : weights) weight = hidden && one_in(3) ? -0.0f : weight;
        Floats lane_weights(weights.size());
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t j = 0; j < count; ++j) {
            lane_weights[j * kAttentionRows + row] = weights[row * kAttentionBlock + j];
          }
        }
        Floats of_rows = random(rows * length), of_lanes(static_cast<size_t>(length * kAttentionRows));
        for (int64_t i = 0; i < rows * length; ++i) of_lanes[i % length * kAttentionRows + i / length] = of_rows[i];
        kernels().rows[static_cast<size_t>(dtype)].sums(
            {values.in_dtype(count), weights.data(), keep.data(), rows, hidden, of_rows.data(), length});
        kernels().lane_sums({values.converted(count), lane_weights.data(), keep.data(), rows, hidden, of_lanes.data()});
        for (int64_t i = 0; i < rows * length; ++i) {
          ASSERT_EQ(of_rows[i], of_lanes[i % length * kAttentionRows + i / length])
              << name_of(dtype) << ", length " << length << ", row " << i / length << " of " << rows << ", element "
              << i % length << ", " << count << " KV rows, hidden " << hidden;
        }
      }
    }
  });
}

// Two blocks, of which the second one has larger scores. In the lanes form, the first KV rows of the block are left
// out.
TEST_P(AttentionLoops, SoftMaxIsTheSameInBothForms) {
  for (const int64_t rows : kCounts) {
    for (const int64_t place : {0, 1, 7, 20, 62}) {
      for (const int64_t end : {63, 64}) {
        for (const bool hidden : {false, true}) {
          if (!hidden && place > 0) continue;
          Floats top(kAttentionRows, kMinusInfinity), sum(kAttentionRows, 0.0f), keep(kAttentionRows);
          Floats lane_top = top, lane_sum = sum, lane_keep = keep;
          for (const float scale : {1.0f, 4.0f}) {
            Floats scores = random(kAttentionRows * kAttentionBlock, -scale, scale);
            for (float& score : scores) score = hidden && one_in(5) ? kMinusInfinity : score;
            Floats lane_scores(scores.size());
            std::vector<int32_t> first(kAttentionRows), last(kAttentionRows), lane_first, lane_last;
            for (int64_t row = 0; row < kAttentionRows; ++row) {
              first[row] = static_cast<int32_t>(place + (one_in(2) ? row % 5 : 0));
              last[row] = static_cast<int32_t>(end - (one_in(2) ? row % 3 : 0));
              lane_first.push_back(first[row] - static_cast<int32_t>(place));
              lane_last.push_back(last[row] - static_cast<int32_t>(place));
              for (int64_t j = place; j < end; ++j) {
                lane_scores[(j - place) * kAttentionRows + row] = scores[row * kAttentionBlock + j];
              }
            }
            kernels().row_soft_max(
                {scores.data(), end, rows, hidden, first.data(), last.data(), top.data(), sum.data(), keep.data()});
            kernels().lane_soft_max({lane_scores.data(), end - place, rows, hidden, lane_first.data(), lane_last.data(),
                                     lane_top.data(), lane_sum.data(), lane_keep.data(), place});
            for (int64_t row = 0; row < rows; ++row) {
              SCOPED_TRACE(testing::Message() << "row " << row << " of " << rows << ", KV rows from " << place << " to "
                                              << end << ", hidden " << hidden);
              ASSERT_EQ(top[row], lane_top[row]);
              ASSERT_EQ(sum[row], lane_sum[row]);
              ASSERT_EQ(keep[row], lane_keep[row]);
              for (int64_t j = place; j < end; ++j) {
                const float weight = scores[row * kAttentionBlock + j];
                const float lane_weight = lane_scores[(j - place) * kAttentionRows + row];
                ASSERT_EQ(weight, lane_weight) << "KV row " << j;
                ASSERT_EQ(std::signbit(weight), std::signbit(lane_weight)) << "KV row " << j;
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, AttentionLoops, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::cpu

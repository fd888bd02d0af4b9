// NaN and infinities affect exactly the results that depend on them. The tests cover products and soft_max kernels for
// every instruction-set level of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "devices/cpu/isa.h"
#include "graph/quants/blocks.h"
#include "tests/support/encoders.h"
#include "tests/support/kernel_inputs.h"

namespace shoal::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Processors return the second NaN for invalid operations. The payload of the third NaN survives the conversion to f16
/// and bf16.
const std::vector<float> kOdd{NAN, -NAN, std::bit_cast<float>(0x7fb6e000u), kInfinity, -kInfinity};

using Bytes = std::vector<std::byte>;
using Rows = std::vector<Bytes>;
using Values = std::vector<float>;
using test::AlignedBytes;
using test::random_floats;

template <class Block>
std::vector<size_t> coded_factors_at() {
  if constexpr (requires { Block::scale; }) return {offsetof(Block, scale)};
  return {};  // the scale is not a single number
}
/// Byte offsets of the f16 factors in a block. For float types, the offset is 0. The result is empty if a block has no
/// f16 factors.
std::vector<size_t> factors_at(DType dtype) {
  switch (dtype) {
#define SHOAL_QUANTIZED_CODED(id, ...) \
  case DType::k##id:                   \
    return coded_factors_at<quants::Block##id>();
#define SHOAL_QUANTIZED(id, ...)                                                    \
  case DType::k##id: {                                                              \
    constexpr size_t kAt = offsetof(quants::Block##id, scale);                      \
    if (sizeof(quants::Block##id::scale) == 1) return {};                           \
    return quants::Block##id::kAdds ? std::vector{kAt, kAt + 2} : std::vector{kAt}; \
  }
#include "graph/dtypes.def"
    default:
      return {0};
  }
}

struct Case {
  std::string_view level;
  DType dtype;
};

class NotFinite : public testing::TestWithParam<Case> {
 protected:
  // The first eight columns fill a tile. The ninth column does not fit into this tile.
  static constexpr int64_t kRows = 21, kColumns = 9, kOddRow = 18, kOddColumn = 4;

  const Kernels& kernels() const { return kernels_of(GetParam().level); }
  DType dtype() const { return GetParam().dtype; }
  const DTypeTraits& type() const { return traits(dtype()); }
  const WeightKernels& weights() const { return kernels().weights[static_cast<size_t>(dtype())]; }
  /// Row length. If the block size of the type permits, the end of a row does not fill a vector.
  int64_t k() const { return type().block_elems == 1 ? 301 : type().block_elems <= 64 ? 320 : 512; }
  size_t stride() const { return (bytes_for(dtype(), k()) + 7) / 8 * 8; }

  Bytes random_weights() const {
    Bytes a(stride() * kRows);
    const Values values = random_floats(kRows * k(), 1);
    for (int64_t i = 0; i < kRows; ++i) test::from_f32(dtype(), values.data() + i * k(), a.data() + i * stride(), k());
    return a;
  }

  Bytes converted(const Values& b) const {
    const ColumnKernels& columns = kernels().columns[static_cast<size_t>(weights().columns)];
    Bytes result(columns.bytes(k()) * kColumns);
    for (int64_t j = 0; j < kColumns; ++j)
      columns.convert(b.data() + j * k(), result.data() + j * columns.bytes(k()), k());
    return result;
  }

  /// The products [column][row] of each of the four kernels: dots, packed dots, panels and packed panels. If a kernel
  /// does not exist, its products are the products of panels.
  std::vector<Values> products(const Bytes& a, const Values& b) const {
    const int64_t panel_rows = kernels().panel_rows, groups = (kRows + panel_rows - 1) / panel_rows;
    const PackedKernels& packed = weights().packed;
    const bool is_packable = packed.pack != nullptr;
    AlignedBytes group(is_packable ? packed.bytes(k()) * groups : 0);
    for (int64_t i = 0; is_packable && i < groups; ++i) {
      packed.pack(a.data() + i * panel_rows * stride(), stride(), std::min(panel_rows, kRows - i * panel_rows), k(),
                  group.data() + i * packed.bytes(k()));
    }
    std::vector<Values> results(4, Values(kRows * kColumns));
    std::vector<std::vector<float*>> c(4);
    for (int i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) c[i].push_back(results[i].data() + j * kRows);
    }
    const auto pointers = [](const Bytes& columns) {
      std::vector<const std::byte*> result;
      for (int64_t j = 0; j < kColumns; ++j) result.push_back(columns.data() + j * (columns.size() / kColumns));
      return result;
    };
    const Bytes columns = converted(b);
    if (weights().dot != nullptr) {
      weights().dot({a.data(), stride(), kRows, k(), pointers(columns).data(), c[0].data(), kColumns});
    }
    if (packed.dot != nullptr) {
      packed.dot({group.data(), packed.bytes(k()), kRows, k(), pointers(columns).data(), c[1].data(), kColumns});
    }
    const PanelKernels& panels = weights().panels;
    for (const bool from_packed : {false, true}) {
      if (from_packed && !is_packable) break;
      AlignedBytes panel(panels.bytes(k()) * groups);
      for (int64_t i = 0; i < groups; ++i) {
        std::byte* to = panel.data() + i * panels.bytes(k());
        if (from_packed) {
          panels.from_packed(group.data() + i * packed.bytes(k()), 0, k(), to);
        } else {
          panels.from_rows(a.data() + i * panel_rows * stride(), stride(), std::min(panel_rows, kRows - i * panel_rows),
                           k(), to);
        }
      }
      panels.multiply({panel.data(), panels.bytes(k()), kRows, 0, k(), k(), pointers(columns).data(),
                       c[from_packed ? 3 : 2].data(), kColumns});
      if (panels.add_outliers == nullptr) continue;
      if (from_packed) {
        panels.add_packed_outliers(
            {group.data(), packed.bytes(k()), kRows, k(), pointers(columns).data(), c[3].data(), kColumns});
      } else {
        panels.add_outliers({a.data(), stride(), kRows, k(), pointers(columns).data(), c[2].data(), kColumns});
      }
    }
    if (weights().dot == nullptr) results[0] = results[2];
    if (packed.dot == nullptr) results[1] = results[2];
    if (!is_packable) results[3] = results[2];
    return results;
  }

  bool is_integer() const { return weights().columns != Columns::kFloats; }

  static constexpr const char* kForms[] = {"dot", "packed dot", "panels", "packed panels"};
};

TEST_P(NotFinite, ActivationsAffectOnlyTheirColumn) {
  const Bytes a = random_weights();
  const Values b = random_floats(kColumns * k(), 2);
  const std::vector<Values> clean = products(a, b);
  for (const int64_t at : {int64_t{0}, int64_t{77}, k() - 1}) {
    for (const float odd : kOdd) {
      Values dirty = b;
      dirty[kOddColumn * k() + at] = odd;
      const std::vector<Values> got = products(a, dirty);
      for (size_t form = 0; form < got.size(); ++form) {
        for (int64_t i = 0; i < kRows * kColumns; ++i) {
          const float expected = clean[form][i], result = got[form][i];
          const bool good = i / kRows != kOddColumn ? result == expected
                            : is_integer()          ? std::isnan(result)
                                                    : !std::isfinite(result);
          ASSERT_TRUE(good) << kForms[form] << ": " << odd << " in element " << at << ": row " << i % kRows
                            << ", column " << i / kRows << ": " << result << ", " << expected << " without it";
        }
      }
    }
  }
}

TEST_P(NotFinite, WeightsAffectOnlyTheirRow) {
  const Bytes a = random_weights();
  const Values b = random_floats(kColumns * k(), 2);
  const std::vector<Values> clean = products(a, b);
  for (const int64_t at : {int64_t{0}, int64_t{77}, k() - 1}) {
    for (const float odd : kOdd) {
      for (const size_t factor : factors_at(dtype())) {
        Bytes dirty = a;
        std::byte* block = dirty.data() + kOddRow * stride() + at / type().block_elems * type().block_bytes;
        if (type().is_quantized) {
          const uint16_t half = f32_to_f16(odd);
          std::memcpy(block + factor, &half, sizeof half);
        } else {
          type().from_f32(&odd, block, 1);
        }
        const std::vector<Values> got = products(dirty, b);
        for (size_t form = 0; form < got.size(); ++form) {
          for (int64_t i = 0; i < kRows * kColumns; ++i) {
            const float expected = clean[form][i], result = got[form][i];
            const bool good = i % kRows == kOddRow ? !std::isfinite(result) : result == expected;
            ASSERT_TRUE(good) << kForms[form] << ": " << odd << " in element " << at << ": row " << i % kRows
                              << ", column " << i / kRows << ": " << result << ", " << expected << " without it";
          }
        }
      }
    }
  }
}

class NotFiniteScores : public testing::TestWithParam<std::string_view> {};

// A block of NaN scores does not change `top`. After this block, `sum` is NaN.
TEST_P(NotFiniteScores, NaNScoresMakeTheSoftMaxSumNaN) {
  const AttentionKernels& kernels = kernels_of(GetParam()).attention;
  constexpr int64_t kSize = kAttentionBlock * kAttentionRows;
  for (const float odd : {NAN, -NAN}) {
    for (const bool hidden : {false, true}) {
      for (const int odd_block : {0, 1}) {
        Values top(kAttentionRows, -kInfinity), sum(kAttentionRows, 0), keep(kAttentionRows);
        Values of_lanes[] = {top, sum, keep};
        const std::vector<int32_t> first(kAttentionRows, 0), last(kAttentionRows, kAttentionBlock);
        for (const int block : {0, 1}) {
          Values rows(kSize, block == odd_block ? odd : 2.0f), lanes = rows;
          kernels.row_soft_max({rows.data(), kAttentionBlock, kAttentionRows, hidden, first.data(), last.data(),
                                top.data(), sum.data(), keep.data()});
          kernels.lane_soft_max({lanes.data(), kAttentionBlock, kAttentionRows, hidden, first.data(), last.data(),
                                 of_lanes[0].data(), of_lanes[1].data(), of_lanes[2].data()});
          const bool seen = block >= odd_block;
          for (int64_t row = 0; row < kAttentionRows; ++row) {
            ASSERT_EQ(std::isnan(sum[row]), seen) << "row " << row;
            ASSERT_EQ(std::isnan(of_lanes[1][row]), seen) << "lane " << row;
            const float expected = block == 0 && odd_block == 0 ? -kInfinity : 2.0f;
            ASSERT_EQ(top[row], expected) << "row " << row;
            ASSERT_EQ(of_lanes[0][row], expected) << "lane " << row;
          }
        }
      }
    }
  }
}

TEST_P(NotFiniteScores, NaNElementsHaveNaNLogits) {
  const RowKernels& rows = kernels_of(GetParam()).rows;
  for (const int64_t n : {1, 16, 37}) {
    for (const float odd : {NAN, -NAN}) {
      Values x(n, odd), to(n);
      const Values mask(n, 1.0f);
      EXPECT_EQ(rows.logits(x.data(), nullptr, 2, to.data(), n), -kInfinity);
      for (const float logit : to) ASSERT_TRUE(std::isnan(logit));
      EXPECT_EQ(rows.logits(x.data(), mask.data(), 2, to.data(), n), -kInfinity);
      for (const float logit : to) ASSERT_TRUE(std::isnan(logit));
      x[n / 2] = 4;
      EXPECT_EQ(rows.logits(x.data(), mask.data(), 2, to.data(), n), 9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, NotFiniteScores, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const std::string_view level : usable_levels()) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (traits(dtype).is_float || traits(dtype).is_quantized) result.push_back({level, dtype});
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Levels, NotFinite, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.level) + "_" + std::string(name_of(info.param.dtype));
});

}  // namespace
}  // namespace shoal::cpu

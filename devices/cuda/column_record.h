// Records of columns: a column as the 8-bit integers by which quantised weights are multiplied
// (devices/cuda/kernels/quantized_dot.h), left by the kernel that computes it, beside its f32 result, for the products
// behind it. A stream has memory for one record. A kernel writes or reads it only after wait_for_previous(): then
// everything that was queued before has ended, the readers of the record before among it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

inline constexpr int kStepElements = 2048, kUnitElements = 64;
inline constexpr int kStepValueBytes = kStepElements;

/// Bytes of a column's step.
constexpr int column_step_bytes(int groups) {
  return kStepValueBytes + 256 * groups;
}
/// Bytes of a column of k elements.
constexpr int64_t column_bytes(int64_t k, int groups) {
  return (k + kStepElements - 1) / kStepElements * column_step_bytes(groups);
}

/// The forms of a column: of two groups and of four.
struct ColumnForms {
  bool two = false, four = false;
  bool any() const { return two || four; }
  /// As PassedForms has them.
  uint32_t bits() const { return (two ? 1u : 0u) | (four ? 2u : 0u); }
  static ColumnForms of(uint32_t bits) { return {(bits & 1) != 0, (bits & 2) != 0}; }
  ColumnForms& operator|=(const ColumnForms& other) {
    two |= other.two, four |= other.four;
    return *this;
  }
  friend bool operator==(const ColumnForms&, const ColumnForms&) = default;
};

/// Where they lie; nullptr: there is none.
struct ColumnRecord {
  std::byte *two = nullptr, *four = nullptr;
};

/// Elements of a column that a record has room for, and its bytes in both forms.
inline constexpr int64_t kMostRecorded = 32 * 1024;
inline constexpr size_t kRecordBytes = column_bytes(kMostRecorded, 2) + column_bytes(kMostRecorded, 4);

}  // namespace shoal::cuda

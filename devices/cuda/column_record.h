// A record is a copy of a column, quantised to 8-bit integers. Products with quantised weights read the record instead
// of the column (devices/cuda/kernels/quantized_dot.h). The kernel that computes the column in f32 also writes the
// record. Each stream has memory for one record. A kernel writes or reads the record only after wait_for_previous().
// After this wait, all earlier kernels have finished, including the readers of the previous record.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

inline constexpr int kStepElements = 2048, kUnitElements = 64;
inline constexpr int kStepValueBytes = kStepElements;

/// Size in bytes of one step (2048 elements) of a record. Each unit (64 elements) of the record has `groups` groups of
/// elements that share a scale.
constexpr int column_step_bytes(int groups) {
  return kStepValueBytes + 256 * groups;
}
/// Size in bytes of the record of a column with k elements.
constexpr int64_t column_bytes(int64_t k, int groups) {
  return (k + kStepElements - 1) / kStepElements * column_step_bytes(groups);
}

/// Forms in which a column is recorded. In form `two`, a unit has two groups of 32 elements. In form `four`, a unit has
/// four groups of 16 elements.
struct ColumnForms {
  bool two = false, four = false;
  bool any() const { return two || four; }
  /// Returns a bit mask of the forms, for PassedForms.
  uint32_t bits() const { return (two ? 1u : 0u) | (four ? 2u : 0u); }
  static ColumnForms of(uint32_t bits) { return {(bits & 1) != 0, (bits & 2) != 0}; }
  ColumnForms& operator|=(const ColumnForms& other) {
    two |= other.two, four |= other.four;
    return *this;
  }
  friend bool operator==(const ColumnForms&, const ColumnForms&) = default;
};

/// Addresses of a record in each form; nullptr if the form is absent.
struct ColumnRecord {
  std::byte *two = nullptr, *four = nullptr;
};

/// `kMostRecorded` is the largest number of elements that a recorded column may have. `kRecordBytes` is the size in
/// bytes of the memory for a record in both forms.
inline constexpr int64_t kMostRecorded = 32 * 1024;
inline constexpr size_t kRecordBytes = column_bytes(kMostRecorded, 2) + column_bytes(kMostRecorded, 4);

}  // namespace shoal::cuda

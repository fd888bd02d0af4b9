// A record is a quantised copy of a column, with 8-bit integers. Products with quantised weights read the record
// instead of the column (devices/cuda/kernels/quantized_dot.h). The kernel that computes the column writes the record
// in addition to its f32 result; later products read the record. A stream has memory for one record. A kernel writes or
// reads the record only after wait_for_previous(). By then all earlier kernels have finished, including the readers of
// the previous record.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

inline constexpr int kStepElements = 2048, kUnitElements = 64;
inline constexpr int kStepValueBytes = kStepElements;

/// Bytes of one step (2048 elements) of a column.
constexpr int column_step_bytes(int groups) {
  return kStepValueBytes + 256 * groups;
}
/// Bytes of a column of k elements.
constexpr int64_t column_bytes(int64_t k, int groups) {
  return (k + kStepElements - 1) / kStepElements * column_step_bytes(groups);
}

/// Forms of a recorded column. `two` has two groups of 32 elements per unit; `four` has four groups of 16 elements.
struct ColumnForms {
  bool two = false, four = false;
  bool any() const { return two || four; }
  /// The forms as a bit mask, as PassedForms stores them.
  uint32_t bits() const { return (two ? 1u : 0u) | (four ? 2u : 0u); }
  static ColumnForms of(uint32_t bits) { return {(bits & 1) != 0, (bits & 2) != 0}; }
  ColumnForms& operator|=(const ColumnForms& other) {
    two |= other.two, four |= other.four;
    return *this;
  }
  friend bool operator==(const ColumnForms&, const ColumnForms&) = default;
};

/// Addresses of the forms; nullptr if a form is absent.
struct ColumnRecord {
  std::byte *two = nullptr, *four = nullptr;
};

/// Largest number of elements of a recorded column, and number of bytes of a record with both forms.
inline constexpr int64_t kMostRecorded = 32 * 1024;
inline constexpr size_t kRecordBytes = column_bytes(kMostRecorded, 2) + column_bytes(kMostRecorded, 4);

}  // namespace shoal::cuda

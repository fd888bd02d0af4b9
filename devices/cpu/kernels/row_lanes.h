// Interleaves rows of floats. Each vector contains one element of each of kLanes rows, one row per lane.
#pragma once

#include "devices/cpu/kernels/half.h"
#include "devices/cpu/kernels/transpose.h"

namespace shoal::cpu::SHOAL_ISA {

template <class Rows>
class RowLanes {
 public:
  using Element = typename Rows::Element;
  /// Reads `count` rows. The remaining lanes repeat the last row.
  RowLanes(const std::byte* rows, size_t stride, int64_t count) {
    for (int64_t r = 0; r < kLanes; ++r) {
      rows_[r] = reinterpret_cast<const Element*>(rows + (r < count ? r : count - 1) * stride);
    }
  }
  /// Loads elements i to i + kLanes - 1 of all rows. Elements from element k on are zeros.
  void load(int64_t i, int64_t k, F32 (&to)[kLanes]) const {
    const int64_t n = k - i;
    I32 v[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      v[r] = bits_as<I32>(n >= kLanes ? Rows::load(rows_[r] + i) : n > 0 ? load_first<Rows>(rows_[r] + i, n) : F32{});
    }
    transpose(v);
    for (int r = 0; r < kLanes; ++r) to[r] = bits_as<F32>(v[r]);
  }

 private:
  const Element* rows_[kLanes];
};

}  // namespace shoal::cpu::SHOAL_ISA

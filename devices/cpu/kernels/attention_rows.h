// KV rows of each type as vectors of f32, kStep vectors at a time that share what Scale holds.
#pragma once

#include "devices/cpu/kernels/half.h"
#include "graph/quants/blocks.h"

namespace shoal::cpu::SHOAL_ISA {

template <class Rows>
struct KvFloats {
  static constexpr int kStep = 1;
  struct Scale {};
  static Scale scale(const std::byte*, int64_t) { return {}; }
  /// Vector v of a row.
  static F32 load(const std::byte* row, int64_t v, Scale) {
    return Rows::load(reinterpret_cast<const typename Rows::Element*>(row) + v * kLanes);
  }
  /// The n < kLanes elements of vector v, zeros behind them.
  static F32 load_rest(const std::byte* row, int64_t v, int64_t n) {
    return load_first<Rows>(reinterpret_cast<const typename Rows::Element*>(row) + v * kLanes, n);
  }
};

struct KvQ8_0 {
  static constexpr int kStep = 32 / kLanes;
  using Scale = F32;
  static const quants::BlockQ8_0& block(const std::byte* row, int64_t v) {
    return reinterpret_cast<const quants::BlockQ8_0*>(row)[v / kStep];
  }
  static Scale scale(const std::byte* row, int64_t v) { return splat(half_to_float(block(row, v).scale)); }
  static F32 load(const std::byte* row, int64_t v, Scale scale) {
    return to_float(load_widened(block(row, v).values + v % kStep * kLanes)) * scale;
  }
  static F32 load_rest(const std::byte*, int64_t, int64_t) { return F32{}; }  // rows are whole blocks
};

}  // namespace shoal::cpu::SHOAL_ISA

// Reads KV rows of each type as vectors of f32. Each group of kStep consecutive vectors has one common Scale.
#pragma once

#include "devices/cpu/kernels/formats_32.h"
#include "devices/cpu/kernels/half.h"
#include "graph/quants/blocks.h"

namespace shoal::cpu::SHOAL_ISA {

template <class Rows>
struct KvFloats {
  static constexpr int kStep = 1;
  struct Scale {};
  static Scale scale(const std::byte*, int64_t) { return {}; }
  /// Returns vector v of a row.
  static F32 load(const std::byte* row, int64_t v, Scale) {
    return Rows::load(reinterpret_cast<const typename Rows::Element*>(row) + v * kLanes);
  }
  /// Returns the first n elements of vector v (n < kLanes), followed by zeros.
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
  static F32 load_rest(const std::byte*, int64_t, int64_t) { return F32{}; }  // never called: rows are whole blocks
};

/// KV rows in all formats of 32-element blocks except Q8_0.
template <class Format>
struct KvBlocks {
  static constexpr int kStep = 32 / kLanes;
  /// The decoded elements of a block.
  struct Scale {
    F32 values[kStep];
  };
  static Scale scale(const std::byte* row, int64_t v) {
    const auto& block = reinterpret_cast<const typename Format::Block*>(row)[v / kStep];
    int8_t codes[32];
    store(codes, Format::raw(block, 0));
    const auto scales = Format::scales(block);
    constexpr int kOffset = Format::kOffset == kSigned ? 0 : Format::kOffset;
    Scale all;
    SHOAL_UNROLL
    for (int i = 0; i < kStep; ++i) {
      all.values[i] = to_float(load_widened(codes + i * kLanes) - kOffset) * splat(scales.scale[0]);
      if constexpr (Format::kAdds) all.values[i] += splat(scales.add[0]);
    }
    return all;
  }
  static F32 load(const std::byte*, int64_t v, const Scale& all) { return all.values[v % kStep]; }
  static F32 load_rest(const std::byte*, int64_t, int64_t) { return F32{}; }  // never called: rows are whole blocks
};

}  // namespace shoal::cpu::SHOAL_ISA

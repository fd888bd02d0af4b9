// Packed groups of float rows (packed_layout.h). A group is a sequence of units of kPanelStep elements of each row. The
// last unit may have fewer elements. In a unit, one vector contains element i of all rows. A unit of f16 or bf16 rows
// begins with the exponents of the scales of words (words.h): one byte for each row and 32 elements. One vector
// contains the bytes of all rows.
#pragma once

#include "devices/cpu/kernels/half.h"
#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/words.h"

namespace shoal::cpu::SHOAL_ISA {

template <class Rows>
struct PackedRows {
  using Element = typename Rows::Element;
  static constexpr bool kHasWords = sizeof(Element) == 2;  ///< whether columns of words are multiplied by the rows
  static constexpr size_t kVectorBytes = kLanes * sizeof(Element);
  static constexpr size_t kElementsFrom = kHasWords ? (kPanelStep / 32 * kLanes + 63) / 64 * 64 : 0;
  static constexpr size_t kUnitBytes = kElementsFrom + kPanelStep * kVectorBytes;

  static size_t bytes(int64_t k) {
    const auto units = static_cast<size_t>(k / kPanelStep), rest = static_cast<size_t>(k % kPanelStep);
    return units * kUnitBytes + (rest > 0 ? (kElementsFrom + rest * kVectorBytes + 63) / 64 * 64 : 0);
  }
  static const std::byte* unit(const std::byte* group, int64_t i) { return group + i / kPanelStep * kUnitBytes; }
  /// Returns element i of the first row. The same element of the other rows follows.
  static const Element* element(const std::byte* group, int64_t i) {
    return reinterpret_cast<const Element*>(unit(group, i) + kElementsFrom + i % kPanelStep * kVectorBytes);
  }
  static Element* element(std::byte* group, int64_t i) {
    return const_cast<Element*>(element(static_cast<const std::byte*>(group), i));
  }
  /// Returns the exponent of elements i to i + 31 of the first row. The exponents of the other rows follow. i is a
  /// multiple of 32.
  static const uint8_t* exponents(const std::byte* group, int64_t i) {
    return reinterpret_cast<const uint8_t*>(unit(group, i) + i % kPanelStep / 32 * kLanes);
  }
  static F32 load(const std::byte* group, int64_t i) { return Rows::load(element(group, i)); }
  static WordScales scales(const std::byte* group, int64_t i) { return WordScales(load_widened(exponents(group, i))); }
};

}  // namespace shoal::cpu::SHOAL_ISA

// Packs rows into groups and unpacks them (packed_layout.h).
#include "devices/cpu/kernels/narrow.h"
#include "devices/cpu/kernels/packed_blocks.h"
#include "devices/cpu/kernels/packed_rows.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
template <class Rows>
size_t packed_row_bytes(int64_t k) {
  return PackedRows<Rows>::bytes(k);
}

namespace {

/// Stores one 32-bit word of every row. A word contains one f32 element or two neighbouring 16-bit elements. Element i
/// of the word of row r is stored at to[i * kLanes + r].
void store_elements(float* to, I32 word) {
  store(to, word);
}
void store_elements(uint16_t* to, I32 word) {
  store(to, low_halves(word));
  store(to + kLanes, low_halves(word >> 16));
}

}  // namespace

template <class Rows>
void pack_rows(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group) {
  using Packed = PackedRows<Rows>;
  using Element = typename Rows::Element;
  constexpr int kPerWord = 4 / sizeof(Element), kStep = kLanes * kPerWord;
  static_assert(kPanelStep % kStep == 0);
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    I32 v[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) v[r] = r < count ? load<I32>(rows + r * stride + i * sizeof(Element)) : I32{};
    transpose(v);
    for (int word = 0; word < kLanes; ++word) store_elements(Packed::element(group, i + word * kPerWord), v[word]);
  }
  for (; i < k; ++i) {
    Element* to = Packed::element(group, i);
    for (int64_t r = 0; r < kLanes; ++r) {
      to[r] = r < count ? load<Element>(rows + r * stride + i * sizeof(Element)) : Element{};
    }
  }
  if constexpr (Packed::kHasWords) {
    for (i = 0; i < k; i += 32) {
      F32 v[32] = {};
      for (int64_t j = i; j < k && j < i + 32; ++j) v[j - i] = Packed::load(group, j);
      const I32 exponents = exponents_of(v);
      auto* to = const_cast<uint8_t*>(Packed::exponents(group, i));
      for (int r = 0; r < kLanes; ++r) to[r] = static_cast<uint8_t>(exponents[r]);
    }
  }
}

template <class Rows>
void unpack_row(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) {
  using Element = typename Rows::Element;
  for (int64_t i = 0; i < k; ++i) store(to + i * sizeof(Element), PackedRows<Rows>::element(group, k_begin + i)[row]);
}

#define SHOAL_QUANTIZED(id, ...)                                                  \
  template size_t packed_bytes<id>(int64_t);                                      \
  template void pack<id>(const std::byte*, size_t, int64_t, int64_t, std::byte*); \
  template void unpack<id>(const std::byte*, int64_t, int64_t, int64_t, std::byte*);
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
template size_t packed_bytes<NVFP4>(int64_t);
template void pack<NVFP4>(const std::byte*, size_t, int64_t, int64_t, std::byte*);
template void unpack<NVFP4>(const std::byte*, int64_t, int64_t, int64_t, std::byte*);
SHOAL_FOR_ROWS(template size_t packed_row_bytes, (int64_t))
SHOAL_FOR_ROWS(template void pack_rows, (const std::byte*, size_t, int64_t, int64_t, std::byte*))
SHOAL_FOR_ROWS(template void unpack_row, (const std::byte*, int64_t, int64_t, int64_t, std::byte*))

}  // namespace shoal::cpu::SHOAL_ISA

// Rows to packed groups and back (packed_layout.h).
#include "devices/cpu/kernels/narrow.h"
#include "devices/cpu/kernels/packed_layout.h"
#include "devices/cpu/kernels/transpose.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

size_t rounded_up(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// One unit of all rows: `blocks` blocks (fewer than a unit has at the end of a row) from block `first` on.
template <class Format>
void pack_unit(const std::byte* const (&rows)[kLanes], int64_t first, int blocks, std::byte* unit) {
  using Layout = PackedLayout<Format>;
  constexpr int kWords = Layout::kBlocks * Layout::kWords;
  constexpr int kRounded = (kWords + kLanes - 1) / kLanes * kLanes;
  uint32_t words[kLanes][kRounded] = {};
  typename Layout::Number numbers[Layout::kBlocks * Layout::kNumbers][kLanes] = {};
  for (int r = 0; r < kLanes; ++r) {
    if (rows[r] == nullptr) continue;
    const std::byte* from = rows[r] + first * sizeof(typename Format::Block);
    for (int block = 0; block < blocks; ++block, from += sizeof(typename Format::Block)) {
      __builtin_memcpy(words[r] + block * Layout::kWords, from + Layout::kWordsAt, Layout::kWords * 4);
      for (int i = 0; i < Layout::kNumbers; ++i) {
        const std::byte* number = from + Layout::kNumbersAt + Layout::kNumberBytes * i;
        numbers[block * Layout::kNumbers + i][r] = load<typename Layout::Number>(number);
      }
    }
  }
  __builtin_memcpy(unit, numbers, sizeof numbers);
  for (int begin = 0; begin < kWords; begin += kLanes) {
    I32 v[kLanes];
    for (int r = 0; r < kLanes; ++r) v[r] = load<I32>(words[r] + begin);
    transpose(v);
    for (int i = begin; i < kWords && i < begin + kLanes; ++i) {
      store(unit + Layout::word_at(0, i), stored_word<Format>(v[i - begin], i % Layout::kWords));
    }
  }
}

}  // namespace

template <class Format>
size_t packed_bytes(int64_t k) {
  return rounded_up(static_cast<size_t>(PackedLayout<Format>::units(k)) * PackedLayout<Format>::kBytes);
}

template <class Format>
void pack(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group) {
  using Layout = PackedLayout<Format>;
  const std::byte* from[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) from[r] = r < count ? rows + r * stride : nullptr;
  const int64_t blocks = k / (32 * Format::kParts);
  for (int64_t first = 0; first < blocks; first += Layout::kBlocks, group += Layout::kBytes) {
    pack_unit<Format>(from, first,
                      static_cast<int>(blocks - first < Layout::kBlocks ? blocks - first : Layout::kBlocks), group);
  }
}

template <class Format>
void unpack(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) {
  using Layout = PackedLayout<Format>;
  constexpr int64_t kElements = 32 * Format::kParts;
  for (int64_t i = k_begin / kElements; i < (k_begin + k) / kElements; ++i, to += sizeof(typename Format::Block)) {
    const std::byte* unit = group + i / Layout::kBlocks * Layout::kBytes;
    const int block = static_cast<int>(i % Layout::kBlocks);
    for (int n = 0; n < Layout::kNumbers; ++n) {
      const std::byte* number = unit + Layout::number_at(block, n) + Layout::kNumberBytes * row;
      store(to + Layout::kNumbersAt + Layout::kNumberBytes * n, load<typename Layout::Number>(number));
    }
    for (int w = 0; w < Layout::kWords; ++w) {
      const auto word = load<uint32_t>(unit + Layout::word_at(block, w) + 4 * row);
      store(to + Layout::kWordsAt + 4 * w, restored_word<Format>(word, w));
    }
  }
}

template <class Rows>
size_t packed_row_bytes(int64_t k) {
  return rounded_up(static_cast<size_t>(k) * kLanes * sizeof(typename Rows::Element));
}

namespace {

/// Words of all rows, each one f32 or two neighbouring f16, to the place of the first of its elements.
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
  using Element = typename Rows::Element;
  constexpr int kPerWord = 4 / sizeof(Element), kStep = kLanes * kPerWord;
  auto* to = reinterpret_cast<Element*>(group);
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    I32 v[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) v[r] = r < count ? load<I32>(rows + r * stride + i * sizeof(Element)) : I32{};
    transpose(v);
    for (int word = 0; word < kLanes; ++word) store_elements(to + (i + word * kPerWord) * kLanes, v[word]);
  }
  for (; i < k; ++i) {
    for (int64_t r = 0; r < kLanes; ++r) {
      to[i * kLanes + r] = r < count ? load<Element>(rows + r * stride + i * sizeof(Element)) : Element{};
    }
  }
}

template <class Rows>
void unpack_row(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) {
  using Element = typename Rows::Element;
  const auto* from = reinterpret_cast<const Element*>(group) + k_begin * kLanes + row;
  for (int64_t i = 0; i < k; ++i) store(to + i * sizeof(Element), from[i * kLanes]);
}

#define SHOAL_QUANTIZED(id, ...)                                                  \
  template size_t packed_bytes<id>(int64_t);                                      \
  template void pack<id>(const std::byte*, size_t, int64_t, int64_t, std::byte*); \
  template void unpack<id>(const std::byte*, int64_t, int64_t, int64_t, std::byte*);
#include "graph/dtypes.def"
SHOAL_FOR_ROWS(template size_t packed_row_bytes, (int64_t))
SHOAL_FOR_ROWS(template void pack_rows, (const std::byte*, size_t, int64_t, int64_t, std::byte*))
SHOAL_FOR_ROWS(template void unpack_row, (const std::byte*, int64_t, int64_t, int64_t, std::byte*))

}  // namespace shoal::cpu::SHOAL_ISA

// Packs rows of quantised blocks into groups and unpacks them (packed_layout.h).
#pragma once

#include "devices/cpu/kernels/packed_layout.h"
#include "devices/cpu/kernels/transpose.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {

inline size_t whole_lines(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Packs one unit. The unit contains `blocks` blocks of every row, starting at block `first`. The last unit of a group
/// may contain fewer blocks than the other units.
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

template <class Format>
size_t packed_bytes(int64_t k) {
  return whole_lines(static_cast<size_t>(PackedLayout<Format>::units(k)) * PackedLayout<Format>::kBytes);
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

}  // namespace shoal::cpu::SHOAL_ISA

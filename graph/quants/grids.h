// The codebooks of the IQ types as byte tables. An entry is a word of four or eight bytes. The first element is in the
// lowest byte. This header has only data and compile-time functions, so files compiled for a special instruction set
// may include this header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::quants {

template <class Word, int kCount_>
struct Grid {
  static constexpr int kCount = kCount_, kElements = sizeof(Word);
  Word entries[kCount];
};

namespace grids {

/// The possible values of an entry's elements. The values are magnitudes. In iq1_s, the values are 8 g + 8 with g = -1,
/// 0 or 1.
inline constexpr uint8_t kIQ2Levels[] = {8, 25, 43};
inline constexpr uint8_t kIQ3XXSLevels[] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr uint8_t kIQ3SLevels[] = {1, 3, 5, 7, 9, 11, 13, 15};
inline constexpr uint8_t kIQ1Levels[] = {0, 8, 16};

#define SHOAL_GRID(id, set) inline constexpr char k##id##Set[] = set;
#include "graph/quants/grids.def"

/// The entries of a set in ascending order. Each entry packs the level numbers of its elements. With three levels, an
/// element has two bits; with eight levels, an element has three bits.
template <int kCount>
struct Entries {
  uint16_t numbers[kCount];
};
template <int kCount, int kLevels>
constexpr Entries<kCount> entries_of(const char* set, const uint8_t (&)[kLevels]) {
  constexpr int kBits = kLevels == 3 ? 2 : 3;
  Entries<kCount> entries{};
  for (int number = 0, found = 0; found < kCount; ++number) {
    const char digit = set[number / 4];
    const int bits = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    if ((bits >> number % 4 & 1) == 0) continue;
    int packed = 0;
    for (int rest = number, shift = 0; rest > 0; rest /= kLevels, shift += kBits) packed |= rest % kLevels << shift;
    entries.numbers[found++] = static_cast<uint16_t>(packed);
  }
  return entries;
}

template <class Word, int kCount, int kLevels>
constexpr Grid<Word, kCount> expand(const char* set, const uint8_t (&levels)[kLevels]) {
  constexpr int kBits = kLevels == 3 ? 2 : 3;
  const Entries<kCount> entries = entries_of<kCount>(set, levels);
  Grid<Word, kCount> grid{};
  for (int i = 0; i < kCount; ++i) {
    for (size_t j = 0; j < sizeof(Word); ++j) {
      grid.entries[i] |= static_cast<Word>(levels[entries.numbers[i] >> (kBits * j) & ((1 << kBits) - 1)]) << (8 * j);
    }
  }
  return grid;
}

}  // namespace grids

/// Calls grid(id, word type of an entry, number of entries, levels) for each grid. iq1_m uses the grid of iq1_s.
#define SHOAL_FOR_GRIDS(grid)                  \
  grid(IQ2_XXS, uint64_t, 256, kIQ2Levels);    \
  grid(IQ2_XS, uint64_t, 512, kIQ2Levels);     \
  grid(IQ2_S, uint64_t, 1024, kIQ2Levels);     \
  grid(IQ3_XXS, uint32_t, 256, kIQ3XXSLevels); \
  grid(IQ3_S, uint32_t, 512, kIQ3SLevels);     \
  grid(IQ1_S, uint64_t, 2048, kIQ1Levels)

/// Tables in host memory (grids.cpp).
#define SHOAL_DECLARE_GRID(id, Word, count, levels) extern const Grid<Word, count> kGrid##id
SHOAL_FOR_GRIDS(SHOAL_DECLARE_GRID);
#undef SHOAL_DECLARE_GRID

}  // namespace shoal::quants

// Decodes rows or packed groups of quantised weights into panels (panel_layout.h).
#include "devices/cpu/kernels/packed_formats.h"
#include "devices/cpu/kernels/panel_layout.h"
#include "devices/cpu/kernels/prefetch.h"
#include "devices/cpu/kernels/transpose.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Format>
using Layout = PanelLayout<Format::kGroups, Format::kAdds>;

// One transposition processes 4 * kLanes elements of every row. If kLanes >= 8, these elements form kStep parts of 32
// elements. If kLanes < 8, one part needs kPieces transpositions.
constexpr int kStep = kLanes > 8 ? kLanes / 8 : 1;
constexpr int kPieces = kLanes < 8 ? 8 / kLanes : 1;

/// Decodes kParts consecutive parts of kLanes rows. blocks[r] is the first block of row r.
template <class Format>
struct RowsOfBlocks {
  using Block = typename Format::Block;
  static constexpr int kGroups = Format::kGroups;
  static constexpr int kParts = Format::kParts > kStep ? Format::kParts : kStep;
  static_assert(kParts % Format::kParts == 0 && kParts % kStep == 0);

  const Block* const (&blocks)[kLanes];
  std::byte* panel;
  int count;  ///< number of parts, at most kParts

  std::byte* part(int i) const { return panel + i * Layout<Format>::kBytes; }

  /// If a block is a part, its scale and its addend are stored as fields.
  template <class Field>
  auto collect(int i, Field Block::*field) const {
    Field values[kLanes];
    SHOAL_UNROLL
    for (int r = 0; r < kLanes; ++r) values[r] = blocks[r][i].*field;
    if constexpr (sizeof(Field) == 1) {
      return powers_to_float(load_widened(values));
    } else {
      return load_half(values);
    }
  }

  /// Stores number i of each row, from rows of numbers, in part i / kGroups at `at`.
  template <int kCount>
  void store_numbers(const float (&rows)[kLanes][kCount], size_t at) const {
    for (int begin = 0; begin < kCount; begin += kLanes) {
      I32 v[kLanes];
      for (int r = 0; r < kLanes; ++r) v[r] = load<I32>(rows[r] + begin);
      transpose(v);
      for (int i = begin; i < begin + kLanes && i < Format::kParts * kGroups; ++i) {
        store(part(i / kGroups) + at + i % kGroups * sizeof(F32), v[i - begin]);
      }
    }
  }

  void store_scales() const {
    if constexpr (Format::kParts == 1) {
      for (int i = 0; i < count; ++i) {
        store(part(i) + Layout<Format>::kScales, collect(i, &Block::scale));
        if constexpr (Format::kAdds) store(part(i) + Layout<Format>::kAddends, collect(i, &Block::min));
      }
    } else {
      static_assert(kParts == Format::kParts);
      constexpr int kNumbers = kParts * kGroups, kRounded = (kNumbers + kLanes - 1) / kLanes * kLanes;
      float scales[kLanes][kRounded], adds[kLanes][kRounded];
      for (int r = 0; r < kLanes; ++r) {
        const auto numbers = Format::scales(*blocks[r]);
        __builtin_memcpy(scales[r], numbers.scale, sizeof numbers.scale);
        if constexpr (Format::kAdds) __builtin_memcpy(adds[r], numbers.add, sizeof numbers.add);
        for (int i = kNumbers; i < kRounded; ++i) scales[r][i] = adds[r][i] = 0;
      }
      store_numbers(scales, Layout<Format>::kScales);
      if constexpr (Format::kAdds) store_numbers(adds, Layout<Format>::kAddends);
    }
  }

  using Values = int8_t[kLanes][32 * kStep];

  /// Stores the elements of kStep parts, starting at part `first`.
  void store_values(int first, const Values& values) const {
    using Unsigned = Vec<uint8_t, 4 * kLanes>;  // unsigned, because additions may wrap around
    constexpr int kRawBias = Format::kOffset == kSigned ? 0 : Format::kOffset;
    constexpr auto kShift = static_cast<uint8_t>(kPanelBias<Format> - kRawBias);
    for (int piece = 0; piece < kPieces; ++piece) {
      I32 v[kLanes];
      SHOAL_UNROLL
      for (int r = 0; r < kLanes; ++r) v[r] = load<I32>(values[r] + piece * sizeof(Bytes));
      transpose(v);
      SHOAL_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        const int quad = piece * kLanes + i;
        if (first + quad / 8 >= count) break;
        store(part(first + quad / 8) + Layout<Format>::kValues + quad % 8 * sizeof(Bytes),
              bits_as<Unsigned>(v[i]) + kShift);
      }
    }
  }

  /// Parts of a block are at different bit positions. So the loop over the parts is unrolled, and all shifts are
  /// constants.
  void store_raw() const {
    SHOAL_UNROLL
    for (int first = 0; first < kParts; first += kStep) {
      Values values;
      SHOAL_NO_UNROLL
      for (int r = 0; r < kLanes; ++r) {
        SHOAL_UNROLL
        for (int i = first; i < first + kStep; ++i) {
          store(values[r] + 32 * (i - first),
                i < count ? Format::raw(blocks[r][i / Format::kParts], i % Format::kParts) : I8x32{});
        }
      }
      store_values(first, values);
    }
  }

  /// For formats that store signs apart from codebook entries. Lookups of independent rows can overlap, so the loop
  /// over the rows is unrolled.
  void store_signed() const {
    typename Format::Signs signs[kLanes];
    for (int r = 0; r < kLanes; ++r) signs[r] = Format::signs(*blocks[r]);
    SHOAL_NO_UNROLL
    for (int first = 0; first < kParts; first += kStep) {
      Values values;
      SHOAL_UNROLL
      for (int r = 0; r < kLanes; ++r) {
        SHOAL_UNROLL
        for (int i = first; i < first + kStep; ++i) {
          store(values[r] + 32 * (i - first),
                with_signs(Format::magnitudes(*blocks[r], i), sign_bytes(signs[r].of(i))));
        }
      }
      store_values(first, values);
    }
  }

  void store_all() const {
    store_scales();
    if constexpr (requires { requires Format::kSignsApart; }) {
      store_signed();
    } else {
      store_raw();
    }
  }
};

}  // namespace

template <class Format>
void panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) {
  using Rows = RowsOfBlocks<Format>;
  using Block = typename Format::Block;
  const Block* blocks[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) {
    blocks[r] = reinterpret_cast<const Block*>(a + (r < rows ? r : rows - 1) * a_stride);
  }
  for (int64_t part = 0; part < k / 32; part += Rows::kParts) {
    if (part % 8 == 0) {
      for (const Block* block : blocks) prefetch(block, 8 / Format::kParts * sizeof(Block), kLanes * a_stride);
    }
    const int64_t left = k / 32 - part;
    Rows{blocks, panel + part * Layout<Format>::kBytes, static_cast<int>(left < Rows::kParts ? left : Rows::kParts)}
        .store_all();
    for (const Block*& block : blocks) block += Rows::kParts / Format::kParts;
  }
}

template <class Format>
void panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) {
  constexpr int kGroups = Format::kGroups;
  using Unsigned = Vec<uint8_t, 4 * kLanes>;  // unsigned, because additions may wrap around
  constexpr auto kShift = static_cast<uint8_t>(kPanelBias<Format> - kPackedOffset<Format>);
  using Packed = PackedLayout<Format>;
  const std::byte* unit = group + k_begin / 32 / Packed::kParts * Packed::kBytes;
  for (int64_t left = k / 32; left > 0; left -= Packed::kParts, unit += Packed::kBytes) {
    const PackedReader<Format> reader(unit);
    SHOAL_UNROLL
    for (int part = 0; part < Packed::kParts; ++part, panel += Layout<Format>::kBytes) {
      if (part >= left) break;
      F32 scales[kGroups], adds[kGroups];
      reader.scales(part, scales, adds);
      for (int g = 0; g < kGroups; ++g) {
        store(panel + Layout<Format>::kScales + g * sizeof(F32), scales[g]);
        if constexpr (Format::kAdds) store(panel + Layout<Format>::kAddends + g * sizeof(F32), adds[g]);
      }
      Bytes values[8];
      reader.values(part, values);
      SHOAL_UNROLL
      for (int i = 0; i < 8; ++i)
        store(panel + Layout<Format>::kValues + i * sizeof(Bytes), bits_as<Unsigned>(values[i]) + kShift);
    }
  }
}

#define SHOAL_QUANTIZED(id, ...) \
  template void panel_from_rows<id>(const std::byte*, size_t, int64_t, int64_t, std::byte*);
#include "graph/dtypes.def"
#define SHOAL_QUANTIZED(id, ...) template void panel_from_packed<id>(const std::byte*, int64_t, int64_t, std::byte*);
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
template void panel_from_packed<NVFP4>(const std::byte*, int64_t, int64_t, std::byte*);

}  // namespace shoal::cpu::SHOAL_ISA

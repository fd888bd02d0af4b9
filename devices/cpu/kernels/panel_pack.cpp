// Decodes rows or packed groups of quantised weights into panels (panel_layout.h).
#include "devices/cpu/kernels/packed_formats.h"
#include "devices/cpu/kernels/panel_layout.h"
#include "devices/cpu/kernels/transpose.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Format>
using Layout = PanelLayout<Format::kGroups, Format::kAdds>;

/// Stores the scales and addends of one row in lane `row` of the panel.
template <class Format>
void pack_scales(const typename Format::Block* blocks, int64_t row, int64_t parts, std::byte* panel) {
  for (int64_t part = 0; part < parts; part += Format::kParts) {
    const auto scales = Format::scales(blocks[part / Format::kParts]);
    for (int i = 0; i < Format::kParts; ++i, panel += Layout<Format>::kBytes) {
      for (int group = 0; group < Format::kGroups; ++group) {
        const int64_t lane = group * kLanes + row;
        auto* to = reinterpret_cast<float*>(panel + Layout<Format>::kScales);
        to[lane] = scales.scale[i * Format::kGroups + group];
        if constexpr (Format::kAdds) {
          auto* addends = reinterpret_cast<float*>(panel + Layout<Format>::kAddends);
          addends[lane] = scales.add[i * Format::kGroups + group];
        }
      }
    }
  }
}

// One transposition processes 4 * kLanes elements of every row. If kLanes >= 8, these elements form kStep parts of 32
// elements. If kLanes < 8, one part needs kPieces transpositions.
constexpr int kStep = kLanes > 8 ? kLanes / 8 : 1;
constexpr int kPieces = kLanes < 8 ? 8 / kLanes : 1;

template <class Format>
U8x32 panel_bytes_of(const typename Format::Block& block, int part) {
  return bits_as<U8x32>(values_of<Format>(block, part)) + static_cast<uint8_t>(kPanelBias<Format>);
}

template <class Format>
void pack_values(const typename Format::Block* const* rows, int64_t part, int64_t count, std::byte* panel) {
  int8_t values[kLanes][32 * kStep] = {};
  for (int r = 0; r < kLanes; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      const auto& block = rows[r][(part + i) / Format::kParts];
      store(values[r] + 32 * i, panel_bytes_of<Format>(block, static_cast<int>((part + i) % Format::kParts)));
    }
  }
  for (int piece = 0; piece < kPieces; ++piece) {
    I32 v[kLanes];
    for (int r = 0; r < kLanes; ++r) v[r] = load<I32>(values[r] + piece * sizeof(Bytes));
    transpose(v);
    for (int i = 0; i < kLanes && i < 8 * count; ++i) {
      const int quad = piece * kLanes + i;
      store(panel + quad / 8 * Layout<Format>::kBytes + Layout<Format>::kValues + quad % 8 * sizeof(Bytes), v[i]);
    }
  }
}

}  // namespace

template <class Format>
void panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) {
  const typename Format::Block* blocks[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) {
    blocks[r] = reinterpret_cast<const typename Format::Block*>(a + (r < rows ? r : rows - 1) * a_stride);
    pack_scales<Format>(blocks[r], r, k / 32, panel);
  }
  for (int64_t part = 0; part < k / 32; part += kStep) {
    const int64_t count = k / 32 - part < kStep ? k / 32 - part : kStep;
    pack_values<Format>(blocks, part, count, panel + part * Layout<Format>::kBytes);
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

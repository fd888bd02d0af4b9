// Multiplies packed groups of quantised rows by a few columns. Weights are read from memory once, at consecutive
// addresses, and are not stored in panels. Each element of the result has the same operations as in
// panel_quantized.cpp, so both files give the same bits.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/packed_formats.h"
#include "devices/cpu/kernels/packed_groups.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Format>
struct Quantized {
  static constexpr int kGroups = Format::kGroups, kQuads = 8 / kGroups;
  using Layout = PackedLayout<Format>;

  /// For every row, returns the dot product of group g of the weights and the elements of a column.
  static I32 products(const Bytes (&weights)[8], const Column& b, int64_t part, int g) {
    constexpr int kBits = Format::kOffset == kSigned ? 8 : Format::kBits;
    Bytes own[kQuads], columns[kQuads];
    SHOAL_UNROLL
    for (int i = 0; i < kQuads; ++i) {
      own[i] = weights[g * kQuads + i];
      columns[i] = splat_quad(b.values + 32 * part + 4 * (g * kQuads + i));
    }
    const int32_t start = kGroups == 2 ? b.half_starts[2 * part + g] : b.starts[part];
    return quad_dots<kBits>(start_sums<kPackedOffset<Format>>(start), own, columns);
  }

  template <int C>
  static void part(const PackedReader<Format>& reader, int in_unit, int64_t part, const Column (&b)[C],
                   F32 (&sums)[C]) {
    Bytes weights[8];
    F32 scales[kGroups], adds[kGroups];
    reader.values(in_unit, weights);
    reader.scales(in_unit, scales, adds);
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      SHOAL_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const F32 scaled = to_float(products(weights, b[c], part, g)) * scales[g];
        sums[c] = multiply_add(scaled, splat(b[c].scales[part]), sums[c]);
        if constexpr (Format::kAdds) {
          const float sum = kGroups == 2 ? b[c].half_sums[2 * part + g] : b[c].sums[part];
          sums[c] = multiply_add(adds[g], splat(sum), sums[c]);
        }
      }
    }
  }

  template <int C>
  static void run(const DotArgs& args, const std::byte* unit, int64_t column, F32 (&sums)[C]) {
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k);
    const int64_t parts = args.k / 32;
    int64_t first = 0;
    for (; first + Layout::kParts <= parts; first += Layout::kParts, unit += Layout::kBytes) {
      const PackedReader<Format> reader(unit);
      SHOAL_UNROLL
      for (int i = 0; i < Layout::kParts; ++i) {
        if (i % 2 == 0) {
          // A few cache lines are prefetched before every second part. If a whole large unit were prefetched at once,
          // later loads would wait.
          constexpr size_t kLines = (Layout::kBytes + 32 * Layout::kParts - 1) / (32 * Layout::kParts);
          prefetch(unit + i / 2 * kLines * 64, kLines * 64, kAhead);
          keep_order();
        }
        part<C>(reader, i, first + i, b, sums);
      }
    }
    if constexpr (Layout::kBlocks > 1) {
      for (int i = 0; first + i < parts; ++i) part<C>(PackedReader<Format>(unit), i, first + i, b, sums);
    }
  }
};

}  // namespace

template <class Format>
void packed_dot(const DotArgs& args) {
  dot_groups<Quantized<Format>>(args);
}

#define SHOAL_QUANTIZED(id, ...) template void packed_dot<id>(const DotArgs&);
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
template void packed_dot<NVFP4>(const DotArgs&);

}  // namespace shoal::cpu::SHOAL_ISA

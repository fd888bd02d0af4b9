// Multiplies packed groups of f16 or bf16 rows by a few columns of words. Weights are converted to words in registers.
// Each element of the result has the same operations as in panel_words.cpp, so both files give the same bits.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/packed_groups.h"
#include "devices/cpu/kernels/packed_rows.h"
#include "devices/cpu/kernels/words.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Rows>
struct Words {
  /// Multiplies part `part` of the group. pair(i) returns words 2 i and 2 i + 1 of the part.
  template <int C, class Pair>
  static void add_part(F32 scales, const WordColumn (&b)[C], int64_t part, F32 (&sums)[C], Pair pair) {
    I32 products[C] = {};
    SHOAL_UNROLL
    for (int i = 0; i < 16; ++i) {
      const Bytes weights = pair(i);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        products[c] = pair_dot(products[c], weights, splat_quad(b[c].values + 32 * part + 2 * i));
        compute_now(products[c]);
      }
    }
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      sums[c] = multiply_add(to_float(products[c]) * scales, splat(b[c].scales[part]), sums[c]);
    }
  }

  template <int C>
  static void run(const DotArgs& args, const std::byte* group, int64_t column, F32 (&sums)[C]) {
    using Packed = PackedRows<Rows>;
    WordColumn b[C];
    for (int c = 0; c < C; ++c) b[c] = word_column_at(args.b[column + c], args.k);
    int64_t i = 0;
    for (; i + 32 <= args.k; i += 32) {
      const auto* a = Packed::element(group, i);
      prefetch(a, 32 * Packed::kVectorBytes, kAhead);
      const WordScales scales = Packed::scales(group, i);
      add_part<C>(scales.scales, b, i / 32, sums, [&](int pair) {
        const auto* at = a + 2 * pair * kLanes;
        return word_pair(Rows::load(at), Rows::load(at + kLanes), scales.inverse);
      });
    }
    if (i == args.k) return;
    F32 rest[32] = {};
    for (int64_t j = i; j < args.k; ++j) rest[j - i] = Packed::load(group, j);
    const WordScales scales = Packed::scales(group, i);
    add_part<C>(scales.scales, b, i / 32, sums,
                [&](int pair) { return word_pair(rest[2 * pair], rest[2 * pair + 1], scales.inverse); });
  }
};

}  // namespace

template <class Rows>
void packed_dot_rows(const DotArgs& args) {
  dot_groups<Words<Rows>>(args);
  add_packed_outliers<Rows>(args);
}

template void packed_dot_rows<RowsF16>(const DotArgs&);
template void packed_dot_rows<RowsBF16>(const DotArgs&);

}  // namespace shoal::cpu::SHOAL_ISA

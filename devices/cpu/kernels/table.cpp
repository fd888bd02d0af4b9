// The table of the kernels of one instruction-set level. Arrays of kernels are in the order of the dtypes. The table is
// initialised at compile time, so that no code of a level runs before the level is chosen.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/conv_panels.h"
#include "devices/cpu/kernels/rows.h"
#include "devices/cpu/kernels/states.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Format>
constexpr WeightKernels of_format() {
  WeightKernels kernels{
      Columns::kBytes,
      dot<Format>,
      1,
      {},
      {panel_bytes<Format::kGroups, Format::kAdds>, panel_from_rows<Format>, nullptr, multiply<Format>},
      to_f32<Format>};
  if constexpr (kIsPackable<Format>) {
    kernels.packed = {packed_bytes<Format>, pack<Format>, unpack<Format>, packed_dot<Format>, kDotColumns};
    kernels.panels.from_packed = panel_from_packed<Format>;
  }
  return kernels;
}

template <class Rows>
constexpr PackedKernels of_packed_rows() {
  return {packed_row_bytes<Rows>, pack_rows<Rows>, unpack_row<Rows>};
}
constexpr WeightKernels of_floats() {
  WeightKernels kernels{Columns::kFloats, nullptr, 0, of_packed_rows<RowsF32>(), {}, rows_to_f32<RowsF32>};
  kernels.panels = {float_panel_bytes, float_panel_from_rows, float_panel_from_packed, multiply_floats};
  kernels.panels.is_packed = true;
  return kernels;
}
template <class Rows>
constexpr WeightKernels of_halves() {
  WeightKernels kernels{Columns::kWords, nullptr, 0, of_packed_rows<Rows>(), {}, rows_to_f32<Rows>};
  kernels.packed.dot = packed_dot_rows<Rows>;
  kernels.packed.dot_columns = kDotColumns;
  kernels.panels = {word_panel_bytes, word_panel_from_rows<Rows>, word_panel_from_packed<Rows>,
                    multiply_words,   add_outliers<Rows>,         add_packed_outliers<Rows>};
  return kernels;
}

}  // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels{
    kLanes,
    {{float_column_bytes, copy_floats}, {column_bytes, quantize}, {word_column_bytes, quantize_words}},
    {exp_sum, largest},
    kAttentionKernels,
    {
        kUnaryKernels,
        kGluKernels,
        kBinaryKernels,
        {kCompareFloats, kCompareIntegers},
        select_halves,
        select_words,
        scale_row,
        clamp_row,
        sum_row,
        sum_squares,
        normalize,
        logits,
        turn,
        rotate_neighbours,
        rotate_halves,
        {nullptr, to_f16, to_bf16, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, to_q8_0},
        {sum_arrays<RowsF32>, sum_arrays<RowsF16>, sum_arrays<RowsBF16>},
    },
    {{pool_largest, pool_sum}, {larger_of, total_of}, gather, interpolate, mix},
    causal_conv,
    conv_panels,
    conv_rows,
    gated_delta,
    {
        of_floats(), of_halves<RowsF16>(), of_halves<RowsBF16>(), {}, {},  // i32, i64
#define SHOAL_QUANTIZED(id, ...) of_format<id>(),
#include "graph/dtypes.def"
    },
};
static_assert(static_cast<int>(DType::kI32) == 3 && static_cast<int>(DType::kQ4_0) == 5 &&
                  static_cast<int>(DType::kQ8_0) == 9,
              "the entries are in the order of the enumeration");

}  // namespace shoal::cpu::SHOAL_ISA

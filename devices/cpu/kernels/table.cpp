// The kernels of one level, in the order of the dtypes. Constant-initialised: no code of a level runs before it is
// chosen.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Format>
constexpr WeightKernels of_format() {
  return {true,
          dot<Format>,
          pack<Format>,
          multiply<Format::kGroups, Format::kAdds>,
          panel_bytes<Format::kGroups, Format::kAdds>,
          to_f32<Format>};
}

template <class Rows>
constexpr WeightKernels of_rows() {
  return {false, dot_rows<Rows>, pack_rows<Rows>, multiply_floats, float_panel_bytes, rows_to_f32<Rows>};
}

}  // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels{
    kLanes,
    column_bytes,
    quantize,
    {dot_product, axpy, weighted_sum, exp_sum, largest},
    kAttentionKernels,
    {
        of_rows<RowsF32>(),
        of_rows<RowsF16>(),
        of_rows<RowsBF16>(),
        {},
        {},  // i32, i64
        of_format<Q4_0>(),
        of_format<Q4_1>(),
        of_format<Q5_0>(),
        of_format<Q5_1>(),
        of_format<Q8_0>(),
        of_format<Q2_K>(),
        of_format<Q3_K>(),
        of_format<Q4_K>(),
        of_format<Q5_K>(),
        of_format<Q6_K>(),
    },
};
static_assert(static_cast<int>(DType::kI32) == 3 && static_cast<int>(DType::kQ4_0) == 5 &&
                  static_cast<int>(DType::kQ2_K) == 10 && kDTypeCount == 15,
              "the entries are in the order of the enumeration");

}  // namespace shoal::cpu::SHOAL_ISA

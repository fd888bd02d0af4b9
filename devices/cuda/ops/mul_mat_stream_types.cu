// The kernels of mul_mat_stream.h for matrices of one type.
#include "devices/cuda/ops/mul_mat_stream_experts.h"

namespace shoal::cuda {
namespace {

/// Stores the results of `rows` rows of a block. The rows begin at row `row` of each matrix. If the slots have weights,
/// this function stores the weighted sum of the slots. Otherwise, this function stores one result per slot.
__device__ __forceinline__ void store_slots(const ExpertStream& s, const StreamSlots& slots, const float* results,
                                            int first, int rows, int64_t row) {
  const auto sum_of = [&](int place, int i) { return row_result(s, results, place * s.part.block_rows + first + i); };
  const int outputs = s.weights ? 1 : s.slots;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < rows * outputs; at += kStreamThreads) {
    const int slot = at / rows, i = at - slot * rows;
    const int begin = s.weights ? 0 : slots.place[slot], end = s.weights ? slots.count : begin + 1;
    float total = 0;
#pragma unroll 1
    for (int place = begin; place >= 0 && place < end; ++place) {
      float sum = sum_of(place << s.gated, i);
      if (s.gated) sum = activate_gate(s.glu, sum) * sum_of(2 * place + 1, i);
      total = s.weights ? fmaf(slots.weight[place], sum, total) : sum;
    }
    if (s.part.addend) total += s.part.addend[row + i];
    s.part.c[slot * s.c_stride + row + i] = total;
  }
}

template <class Weights>
__device__ __forceinline__ void stream(const ExpertStream& s) {
  SHOAL_DYNAMIC_SHARED(std::byte, bytes);
  let_next_start();
  stream_slots<Weights>(
      s, bytes, [] {},
      [&](const StreamSlots& slots, const float* results, int first, int count, int64_t row) {
        store_slots(s, slots, results, first, count, row);
      });
}

template <bool kExperts>
using StreamOf = std::conditional_t<kExperts, ExpertStream, Stream>;
template <DType kType, bool kExperts>
__global__ void __launch_bounds__(kStreamThreads, 2) stream_blocks(StreamOf<kExperts> s) {
  stream<StreamedBlocks<kType>>(s);
}
template <class T, bool kExperts>
__global__ void __launch_bounds__(kStreamThreads, 2) stream_floats(StreamOf<kExperts> s) {
  stream<StreamedFloats<T>>(s);
}

template <class Weights>
constexpr StreamKernel stream_kernel(void (*kernel)(Stream), void (*of_experts)(ExpertStream)) {
  StreamKernel made;
  made.kernel = kernel;
  made.of_experts = of_experts;
  made.ring_bytes = kStreamWarps * static_cast<size_t>(StreamRing<Weights>::kBytes);
  made.step_elements = Weights::kStepElements;
  made.column_step_bytes = Weights::kColumnBytes;
  made.has_four_groups = Weights::kFourGroups;
  made.alignment = Weights::kAlignment;
  return made;
}
template <DType kType>
constexpr StreamKernel stream_blocks_kernel() {
  return stream_kernel<StreamedBlocks<kType>>(stream_blocks<kType, false>, stream_blocks<kType, true>);
}
template <class T>
constexpr StreamKernel stream_floats_kernel() {
  return stream_kernel<StreamedFloats<T>>(stream_floats<T, false>, stream_floats<T, true>);
}

}  // namespace

const StreamKernel kStreamF32 = stream_floats_kernel<float>();
const StreamKernel kStreamF16 = stream_floats_kernel<__half>();
const StreamKernel kStreamBF16 = stream_floats_kernel<__nv_bfloat16>();
#define SHOAL_QUANTIZED(id, ...) const StreamKernel kStream##id = stream_blocks_kernel<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda

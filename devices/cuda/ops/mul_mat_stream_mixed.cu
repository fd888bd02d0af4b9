// Products of one column with matrices of different types in one launch. Coded types are not supported, because they
// need too many registers.
#include "devices/cuda/ops/mul_mat_stream_kernel.h"

namespace shoal::cuda {
namespace {

template <DType kType>
using OneUnit = StreamedBlocks<kType, 1>;  // for the widest type, a second unit per lane would not fit in registers

template <class Weights>
constexpr size_t ring_of(size_t most) {
  return std::max(most, kStreamWarps * static_cast<size_t>(StreamRing<Weights>::kBytes));
}
constexpr size_t widest_ring() {
  size_t most = 0;
#define SHOAL_QUANTIZED(id, ...) most = ring_of<OneUnit<DType::k##id>>(most);
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
  return ring_of<StreamedFloats<float>>(most);
}

__global__ void __launch_bounds__(kStreamThreads, 2) stream_mixed(Stream s) {
  SHOAL_DYNAMIC_SHARED(std::byte, bytes);
  let_next_start();
  const StreamMemory memory(bytes, widest_ring());
  const StreamPart& part = part_of_block(s);
  switch (part.dtype) {
#define SHOAL_QUANTIZED(id, ...)                         \
  case DType::k##id:                                     \
    stream_part<OneUnit<DType::k##id>>(s, part, memory); \
    break;
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
    case DType::kF16:
      stream_part<StreamedFloats<__half>>(s, part, memory);
      break;
    case DType::kBF16:
      stream_part<StreamedFloats<__nv_bfloat16>>(s, part, memory);
      break;
    default:
      stream_part<StreamedFloats<float>>(s, part, memory);
      break;
  }
}

}  // namespace

const StreamKernel kStreamMixed{stream_mixed, nullptr, widest_ring(), kStepElements};

}  // namespace shoal::cuda

// The coded types to f32.
#include "graph/dtype.h"
#include "graph/quants/codes.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

template <class Block>
void decode(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const Block*>(src);
  for (int64_t b = 0; b < n / Block::kElements; ++b, dst += Block::kElements) {
    for (int i = 0; i < Block::kElements; i += 8) {
      const CodeScale of_group = CodesOf<Block>::scale(BlockBytes(blocks + b), i / Block::kGroup);
      const float scale =
          f16_to_f32(static_cast<uint16_t>(of_group.half)) * (static_cast<float>(of_group.factor) * Block::kUnit);
      const Codes codes = CodesOf<Block>::codes(BlockBytes(blocks + b), i);
      for (int j = 0; j < 8; ++j) dst[i + j] = scale * static_cast<float>(code_at(codes, j));
    }
  }
}

}  // namespace

#define SHOAL_QUANTIZED_CODED(id, name, ...)                   \
  void name##_to_f32(const void* src, float* dst, int64_t n) { \
    decode<Block##id>(src, dst, n);                            \
  }
#include "graph/dtypes.def"

}  // namespace shoal::quants

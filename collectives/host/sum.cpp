#include "collectives/host/sum.h"

#include <algorithm>
#include <cstring>

namespace shoal::collectives::host {
namespace {

/// Sums are made block by block, so that what is added up stays in the L1 cache.
constexpr int64_t kBlockElements = 1024;
struct alignas(64) Block {
  std::byte bytes[kBlockElements * sizeof(float)];
};

/// Adds arrays whose elements are added as they are.
template <class T>
void sum_plain(std::span<const std::byte* const> sources, int64_t offset, int64_t count, Block& result) {
  T* __restrict total = reinterpret_cast<T*>(result.bytes);
  std::memcpy(total, sources[0] + offset * sizeof(T), count * sizeof(T));
  for (const std::byte* source : sources.subspan(1)) {
    const T* __restrict addend = reinterpret_cast<const T*>(source) + offset;
    for (int64_t i = 0; i < count; ++i) total[i] += addend[i];
  }
}

void sum_through_f32(DType dtype, std::span<const std::byte* const> sources, int64_t offset, int64_t count,
                     Block& result) {
  alignas(64) float total[kBlockElements];
  alignas(64) float addend[kBlockElements];
  const DTypeTraits& type = traits(dtype);
  const size_t byte_offset = offset * type.block_bytes;
  type.to_f32(sources[0] + byte_offset, total, count);
  for (const std::byte* source : sources.subspan(1)) {
    type.to_f32(source + byte_offset, addend, count);
    for (int64_t i = 0; i < count; ++i) total[i] += addend[i];
  }
  type.from_f32(total, result.bytes, count);
}

void sum_block(DType dtype, std::span<const std::byte* const> sources, int64_t offset, int64_t count, Block& result) {
  if (dtype == DType::kF32) return sum_plain<float>(sources, offset, count, result);
  // Unsigned, because the overflow of a signed sum is undefined.
  if (dtype == DType::kI32) return sum_plain<uint32_t>(sources, offset, count, result);
  sum_through_f32(dtype, sources, offset, count, result);
}

}  // namespace

void sum(DType dtype, std::span<const std::byte* const> sources, int64_t first, int64_t count,
         std::span<std::byte* const> outs, int64_t out_first) {
  const size_t element = traits(dtype).block_bytes;
  Block block;
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const int64_t now = std::min(kBlockElements, count - done);
    sum_block(dtype, sources, first + done, now, block);
    for (std::byte* out : outs) std::memcpy(out + (out_first + done) * element, block.bytes, now * element);
  }
}

}  // namespace shoal::collectives::host

#include "collectives/host/sum.h"

#include <algorithm>

#include "collectives/host/rendezvous.h"
#include "devices/cpu/isa.h"

namespace shoal::collectives::host {
namespace {

/// The sums are unsigned, because overflow of a signed sum is undefined. The loop reads an element from all sources
/// before it writes the element to any output. An output may therefore be the same array as a source.
void sum_integers(const cpu::SumArgs& args) {
  for (int64_t i = 0; i < args.n; ++i) {
    uint32_t total = 0;
    for (int64_t source = 0; source < args.source_count; ++source) {
      total += reinterpret_cast<const uint32_t*>(args.sources[source])[args.first + i];
    }
    for (int64_t out = 0; out < args.out_count; ++out) {
      reinterpret_cast<uint32_t*>(args.outs[out])[args.out_first + i] = total;
    }
  }
}

}  // namespace

void sum(DType dtype, std::span<const std::byte* const> sources, int64_t first, int64_t count,
         std::span<std::byte* const> outs, int64_t out_first) {
  const cpu::SumArgs args{.sources = sources.data(),
                          .source_count = static_cast<int64_t>(sources.size()),
                          .first = first,
                          .outs = outs.data(),
                          .out_count = static_cast<int64_t>(outs.size()),
                          .out_first = out_first,
                          .n = count};
  if (dtype == DType::kI32) return sum_integers(args);
  cpu::kernels().rows.sum_arrays[static_cast<size_t>(dtype)](args);
}

int64_t chunk_begin(DType dtype, int64_t count, int part, int parts) {
  const auto per_line = static_cast<int64_t>(kCacheLine / bytes_for(dtype, 1));
  const int64_t lines = (count + per_line - 1) / per_line;
  return std::min(lines * part / parts * per_line, count);
}

}  // namespace shoal::collectives::host

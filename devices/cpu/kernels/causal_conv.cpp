// Computes the weighted sum of a few inputs for each channel.
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/states.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Load>
inline F32 sum_of(const ConvArgs& args, int64_t i, Load load_at) {
  F32 sum = {};
  for (int64_t j = 0; j < args.taps; ++j) {
    if (args.inputs[j] == nullptr) continue;
    sum = multiply_add(load_at(args.weights + j * args.stride + i), load_at(args.inputs[j] + i), sum);
  }
  return sum;
}

}  // namespace

void causal_conv(const ConvArgs& args) {
  int64_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) {
    store(args.to + i, sum_of(args, i, [](const float* from) { return load<F32>(from); }));
  }
  const int64_t rest = args.n - i;
  if (rest > 0)
    store_part(args.to + i, sum_of(args, i, [=](const float* from) { return load_part(from, rest); }), rest);
}

}  // namespace shoal::cpu::SHOAL_ISA

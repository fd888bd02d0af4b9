// The table of CUDA kernels, in the order of the enumeration. Leaves and views have nothing to run, collectives
// belong to a communicator: they have no kernel.
#include <array>

#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

constexpr OpKernel kNotSupported{};

struct Entry {
  Op op;
  const OpKernel* kernel;
};

constexpr std::array kTable = std::to_array<Entry>({
    {Op::kNone, &kNotSupported},
    {Op::kGetRows, &kGetRowsKernel},
    {Op::kSetRows, &kSetRowsKernel},
    {Op::kMulMat, &kMulMatKernel},
    {Op::kMulMatId, &kMulMatIdKernel},
    {Op::kAdd, &kAddKernel},
    {Op::kSub, &kSubKernel},
    {Op::kMul, &kMulKernel},
    {Op::kDiv, &kDivKernel},
    {Op::kScale, &kScaleKernel},
    {Op::kUnary, &kUnaryKernel},
    {Op::kClamp, &kClampKernel},
    {Op::kGlu, &kGluKernel},
    {Op::kRmsNorm, &kRmsNormKernel},
    {Op::kLayerNorm, &kLayerNormKernel},
    {Op::kSoftMax, &kSoftMaxKernel},
    {Op::kRope, &kRopeKernel},
    {Op::kSumRows, &kSumRowsKernel},
    {Op::kArgmax, &kArgmaxKernel},
    {Op::kTopK, &kTopKKernel},
    {Op::kArgsort, &kArgsortKernel},
    {Op::kAttention, &kAttentionKernel},
    {Op::kCast, &kCastKernel},
    {Op::kContiguous, &kContiguousKernel},
    {Op::kConcat, &kConcatKernel},
    {Op::kRepeat, &kRepeatKernel},
    {Op::kFill, &kFillKernel},
    {Op::kReshape, &kNotSupported},
    {Op::kSlice, &kNotSupported},
    {Op::kPermute, &kNotSupported},
    {Op::kAllReduce, &kNotSupported},
    {Op::kAllGather, &kNotSupported},
    {Op::kReduceScatter, &kNotSupported},
    {Op::kAllToAll, &kNotSupported},
    {Op::kBroadcast, &kNotSupported},
});

constexpr bool in_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].op) != i) return false;
  }
  return true;
}
static_assert(kTable.size() == kOpCount && in_order(), "one entry per op, in the order of the enumeration");

}  // namespace

const OpKernel& kernel_for(Op op) {
  return *kTable[static_cast<size_t>(op)].kernel;
}

}  // namespace shoal::cuda

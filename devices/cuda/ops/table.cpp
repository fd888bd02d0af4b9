// The table of CUDA kernels, generated from the list of ops. Leaves and views need no kernel, because they need no
// work. Collectives need no kernel, because communicators run them.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

constexpr OpKernel kNotSupported{};

constexpr const OpKernel* kTable[] = {
#define SHOAL_OP(id, ...) &k##id##Kernel,
#define SHOAL_OP_WITHOUT_KERNEL(...) &kNotSupported,
#include "graph/ops.def"
};

}  // namespace

const OpKernel& kernel_for(Op op) {
  return *kTable[static_cast<size_t>(op)];
}

}  // namespace shoal::cuda

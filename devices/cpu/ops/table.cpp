// The table of CPU kernels, generated from the list of ops. Leaves and views have no kernel, because nothing runs for
// them. Collectives have no kernel, because a communicator runs them.
#include "devices/cpu/ops/ops.h"

namespace shoal::cpu {
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

}  // namespace shoal::cpu

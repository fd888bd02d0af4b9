// external: calls the CUDA launcher of a registered op (graph/external_op.h). The program contains the registry, so the
// plug-in and the program see the same ops.
#include "devices/cuda/ops/ops.h"
#include "graph/external_op.h"

namespace shoal::cuda {
namespace {

constexpr std::string_view kFamily = "CUDA";

void run(const LaunchContext& context, Tensor& node) {
  const ExternalCall call(node);
  const shoal_op_launch launch{sizeof(shoal_op_launch), 0, 1, node.workspace, context.stream};
  op_of(node).kernel(kFamily)->functions.run(call.node(), &launch);
}

bool supports(const Tensor& node) {
  return kernel_of(node, kFamily) != nullptr;
}

size_t workspace(const Tensor& node, const GpuTraits&) {
  const ExternalKernel* kernel = op_of(node).kernel(kFamily);
  if (kernel == nullptr || kernel->functions.workspace == nullptr) return 0;
  return kernel->functions.workspace(ExternalCall(node).node(), 1);
}

}  // namespace

const OpKernel kExternalKernel{run, supports, workspace};

}  // namespace shoal::cuda

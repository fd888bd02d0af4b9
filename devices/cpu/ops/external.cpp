// The op external: calls the CPU kernel of a registered op (graph/external_op.h).
#include "graph/external_op.h"

#include "devices/cpu/ops/ops.h"

namespace shoal::cpu {
namespace {

constexpr std::string_view kFamily = "CPU";

void run(const TeamContext& ctx, Tensor& node) {
  const ExternalCall call(node);
  const shoal_op_launch launch{sizeof(shoal_op_launch), ctx.part, ctx.parts, ctx.workspace, nullptr};
  op_of(node).kernel(kFamily)->functions.run(call.node(), &launch);
}

bool supports(const Tensor& node) {
  return kernel_of(node, kFamily) != nullptr;
}

size_t workspace(const Tensor& node, int parts) {
  const ExternalKernel* kernel = op_of(node).kernel(kFamily);
  if (kernel == nullptr || kernel->functions.workspace == nullptr) return 0;
  return kernel->functions.workspace(ExternalCall(node).node(), parts);
}

/// A kernel reads each source at least once.
int64_t work(const Tensor& node) {
  int64_t elements = node.elements();
  for (const Tensor* source : node.src) elements += source->elements();
  return elements;
}

}  // namespace

const OpKernel kExternalKernel{run, supports, workspace, work};

}  // namespace shoal::cpu

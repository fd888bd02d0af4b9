// Registry of external ops: ops that a program or a plug-in adds at run time, with C functions (graph/external_op_c.h).
// A node of an external op has the op kExternal and ExternalParams. In all other respects such a node is an ordinary
// node: in text, memory plans, schedules, plans of meta devices and predictions.
//
//   register_op(gain);                                                       // a shoal_op
//   Tensor* y = external(graph, "gain", {x, weights}, "0.5");                // graph/ops/ops.h
//   %y = external(%x, %w) {op="gain", args="0.5"}                            // the same node as text
//   check_op("gain", {{"input %x f32 [6, 4]\n..."}});                        // meta/check/check_op.h
//
// register_op() copies the shoal_op and its texts. The functions must exist until the op is unregistered. An op with a
// node in an existing graph cannot be unregistered. Entries are never freed, so find_op() needs no lock. All functions
// are thread-safe.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/external_op_c.h"
#include "graph/tensor.h"

namespace shoal {

struct ExternalKernel {
  std::string family;
  shoal_op_kernel functions;  ///< `family` of this member is not used
};

struct ExternalOp {
  std::string name;
  std::optional<std::string> rule;
  std::string owner;   ///< the plug-in that registered the op; "" for the program
  shoal_op functions;  ///< `name`, `rule` and `kernels` of this member are not used
  std::vector<ExternalKernel> kernels;

  /// The kernel for a family of devices; nullptr if there is none. The case of the name does not matter.
  const ExternalKernel* kernel(std::string_view family) const;
};

/// Throws InvalidArgument if the name is taken or invalid, a function is missing, or the sizes are unknown. A rule is
/// parsed when it is first used, because its letters need a node.
void register_op(const shoal_op& op, std::string_view owner = {});
/// Registers all ops of a plug-in, or none if one of them is invalid.
void register_ops(const shoal_ops& ops);
/// Throws InvalidArgument if there is no such op, or if an existing graph has a node of the op.
void unregister_op(std::string_view name);
/// Unregisters all ops of a plug-in. Throws InvalidArgument, without a change, if an existing graph uses one of them.
void unregister_ops(std::string_view owner);
/// nullptr if no op has this name.
const ExternalOp* find_op(std::string_view name);
/// The op of a node with Op::kExternal.
const ExternalOp& op_of(const Tensor& node);
/// The names of all registered ops, in order of registration.
std::vector<std::string> registered_ops();

/// The kernel of a kExternal node for a family; nullptr if there is none, or if it does not support the node.
const ExternalKernel* kernel_of(const Tensor& node, std::string_view family);
/// Remedy for messages about a node that devices of the family cannot run: "op 'gain' has no kernel for CUDA, only for
/// CPU: ...".
std::string external_remedy(const Tensor& node, std::string_view family);
/// The rule of a kExternal node as text; nullopt if the node has no rule.
std::optional<std::string> external_rule(const Tensor& node);

/// Graph::add_node calls this function, so that the op stays registered while the graph exists.
void note_use(const Tensor& node, const std::shared_ptr<const void>& graph_life);

/// A node in the form that C functions read. The object must outlive the call of the function. Nothing is allocated.
class ExternalCall {
 public:
  /// With `has_result` false, shoal_op_node::result is NULL.
  explicit ExternalCall(const Tensor& node, bool has_result = true);
  ExternalCall(const ExternalCall&) = delete;
  ExternalCall& operator=(const ExternalCall&) = delete;
  const shoal_op_node* node() const { return &node_; }

 private:
  std::array<shoal_op_tensor, SHOAL_OP_MAX_SOURCES> sources_;
  shoal_op_tensor result_;
  shoal_op_node node_;
};

}  // namespace shoal

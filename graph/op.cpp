// The op table: the lines of graph/ops.def as rows.
#include "graph/op.h"

#include "graph/ops/infer.h"
#include "graph/tensor.h"

namespace shoal {
namespace {

constexpr int kAnyNumber = -1;
// Bit masks of the sources that the result may overwrite.
constexpr uint32_t kNever = 0;
constexpr uint32_t kOwnPart = 0;  // all_gather is never in place, because a node cannot be a part of another node
constexpr uint32_t kFirst = 0b01;
constexpr uint32_t kEither = 0b11;

const OpInfo kOps[] = {
#define SHOAL_OP(id, name, kind, min_src, max_src, alias, in_place, params, function) \
  {Op::k##id, #name, OpKind::kind, min_src, max_src, Alias::alias, in_place, params{}, infer::function},
#include "graph/ops.def"
};

}  // namespace

const OpInfo& info(Op op) {
  if (op >= Op::kCount) fail<InvalidArgument>("there is no op number {}", static_cast<int>(op));
  return kOps[static_cast<size_t>(op)];
}

std::optional<Op> op_from_name(std::string_view name) {
  for (const OpInfo& row : kOps) {
    if (row.name == name && row.op != Op::kNone) return row.op;
  }
  return std::nullopt;
}

}  // namespace shoal

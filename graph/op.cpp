// The op table: one row for each enumerator, in the order of the enumeration.
#include "graph/op.h"

#include <iterator>

#include "graph/ops/infer.h"
#include "graph/tensor.h"

namespace shoal {
namespace {

constexpr std::monostate kNoParams;
constexpr auto kCompute = OpKind::kCompute;
constexpr auto kViewOp = OpKind::kView;
constexpr auto kCollective = OpKind::kCollective;
constexpr int kAnyNumber = -1;
// Sources that the result may overwrite.
constexpr uint32_t kNever = 0;
constexpr uint32_t kFirst = 0b01;
constexpr uint32_t kEither = 0b11;

const OpInfo kOps[] = {
    // op, name, kind, sources from .. to, alias, in place of, parameters, inference
    {Op::kNone, "none", OpKind::kLeaf, 0, 0, Alias::kNone, kNever, kNoParams, infer::leaf},

    {Op::kGetRows, "get_rows", kCompute, 2, 2, Alias::kNone, kNever, SelectParams{}, infer::get_rows},
    {Op::kSetRows, "set_rows", kCompute, 3, 3, Alias::kWrites, kNever, SelectParams{}, infer::set_rows},

    {Op::kMulMat, "mul_mat", kCompute, 2, 2, Alias::kNone, kNever, kNoParams, infer::mul_mat},
    {Op::kMulMatId, "mul_mat_id", kCompute, 3, 3, Alias::kNone, kNever, SelectParams{}, infer::mul_mat_id},

    {Op::kAdd, "add", kCompute, 2, 2, Alias::kNone, kEither, kNoParams, infer::binary},
    {Op::kSub, "sub", kCompute, 2, 2, Alias::kNone, kEither, kNoParams, infer::binary},
    {Op::kMul, "mul", kCompute, 2, 2, Alias::kNone, kEither, kNoParams, infer::binary},
    {Op::kDiv, "div", kCompute, 2, 2, Alias::kNone, kEither, kNoParams, infer::binary},
    {Op::kScale, "scale", kCompute, 1, 1, Alias::kNone, kFirst, ScaleParams{}, infer::scale},
    {Op::kUnary, "unary", kCompute, 1, 1, Alias::kNone, kFirst, UnaryParams{}, infer::unary},
    {Op::kClamp, "clamp", kCompute, 1, 1, Alias::kNone, kFirst, ClampParams{}, infer::clamp},
    {Op::kGlu, "glu", kCompute, 1, 2, Alias::kNone, kEither, GluParams{}, infer::glu},

    {Op::kRmsNorm, "rms_norm", kCompute, 1, 1, Alias::kNone, kFirst, NormParams{}, infer::norm},
    {Op::kLayerNorm, "layer_norm", kCompute, 1, 1, Alias::kNone, kFirst, NormParams{}, infer::norm},
    {Op::kSoftMax, "soft_max", kCompute, 1, 3, Alias::kNone, kFirst, SoftMaxParams{}, infer::soft_max},
    {Op::kRope, "rope", kCompute, 2, 3, Alias::kNone, kFirst, RopeParams{}, infer::rope},
    {Op::kSumRows, "sum_rows", kCompute, 1, 1, Alias::kNone, kNever, kNoParams, infer::sum_rows},
    {Op::kArgmax, "argmax", kCompute, 1, 1, Alias::kNone, kNever, kNoParams, infer::argmax},
    {Op::kTopK, "top_k", kCompute, 1, 1, Alias::kNone, kNever, TopKParams{}, infer::top_k},
    {Op::kArgsort, "argsort", kCompute, 1, 1, Alias::kNone, kNever, ArgsortParams{}, infer::argsort},
    {Op::kAttention, "attention", kCompute, 3, 6, Alias::kNone, kNever, AttentionParams{}, infer::attention},

    {Op::kCast, "cast", kCompute, 1, 1, Alias::kNone, kNever, CastParams{}, infer::cast},
    {Op::kContiguous, "contiguous", kCompute, 1, 1, Alias::kNone, kNever, kNoParams, infer::contiguous},
    {Op::kConcat, "concat", kCompute, 1, kAnyNumber, Alias::kNone, kNever, ConcatParams{}, infer::concat},
    {Op::kRepeat, "repeat", kCompute, 1, 1, Alias::kNone, kNever, RepeatParams{}, infer::repeat},
    {Op::kFill, "fill", kCompute, 0, 0, Alias::kNone, kNever, FillParams{}, infer::fill},

    {Op::kReshape, "reshape", kViewOp, 1, 1, Alias::kView, kNever, ReshapeParams{}, infer::reshape},
    {Op::kSlice, "slice", kViewOp, 1, 1, Alias::kView, kNever, SliceParams{}, infer::slice},
    {Op::kPermute, "permute", kViewOp, 1, 1, Alias::kView, kNever, PermuteParams{}, infer::permute},

    {Op::kAllReduce, "all_reduce", kCollective, 1, 1, Alias::kNone, kFirst, CollectiveParams{}, infer::all_reduce},
    {Op::kAllGather, "all_gather", kCollective, 1, 1, Alias::kNone, kNever, CollectiveParams{}, infer::all_gather},
    {Op::kReduceScatter, "reduce_scatter", kCollective, 1, 1, Alias::kNone, kNever, CollectiveParams{},
     infer::reduce_scatter},
    {Op::kAllToAll, "all_to_all", kCollective, 1, 1, Alias::kNone, kNever, CollectiveParams{}, infer::all_to_all},
    {Op::kBroadcast, "broadcast", kCollective, 1, 1, Alias::kNone, kFirst, CollectiveParams{}, infer::broadcast},
};
static_assert(std::size(kOps) == kOpCount, "one row for each op");

}  // namespace

const OpInfo& info(Op op) {
  return kOps[static_cast<size_t>(op)];
}

std::optional<Op> op_from_name(std::string_view name) {
  for (const OpInfo& row : kOps) {
    if (row.name == name && row.op != Op::kNone) return row.op;
  }
  return std::nullopt;
}

}  // namespace shoal

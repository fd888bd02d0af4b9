#include "devices/cuda/fusion.h"

#include <algorithm>
#include <array>
#include <vector>

#include "devices/cuda/ops/fused.h"
#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {
namespace {

using Nodes = std::span<Tensor* const>;

void run_node(const LaunchContext& context, Nodes nodes) {
  kernel_for(nodes[0]->op).run(context, *nodes[0]);
}

/// Whether `result` and `source` are disjoint, or have the same address and shape. Identical memory is safe if the
/// kernel reads each element before it writes that element.
bool is_apart_or_in_place(const Tensor& result, const Tensor& source) {
  return !overlap(result, source) || (result.data == source.data && same_shape(result, source));
}

/// An rms_norm node and the node that multiplies the norm by the weight.
struct ScaledNorm {
  const Tensor& norm;
  const Tensor& product;
  const Tensor& weight;
};
ScaledNorm scaled_norm(const Tensor& norm, const Tensor& product) {
  return {norm, product, product.src[0] == &norm ? *product.src[1] : *product.src[0]};
}
bool is_scaled_norm(const Tensor& norm, const Tensor& product, const Readers& readers) {
  if (norm.op != Op::kRmsNorm || norm.dtype != DType::kF32 || product.op != Op::kMul) return false;
  if (!readers.is_read_once(norm)) return false;
  return (product.src[0] == &norm) != (product.src[1] == &norm);
}
float eps_of(const Tensor& norm) {
  return std::get<NormParams>(norm.params).eps;
}

bool fits_norm(Nodes nodes, const Readers& readers) {
  if (!is_scaled_norm(*nodes[0], *nodes[1], readers)) return false;
  const ScaledNorm found = scaled_norm(*nodes[0], *nodes[1]);
  const Tensor& x = *found.norm.src[0];
  return can_fuse_rms_norm(x, nullptr, nullptr, found.weight, found.product) &&
         is_apart_or_in_place(found.product, x) && !overlap(found.product, found.weight);
}
void run_norm(const LaunchContext& context, Nodes nodes) {
  const ScaledNorm found = scaled_norm(*nodes[0], *nodes[1]);
  launch_rms_norm_mul(context, view_of(*found.norm.src[0]), NormWeight(found.weight), view_of(found.product),
                      eps_of(found.norm));
}

bool fits_sum_and_norm(Nodes nodes, const Readers& readers) {
  const Tensor& sum = *nodes[0];
  if (sum.op != Op::kAdd || !is_scaled_norm(*nodes[1], *nodes[2], readers) || nodes[1]->src[0] != &sum) return false;
  const ScaledNorm found = scaled_norm(*nodes[1], *nodes[2]);
  const Tensor &a = *sum.src[0], &b = *sum.src[1];
  if (!can_fuse_rms_norm(a, &b, &sum, found.weight, found.product)) return false;
  if (overlap(sum, found.product) && !(sum.data == found.product.data && readers.is_read_once(sum))) return false;
  if (overlap(sum, found.weight) || overlap(found.product, found.weight)) return false;
  return is_apart_or_in_place(sum, a) && is_apart_or_in_place(sum, b) && is_apart_or_in_place(found.product, a) &&
         is_apart_or_in_place(found.product, b);
}
void run_sum_and_norm(const LaunchContext& context, Nodes nodes) {
  const Tensor& sum = *nodes[0];
  const ScaledNorm found = scaled_norm(*nodes[1], *nodes[2]);
  launch_add_rms_norm(context, view_of(*sum.src[0]), view_of(*sum.src[1]), view_of(sum), NormWeight(found.weight),
                      view_of(found.product), eps_of(found.norm));
}

// The kernel of a product reads the prepared (converted) columns of b in the workspace until the kernel has written its
// last result. So no result may overlap these columns.

bool is_product(const Tensor& node) {
  return node.op == Op::kMulMat;
}
bool is_on_workspace(const Tensor& tensor, const Tensor& product) {
  const size_t bytes = kernel_for(product.op).workspace(product, GpuTraits{});
  return tensor.data < product.workspace + bytes && product.workspace < tensor.data + tensor.span_bytes();
}
/// Whether the kernel of `product` may write `result` directly, without overwriting the kernel's inputs.
bool may_write(const Tensor& result, const Tensor& product) {
  return !overlap(result, *product.src[0]) && !overlap(result, *product.src[1]) && !is_on_workspace(result, product);
}

/// Whether the nodes are two products (gate and up) and the glu of the two products. The products are two mul_mat nodes
/// or two mul_mat_id nodes.
bool fits_gated_products(Nodes nodes, const Readers& readers) {
  const Tensor &gate = *nodes[0], &up = *nodes[1], &out = *nodes[2];
  const bool of_experts = gate.op == Op::kMulMatId;
  if (!(is_product(gate) || of_experts) || up.op != gate.op || out.op != Op::kGlu || out.src.size() < 2) return false;
  if (out.src[0] != &gate || out.src[1] != &up || !readers.is_read_once(gate) || !readers.is_read_once(up))
    return false;
  const auto supports = of_experts ? mul_mat_id_glu_supports : mul_mat_glu_supports;
  return supports(gate, up, out) && may_write(out, gate) && !overlap(out, *up.src[0]);
}
void run_gated_products(const LaunchContext& context, Nodes nodes) {
  const auto run = is_product(*nodes[0]) ? mul_mat_glu_run : mul_mat_id_glu_run;
  run(context, *nodes[0], *nodes[1], std::get<GluParams>(nodes[2]->params).kind, *nodes[2]);
}

/// `operand` is one source of the binary node. Returns the other source.
const Tensor& other_of(const Tensor& node, const Tensor& operand) {
  return node.src[0] == &operand ? *node.src[1] : *node.src[0];
}
/// Counts the leading nodes that compute a token's weighted sum of expert outputs (models/arch/experts.cpp). These
/// nodes are mul_mat_id, the multiplication by the router's weights, and two nodes that add up the experts (contiguous
/// and sum_rows). Returns 0 if the leading nodes compute something else.
size_t count_weighted_sum(Nodes nodes, const Readers& readers, const GpuTraits& gpu) {
  constexpr Op kOps[] = {Op::kMulMatId, Op::kMul, Op::kContiguous, Op::kSumRows};
  constexpr size_t kCount = std::size(kOps);
  if (nodes.size() < kCount) return 0;
  for (size_t i = 0; i < kCount; ++i) {
    if (nodes[i]->op != kOps[i] || (i + 1 < kCount && !readers.is_read_once(*nodes[i]))) return 0;
  }
  const Tensor &each = *nodes[0], &weighted = *nodes[1], &out = *nodes[3], &by_element = *nodes[2]->src[0];
  if ((weighted.src[0] == &each) == (weighted.src[1] == &each) || out.src[0] != nodes[2]) return 0;
  const bool turned = by_element.storage() == &weighted && by_element.view_offset == 0 &&
                      by_element.shape[0] == each.shape[1] && by_element.shape[1] == each.shape[0] &&
                      by_element.strides[0] == weighted.strides[1] && by_element.strides[1] == weighted.strides[0];
  const Tensor& weights = other_of(weighted, each);
  const bool fits = turned && mul_mat_id_sum_supports(each, weights, out, gpu) && may_write(out, each) &&
                    !overlap(out, *each.src[2]) && !overlap(out, weights);
  return fits ? kCount : 0;
}
void run_weighted_sum(const LaunchContext& context, Nodes nodes) {
  mul_mat_id_sum_run(context, *nodes[0], other_of(*nodes[1], *nodes[0]), *nodes[3]);
}

bool fits_product_and_sum(Nodes nodes, const Readers& readers) {
  const Tensor &product = *nodes[0], &sum = *nodes[1];
  if (!is_product(product) || sum.op != Op::kAdd || !readers.is_read_once(product)) return false;
  if ((sum.src[0] == &product) == (sum.src[1] == &product)) return false;
  const Tensor& addend = other_of(sum, product);
  return mul_mat_add_supports(product, addend, sum) && may_write(sum, product) && is_apart_or_in_place(sum, addend);
}
void run_product_and_sum(const LaunchContext& context, Nodes nodes) {
  mul_mat_add_run(context, *nodes[0], other_of(*nodes[1], *nodes[0]), *nodes[1]);
}

/// Whether the products can run together. The result of a product must not overlap a tensor that another product reads
/// or writes. No tensor may overlap the workspace that holds the prepared columns.
bool are_apart(Nodes nodes) {
  const std::vector<JoinedProduct> products = joined_products(nodes);
  const Tensor& last = *products.back().node;
  const Tensor& b = *nodes[0]->src[1];
  return std::all_of(products.begin(), products.end(), [&](const JoinedProduct& one) {
    const auto is_apart = [&](const JoinedProduct& other) {
      const bool addend = other.addend && &other != &one && overlap(*one.out, *other.addend);
      return !overlap(*one.out, *other.a) && !addend && (&one == &other || !overlap(*one.out, *other.out));
    };
    const auto on_workspace = [&](const Tensor* tensor) { return tensor && is_on_workspace(*tensor, last); };
    return !overlap(*one.out, b) && std::all_of(products.begin(), products.end(), is_apart) && !on_workspace(one.out) &&
           !on_workspace(one.a) && !on_workspace(one.addend);
  });
}

/// Counts the leading nodes that are products with the same b. Each product may be followed by the addition of an
/// addend, which is also counted. The count ends before gated products. Returns 0 if there are fewer than two products.
/// The columns of b are prepared once, in the workspace of the last product. No other tensor uses that workspace while
/// the products run.
size_t count_products(Nodes nodes, const Readers& readers, const GpuTraits& gpu) {
  std::vector<size_t> ends{0};  // ends[i]: number of nodes of the first i products
  while (ends.back() < nodes.size()) {
    const Nodes rest = nodes.subspan(ends.back());
    if (!is_product(*rest[0]) || (rest.size() > 2 && fits_gated_products(rest, readers))) break;
    const size_t end = ends.back() + (rest.size() > 1 && fits_product_and_sum(rest, readers) ? 2 : 1);
    if (!mul_mat_many_supports(nodes.first(end), gpu)) break;
    ends.push_back(end);
  }
  while (ends.size() > 2 && !are_apart(nodes.first(ends.back()))) ends.pop_back();
  return ends.size() > 2 ? ends.back() : 0;
}

size_t count_rotations(Nodes nodes, const Readers&, const GpuTraits&) {
  const size_t count = count_rope_set_rows(nodes);
  return count > 1 ? count : 0;
}

/// A sequence of nodes that can be fused.
struct Pattern {
  /// Counts the leading nodes that form this pattern. Returns 0 if the pattern does not match.
  size_t (*count)(Nodes nodes, const Readers& readers, const GpuTraits& gpu);
  void (*run)(const LaunchContext& context, Nodes nodes);
};
/// Implements Pattern::count for a pattern of exactly kCount nodes.
template <size_t kCount, auto fits>
size_t count_if(Nodes nodes, const Readers& readers, const GpuTraits&) {
  return nodes.size() >= kCount && fits(nodes, readers) ? kCount : 0;
}

/// fuse() uses the first pattern that matches. So the pattern for several products with the same b precedes the pattern
/// for one product and an addition.
constexpr auto kPatterns = std::to_array<Pattern>({
    {count_if<3, fits_sum_and_norm>, run_sum_and_norm},
    {count_if<3, fits_gated_products>, run_gated_products},
    {[](Nodes nodes, const Readers& readers, const GpuTraits&) { return count_router(nodes, readers); }, router_run},
    {count_weighted_sum, run_weighted_sum},
    {count_products, mul_mat_many_run},
    {count_if<2, fits_product_and_sum>, run_product_and_sum},
    {count_if<2, fits_norm>, run_norm},
    {count_rotations, rope_set_rows_run},
});

}  // namespace

void run_step(const LaunchContext& context, const Step& step) {
  LaunchContext own = context;
  own.writes = step.writes, own.reads = step.reads;
  step.run(own, step.nodes);
}

Step fuse(Nodes nodes, const Readers& readers, const GpuTraits& gpu) {
  if (gpu.off.fuse) return {run_node, nodes.first(1)};
  for (const Pattern& pattern : kPatterns) {
    const size_t count = pattern.count(nodes, readers, gpu);
    if (count > 0) return {pattern.run, nodes.first(count)};
  }
  return {run_node, nodes.first(1)};
}

namespace {

/// Returns the step's result if the step can write a record (column_record.h) of this result, else nullptr.
const Tensor* recordable(const Step& step) {
  const Tensor& result = *step.nodes.back();
  const bool is_norm = step.run == run_norm || step.run == run_sum_and_norm;
  const bool can = is_norm ? rms_norm_records(result) : result.op == Op::kAttention && attention_records(result);
  return can && result.elements() <= kMostRecorded ? &result : nullptr;
}
/// Whether a tensor is a single f32 column that fits in the record.
bool is_short_column(const Tensor& tensor) {
  return tensor.rows() == 1 && tensor.dtype == DType::kF32 && tensor.is_contiguous() &&
         tensor.elements() <= kMostRecorded;
}
/// Returns the forms in which the fused nodes read the record of `column`. Returns no forms if the nodes do not read
/// `column`.
ColumnForms forms_of(Nodes nodes, const Tensor& column, const GpuTraits& gpu) {
  const Tensor& first = *nodes.front();
  if (first.op != Op::kMulMat && first.op != Op::kMulMatId) return {};
  const Tensor& b = *first.src[1];
  const bool same = b.storage() == &column && b.view_offset == 0 && b.rows() == 1 && b.elements() == column.elements();
  return same ? mul_mat_forms(nodes, gpu) : ColumnForms{};
}

/// Forms in which a column's record is read. `all`: forms that at least one reader reads; `behind`: forms that the node
/// after the steps reads (Neighbours::behind).
struct Taken {
  ColumnForms all, behind;
};
/// Sets `reads` of each step that multiplies by the column, so that the step reads the column's record. The search ends
/// before the first step that could write another record, because a stream has memory for only one record. If the
/// search reaches the end of `steps`, the neighbour after the steps also counts as a reader. Returns the forms that are
/// read.
Taken take_record(const Tensor& column, std::span<Step> steps, Tensor* behind, const GpuTraits& gpu) {
  Taken taken;
  for (Step& step : steps) {
    if (recordable(step) != nullptr) return taken;
    const ColumnForms forms = forms_of(step.nodes, column, gpu);
    step.reads |= forms;
    taken.all |= forms;
  }
  if (behind != nullptr) taken.behind = forms_of({&behind, 1}, column, gpu);
  taken.all |= taken.behind;
  return taken;
}

}  // namespace

PassedForms share_records(std::span<Step> steps, const GpuTraits& gpu, const Neighbours& neighbours) {
  PassedForms passed;
  const auto take = [&](const Tensor& column, std::span<Step> behind) {
    const Taken taken = take_record(column, behind, neighbours.behind, gpu);
    passed.behind |= taken.behind.bits();
    return taken.all;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (const Tensor* column = recordable(steps[i])) steps[i].writes = take(*column, steps.subspan(i + 1));
  }
  const Tensor* const before = neighbours.before;
  if (before != nullptr && is_short_column(*before)) passed.before = take(*before, steps).bits();
  return passed;
}

}  // namespace shoal::cuda

#include "meta/plan/lower.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/text.h"
#include "meta/layout/layout.h"
#include "meta/plan/candidates.h"
#include "meta/plan/cost.h"
#include "meta/plan/joined_norm.h"
#include "meta/plan/redistribute.h"
#include "meta/plan/routed.h"
#include "meta/rules/rule_cache.h"

namespace shoal::meta {
namespace {

class Lowering {
 public:
  Lowering(const GraphRange& range, int ranks, const Propagation& propagation, const LeafLayout& inputs,
           const PlanContext& context, const PlanOptions& options, Plan& plan)
      : range_(range),
        ranks_(ranks),
        propagation_(propagation),
        context_(context),
        outside_(context.shards),
        inputs_(inputs),
        options_(options),
        rules_(*range.graph, context.rules),
        builder_(ranks, range.graph->name()),
        versions_(*range.graph),
        shown_(options.shown.begin(), options.shown.end()) {
    shards_.reserve(range.graph->inputs().size() + static_cast<size_t>(range.end - range.begin));
    for (int rank = 0; rank < ranks; ++rank) zeros_.push_back(std::make_unique<Graph>("zeros"));
    for (ConstrainedTensor& one : plan.constraints) constrained_.emplace(one.tensor, &one);
  }

  void run(Plan& plan) {
    find_later_uses();
    for (Tensor* input : range_.graph->inputs()) add_input(*input);
    auto cut = options_.cuts.begin();
    for (int i = range_.begin; i < range_.end; ++i) {
      if (cut != options_.cuts.end() && *cut == i) builder_.cut(), ++cut;
      add_node(*range_.graph->nodes()[i]);
      if (context_.results_are_whole) make_whole(*range_.graph->nodes()[i]);
    }
    for (int i = range_.begin; i < range_.end; ++i) mark_output(*range_.graph->nodes()[i]);
    plan.steps = builder_.finish();
    plan.segments = builder_.segments();
    for (int rank = 0; rank < ranks_; ++rank) plan.ranks.push_back(take_local(rank));
    plan.shards = std::move(shards_);
    join_norms(plan, context_.communicator.fused);
  }

 private:
  /// A tensor's shards in one layout. The first version has the layout that propagation chose.
  struct Version {
    Layout layout;
    Locals locals;
  };

  void add_input(const Tensor& input) {
    if (outside_(input) != nullptr) return;  // the input has shards from an earlier range
    Layout layout = inputs_(input);
    Locals locals;
    for (int rank = 0; rank < ranks_; ++rank) {
      locals.push_back(builder_.graph(rank).placeholder(input, layout.local_shape(input.shape, rank)));
    }
    remember(input, std::move(layout), std::move(locals));
  }

  void remember(const Tensor& tensor, Layout layout, Locals locals) {
    shards_.emplace(&tensor, Shards{layout, locals});
    versions_[tensor].push_back({std::move(layout), std::move(locals)});
  }

  std::vector<Version>& versions(const Tensor& tensor) {
    auto& known = versions_[tensor];
    if (!known.empty()) return known;
    const Shards* shards = outside_(tensor);
    if (shards == nullptr) {
      fail<InvalidArgument>("{} is not on the meta device; place it in a buffer of this device before planning {}",
                            describe(tensor), range_.graph->name());
    }
    require<InvalidArgument>(static_cast<int>(shards->local.size()) == ranks_, "{} has {} shards for {} ranks",
                             tensor.name, shards->local.size(), ranks_);
    known.push_back({shards->layout, shards->local});
    if (!tensor.is_persistent()) {
      for (int rank = 0; rank < ranks_; ++rank) known.back().locals[rank] = placeholder(*shards->local[rank], rank);
    }
    return known;
  }

  /// A tensor of an earlier range becomes a leaf in the local graph of this range, with the same address. Returns this
  /// leaf. A cache write is represented by its cache leaf, so that this range can write to the cache again.
  /// A view remains a view of its base. Later views can therefore cover the same elements as in the whole graph.
  Tensor* placeholder(const Tensor& made, int rank) {
    if (info(made.op).alias == Alias::kWrites) return const_cast<Tensor*>(made.storage());
    Tensor*& leaf = placeholders_[&made];
    if (leaf != nullptr) return leaf;
    leaf = builder_.graph(rank).placeholder(made, made.shape);
    leaf->strides = made.strides;
    leaf->buffer = made.buffer;
    leaf->data = made.data;
    if (!made.is_view()) return leaf;
    leaf->view_base = made.storage()->is_persistent() ? made.view_base : placeholder(*made.view_base, rank);
    leaf->view_offset = made.view_offset;
    return leaf;
  }

  /// The shards of the tensor in `layout`. Creates these shards if they do not exist. The shards may still contain
  /// pruned zeros (zero addends without a node in the local graph); see make_zeros().
  Version& version_of(const Tensor& tensor, const Layout& layout) {
    auto& known = versions(tensor);
    for (Version& version : known) {
      if (version.layout == layout) return version;
    }
    std::vector<Layout> available;
    for (const Version& version : known) available.push_back(version.layout);
    Version& from = known[cheapest_source(available, layout, tensor, ranks_, context_.costs)];
    make_zeros(tensor, from);
    const int64_t before = builder_.collective_bytes();
    Locals made = redistribute(builder_, from.locals, tensor.shape, from.layout, layout, tensor.name);
    if (ConstrainedTensor* cause = constrained(resharding_ != nullptr ? *resharding_ : tensor)) {
      ++cause->conversions;
      cause->bytes += builder_.collective_bytes() - before;
      cause->seconds += conversion_cost(context_.costs, tensor, from.layout, layout, ranks_);
    }
    known.push_back({layout, std::move(made)});
    return known.back();
  }

  const Locals& locals_of(const Tensor& tensor, const Layout& layout) {
    Version& version = version_of(tensor, layout);
    make_zeros(tensor, version);
    return version.locals;
  }

  bool is_zero(const Tensor* local) const { return absent_.contains(local); }

  Tensor* add_zero(const Tensor& node, int rank) {
    Tensor* zero = zeros_[static_cast<size_t>(rank)]->placeholder(node, node.shape);
    absent_.insert(zero);
    return zero;
  }

  /// Replaces the pruned zeros of the version by `fill` nodes.
  void make_zeros(const Tensor& tensor, Version& version) {
    for (int rank = 0; rank < ranks_ && !absent_.empty(); ++rank) {
      Tensor*& local = version.locals[rank];
      if (!is_zero(local)) continue;
      local = fill(builder_.graph(rank), {local->dtype, local->shape, 0.0f}, tensor.name);
      Shards& shards = shards_.at(&tensor);
      if (shards.layout == version.layout) shards.local[rank] = local;
    }
  }

  ConstrainedTensor* constrained(const Tensor& tensor) const {
    const auto found = constrained_.find(&tensor);
    return found == constrained_.end() ? nullptr : found->second;
  }

  /// Adds the node, and converts its result if a constraint wants another layout. Later nodes read the converted value.
  void add_node(const Tensor& node) {
    const NodeChoice& choice = propagation_.at(&node);
    resharding_ = node.op == Op::kReshard ? &node : nullptr;
    compute(node, choice);
    resharding_ = nullptr;
    if (!choice.wanted) return;
    Locals locals = locals_of(node, *choice.wanted);
    shards_.at(&node) = {*choice.wanted, locals};
    versions_[node] = {{*choice.wanted, std::move(locals)}};
  }

  void compute(const Tensor& node, const NodeChoice& choice) {
    if (add_to_partial(node, choice)) return;
    const bool may_be_zero = choice.result.is_partial() && !choice.by_candidates && !choice.selected;
    // All versions are created before references are taken, because the vectors of versions may grow.
    for (size_t i = 0; i < node.src.size(); ++i) {
      if (node.src[i] == nullptr) continue;
      const bool is_taken = may_be_zero && (keeps_all_zeros(node, static_cast<int>(i)) || node.op == Op::kAdd);
      Version& version = version_of(*node.src[i], choice.sources[i]);
      if (!is_taken) make_zeros(*node.src[i], version);
    }
    std::vector<const Locals*> sources;
    for (size_t i = 0; i < node.src.size(); ++i) {
      sources.push_back(node.src[i] != nullptr ? &version_of(*node.src[i], choice.sources[i]).locals : nullptr);
    }
    if (choice.by_candidates) {
      const Selection& selection =
          selections_.emplace(&node, select_candidates(builder_, *sources[0], node, choice.partition)).first->second;
      return remember(node, choice.result, selected_places(builder_, selection, node));
    }
    if (choice.selected) {
      return remember(node, choice.result, selected_values(builder_, selections_.at(node.src[1]), node));
    }
    const Rule* rule = choice.factor >= 0 ? rules_.find(node) : nullptr;
    Locals locals;
    locals.reserve(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<Tensor*> local_sources;
      local_sources.reserve(sources.size());
      for (const Locals* source : sources) local_sources.push_back(source != nullptr ? (*source)[rank] : nullptr);
      locals.push_back(add_local(node, choice, rule, rank, std::move(local_sources)));
    }
    remember(node, choice.result, std::move(locals));
    if (node.is_output || used_later_.contains(&node) || shown_.contains(&node)) locals_of(node, choice.result);
  }

  /// Returns the tensor that replaces a node if one operand is a pruned zero or selects_nothing() is true. This tensor
  /// is a pruned zero or, for add, the other operand. Returns nullptr if the node is needed.
  Tensor* without_zeros(const Tensor& node, const OpParams& params, int rank, std::span<Tensor* const> sources) {
    if (const auto* select = std::get_if<SelectParams>(&params); select != nullptr && selects_nothing(node, *select)) {
      return add_zero(node, rank);
    }
    if (node.op != Op::kAdd) {
      return std::any_of(sources.begin(), sources.end(), [&](const Tensor* source) { return is_zero(source); })
                 ? add_zero(node, rank)
                 : nullptr;
    }
    for (const int zero : {0, 1}) {
      if (!is_zero(sources[zero])) continue;
      Tensor* other = sources[1 - zero];
      if (is_zero(other)) return add_zero(node, rank);
      const bool stays = shown_.contains(&node) || other->storage()->role == Role::kCache;
      if (!stays && same_shape(*other, node) && other->dtype == node.dtype) return other;
    }
    return nullptr;
  }

  /// Mirrors the result of an output, or of a node in PlanOptions::shown, because the host or another backend reads the
  /// result.
  void make_whole(const Tensor& node) {
    if (!node.is_output && !shown_.contains(&node)) return;
    if (node.storage()->is_persistent() || shards_.at(&node).layout.is_mirrored()) return;
    const ConstrainedTensor* wish = constrained(node);
    require<InvalidArgument>(wish == nullptr || !wish->constraint.required || node.op == Op::kReshard,
                             "the required layout '{}' of {} contradicts its use as {}, which must be mirrored because "
                             "the devices belong to several processes; require the layout of an earlier node, or give "
                             "a hint",
                             wish == nullptr ? "" : wish->constraint.layout.to_string(), node.name,
                             node.is_output ? "an output" : "a copied value");
    shards_.at(&node) = {Layout::mirrored(), locals_of(node, Layout::mirrored())};
  }

  Tensor* add_local(const Tensor& node, const NodeChoice& choice, const Rule* rule, int rank,
                    std::vector<Tensor*> sources) {
    Graph& graph = builder_.graph(rank);
    OpParams params = node.params;
    if (rule != nullptr) {
      params = local_params(node, *rule, choice.factor, choice.partition, rank);
    } else if (is_view(node.op)) {
      params = local_view_params(node, choice.sources[0], choice.result, rank);
    }
    if (choice.result.is_partial()) {
      if (Tensor* known = without_zeros(node, params, rank, sources)) return known;
    }
    for (Tensor*& source : sources) {  // this node is needed, so its zero sources are created
      if (is_zero(source)) source = fill(graph, {source->dtype, source->shape, 0.0f});
    }
    const bool is_rounded_sum =
        info(node.op).alias == Alias::kWrites && choice.result.is_partial() && choice.sources[1].is_mirrored();
    if (is_rounded_sum && rank > 0) sources[1] = fill(graph, {sources[1]->dtype, sources[1]->shape});
    const bool is_moved = node.op == Op::kReshape && !sources[0]->is_contiguous();
    if (is_moved) sources[0] = contiguous(graph, sources[0]);
    const bool is_packed = node.op == Op::kExternal && op_of(node).functions.strided == 0;
    for (Tensor*& source : sources) {
      if (is_packed && !source->is_contiguous()) source = contiguous(graph, source);
    }
    Tensor* local = graph.add_node(node.op, std::move(params), std::move(sources), node.name);
    if (node.op == Op::kExternal) check_external(node, *local, choice.result.local_shape(node.shape, rank), rank);
    return local;
  }

  /// Rules of external ops come from their authors.
  static void check_external(const Tensor& node, const Tensor& local, const Shape& expected, int rank) {
    require<InvalidArgument>(local.shape == expected,
                             "the rule of op '{}' gives rank {} a result {}, but the function infer gives {}; correct "
                             "the rule, and test it with check_op",
                             op_of(node).name, rank, shoal::to_string(expected), shoal::to_string(local.shape));
  }

  /// add(mirrored, partial): rank 0 adds the mirrored source. On the other ranks the addend is the partial source
  /// itself, or a copy if the source is a cache. No zeros are needed.
  bool add_to_partial(const Tensor& node, const NodeChoice& choice) {
    if (node.op != Op::kAdd || !choice.result.is_partial()) return false;
    const int partial = has_version(*node.src[0], Layout::partial()) ? 0 : 1;
    const Tensor& addend = *node.src[partial];
    const Tensor& other = *node.src[1 - partial];
    if (!has_version(addend, Layout::partial()) || has_version(other, Layout::partial())) return false;
    if (!has_version(other, Layout::mirrored()) || !same_shape(addend, node) || addend.dtype != node.dtype)
      return false;
    Locals locals = locals_of(addend, Layout::partial());
    std::vector<Tensor*> sources(2);
    sources[partial] = locals[0];
    for (int rank = 1; rank < ranks_; ++rank) {
      Graph& graph = builder_.graph(rank);
      if (locals[rank]->storage()->role == Role::kCache) {
        locals[rank] = contiguous(graph, locals[rank]);  // later writes must not change the sum
      } else if (shown_.contains(&node)) {
        // The result of a node in `shown_` must stay valid from this node to the next cut. The addend may have been
        // computed before the previous cut, so a slice makes a new node after the previous cut.
        locals[rank] = slice(graph, locals[rank], {0, 0, node.shape[0]});
      }
    }
    sources[1 - partial] = locals_of(other, Layout::mirrored())[0];
    locals[0] = builder_.graph(0).add_node(Op::kAdd, node.params, std::move(sources), node.name);
    remember(node, Layout::partial(), std::move(locals));
    return true;
  }

  bool has_version(const Tensor& tensor, const Layout& layout) {
    const auto& known = versions(tensor);
    return std::any_of(known.begin(), known.end(), [&](const Version& v) { return v.layout == layout; });
  }

  void find_later_uses() {
    const auto nodes = range_.graph->nodes();
    for (size_t i = static_cast<size_t>(range_.end); i < nodes.size(); ++i) {
      for (const Tensor* source : nodes[i]->src) {
        if (source != nullptr) used_later_.insert(source);
      }
    }
  }

  /// Marks a result as an output if the caller or a later range reads it.
  void mark_output(const Tensor& node) {
    if (!node.is_output && !used_later_.contains(&node)) return;
    const Locals& locals = shards_.at(&node).local;
    for (int rank = 0; rank < ranks_; ++rank) builder_.graph(rank).output(locals[rank]);
  }

  RankPlan take_local(int rank) {
    RankPlan local{builder_.take_graph(rank), builder_.cuts(rank)};
    local.zeros = std::move(zeros_[static_cast<size_t>(rank)]);
    for (const Tensor* node : options_.shown) local.shown.push_back(shards_.at(node).local[rank]);
    for (const LateInput& late : options_.late) {
      // An input that a later range reads is not a late input, because its memory must be kept. Inputs of earlier
      // ranges are already placed.
      const auto found = shards_.find(late.input);
      if (found == shards_.end() || used_later_.contains(late.input)) continue;
      local.late.push_back({found->second.local[rank], late.segment});
    }
    return local;
  }

  const GraphRange& range_;
  const int ranks_;
  const Propagation& propagation_;
  const PlanContext& context_;
  const ShardLookup& outside_;
  const LeafLayout& inputs_;
  const PlanOptions& options_;
  RuleCache rules_;
  LocalBuilder builder_;
  PerTensor<std::vector<Version>> versions_;
  std::unordered_map<const Tensor*, Shards> shards_;
  std::unordered_map<const Tensor*, Selection> selections_;  ///< the Selection of each node that selects by candidates
  std::unordered_map<const Tensor*, Tensor*> placeholders_;  ///< placeholder() of a tensor of an earlier range
  std::unordered_set<const Tensor*> used_later_;             ///< tensors that nodes after the range read
  std::unordered_set<const Tensor*> shown_;
  std::unordered_map<const Tensor*, ConstrainedTensor*> constrained_;  ///< entries of Plan::constraints
  const Tensor* resharding_ = nullptr;  ///< the reshard node that is added; it causes the conversion of its source
  std::vector<std::unique_ptr<Graph>> zeros_;  ///< RankPlan::zeros of each rank
  std::unordered_set<const Tensor*> absent_;   ///< the tensors of `zeros_`
};

}  // namespace

void lower(const GraphRange& range, int ranks, const Propagation& propagation, const LeafLayout& inputs,
           const PlanContext& context, const PlanOptions& options, Plan& plan) {
  Lowering(range, ranks, propagation, inputs, context, options, plan).run(plan);
}

}  // namespace shoal::meta

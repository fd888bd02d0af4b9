#include "tests/support/rule_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/device.h"
#include "graph/text.h"
#include "tests/support/poison.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

using meta::Layout;
using meta::Partition;

constexpr uint64_t kSeed = 23;

std::vector<Partition> partitions_of(int ranks, int64_t pieces) {
  const int last = ranks - 1;
  if (pieces == 0) return {Partition(ranks, {})};
  std::vector<int64_t> uneven(static_cast<size_t>(ranks), 0), empty = uneven;
  uneven[static_cast<size_t>(last)] = (pieces + 3) / 4;
  uneven[0] = pieces - uneven.back();
  if (ranks > 2 && uneven[0] > 1) uneven[0] -= 1, uneven[1] += 1;
  empty[static_cast<size_t>(last)] = pieces - pieces / 2;
  empty[static_cast<size_t>(last - 1)] += pieces / 2;
  if (ranks == 2) empty = {0, pieces};
  return {Partition::even(ranks, pieces), Partition::from_shares(uneven), Partition::from_shares(empty),
          Partition(ranks, {{pieces, {0, last}}})};
}

/// A rank's addend of a Partial tensor: a fraction of the values plus a constant. The fractions of the ranks are
/// unequal. For i32, rank 0 has the fraction 1. The constants of all ranks add up to zero.
Values addend(const Values& values, DType dtype, int ranks, int rank) {
  const double share = 2.0 * (ranks - rank) / (ranks * (ranks + 1));
  const double offset = ranks == 1 || rank > 1 ? 0.0 : rank == 0 ? 0.5 : -0.5;
  Values result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kI32)
      result[i] = (rank == 0 ? values[i] : 0.0) + 600 * offset;
    else
      result[i] = share * values[i] + offset;
  }
  return result;
}

/// Tolerance for a sum of addends that are stored in the dtype.
double tolerance_of(DType dtype) {
  if (dtype == DType::kF16) return 4e-3;
  if (dtype == DType::kBF16) return 3e-2;
  if (dtype == DType::kQ8_0) return 1e-2;  // one quantisation step
  return 1e-5;
}

struct Loaded {
  explicit Loaded(const std::string& text) { parse_graph(text, graph, weights); }
  TensorContext weights;
  Graph graph;
};

}  // namespace

std::vector<Layout> layouts_to_try(const Tensor& leaf, int ranks) {
  std::vector<Layout> layouts{Layout::mirrored()};
  if (is_summable(leaf.dtype)) layouts.push_back(Layout::partial());
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t unit = axis == 0 ? traits(leaf.dtype).block_elems : 1;
    for (const Partition& partition : partitions_of(ranks, leaf.shape[axis] / unit)) {
      Layout layout = Layout::split(axis, partition.scale_up(unit));
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) layouts.push_back(std::move(layout));
    }
  }
  return layouts;
}

LayoutTrials::LayoutTrials(int ranks, const meta::RuleLookup& rules) : ranks_(ranks) {
  std::vector<Device*> members;
  for (int i = 0; i < ranks; ++i) members.push_back(&Registry::instance().device(fmt::format("CPU{}", i)));
  meta::MetaOptions options;
  options.member_params.assign(members.size(), "threads=1");
  options.rules = rules;
  alone_ = members[0]->init("threads=1");
  device_ = meta::MetaDevice::create(
      members,
      [this](const Tensor& tensor) {
        const Layout& layout = layouts_.at(tensor.name);
        if (layout.is_mirrored()) return meta::SplitState::mirrored();
        return layout.is_partial() ? meta::SplitState::partial()
                                   : meta::SplitState::split(layout.axis, layout.partition);
      },
      options);
  backend_ = device_->init();
}

LayoutTrials::Outcome LayoutTrials::run(const std::string& text, int most) {
  Loaded alone(text);
  TensorValues values = random_leaves(alone.graph, kSeed);
  Named leaves, expected;
  std::vector<std::vector<Layout>> choices;
  std::vector<std::string> names;
  double combinations = 1;
  for (const Tensor* leaf : alone.weights.tensors()) {
    leaves[leaf->name] = values.at(leaf);
    names.push_back(leaf->name);
    choices.push_back(layouts_to_try(*leaf, ranks_));
    combinations *= static_cast<double>(choices.back().size());
  }
  for (const auto& [tensor, result] : run_graph(*alone_, alone.graph, values)) expected[tensor->name] = result;

  Outcome outcome;
  const auto try_choice = [&](const std::vector<size_t>& choice) {
    for (size_t i = 0; i < names.size(); ++i) layouts_[names[i]] = choices[i][choice[i]];
    ++outcome.trials;
    outcome.problem = try_one(text, leaves, expected);
    return outcome.problem.empty();
  };
  std::vector<size_t> choice(names.size(), 0);
  if (combinations <= most) {
    for (size_t i = 0; i < names.size();) {
      if (i == 0 && !try_choice(choice)) return outcome;
      i = ++choice[i] < choices[i].size() ? 0 : (choice[i] = 0, i + 1);
    }
    return outcome;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    for (choice[i] = 0; choice[i] < choices[i].size(); ++choice[i]) {
      if (!try_choice(choice)) return outcome;
    }
    choice[i] = 0;
  }
  std::mt19937 random(static_cast<unsigned>(text.size()));
  while (outcome.trials < most) {
    for (size_t i = 0; i < names.size(); ++i) choice[i] = random() % choices[i].size();
    if (!try_choice(choice)) return outcome;
  }
  return outcome;
}

std::string LayoutTrials::try_one(const std::string& text, const Named& leaves, const Named& expected) {
  std::string how = text;
  double tolerance = 0;
  bool has_partial = false, has_quantized = false;
  Loaded loaded(text);
  for (Tensor* leaf : loaded.weights.tensors()) {
    const Layout& layout = layouts_.at(leaf->name);
    how += fmt::format("\n  {}: {}", leaf->name, layout.to_string());
    if (layout.is_partial()) tolerance = std::max(tolerance, tolerance_of(leaf->dtype));
    has_partial = has_partial || layout.is_partial();
    has_quantized = has_quantized || traits(leaf->dtype).is_quantized;
    // Before a product with f16 or bf16 weights, 32 elements of the other operand are rounded to 14 bits with one
    // scale. On a rank with fewer elements, the scale may be another one.
    if (leaf->dtype == DType::kF16 || leaf->dtype == DType::kBF16) tolerance = std::max(tolerance, 2e-4);
  }
  // Before a product with quantised weights, the other operand is rounded to 8 bits. If the other operand is Partial,
  // each rank rounds its addend with a separate scale.
  if (has_quantized) tolerance = std::max(tolerance, has_partial ? 2e-2 : 1e-4);
  try {
    const auto memory = allocate_tensors(loaded.weights.tensors(), device_->buffer_type(), Usage::kWeights);
    const auto plan = backend_->create_plan(loaded.graph);
    poison(loaded.graph, *plan);
    for (Tensor* leaf : loaded.weights.tensors()) {
      const Values& values = leaves.at(leaf->name);
      if (!layouts_.at(leaf->name).is_partial()) write_values(*leaf, values);
      for (int rank = 0; rank < ranks_ && layouts_.at(leaf->name).is_partial(); ++rank) {
        write_values(meta::shard(*leaf, rank), addend(values, leaf->dtype, ranks_, rank));
      }
    }
    backend_->compute_async(*plan);
    backend_->synchronize();
    for (const auto& [name, want] : expected) {
      const Tensor* tensor = loaded.graph.find(name);
      const bool integers = tensor->dtype == DType::kI32;
      const double allowed = integers ? 0.0 : std::max(tolerance, tolerance_of(tensor->dtype));
      const Results results{{name, {read_values(*tensor), integers}}};
      const std::string wrong = difference({{name, {want, integers}}}, results, allowed);
      if (!wrong.empty()) return how + "\n" + wrong;
      const std::string apart = disagreement(*tensor, allowed);
      if (!apart.empty()) return how + "\n" + apart;
    }
  } catch (const Error& error) {
    return how + "\n" + error.what();
  }
  return {};
}

}  // namespace shoal::test

#include "tests/support/case_leaves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "meta/check/shard_elements.h"
#include "meta/device/meta_buffer.h"
#include "meta/meta.h"
#include "processes/remote_device.h"
#include "tests/support/random_leaves.h"

namespace shoal::test {
namespace {

/// Returns 0 if `a` equals `b`, or if both are NaN. Returns |a - b| if `a` and `b` are finite. Otherwise, returns
/// infinity.
double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : INFINITY;
}

/// Whether the tensor belongs to a device of this process.
bool is_here(const Tensor& local) {
  return local.buffer == nullptr || !is_remote(local.buffer->type().device());
}

/// The addend of `rank` in a Partial tensor with this value. The addend of rank 0 differs from all other addends, so
/// that a missing or repeated addend changes the sum.
double addend(double value, bool whole, int ranks, int rank) {
  if (whole) return rank == 0 ? value + 3 * (ranks - 1) : -3;
  return rank == 0 ? 0.6 * value : 0.4 / (ranks - 1) * value;
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

int ranks_of(const Tensor& tensor) {
  return static_cast<int>(meta::shards_of(tensor).local.size());
}

std::string disagreement_of_copies(const Tensor& tensor) {
  int known = -1;
  std::vector<std::byte> first;
  for (int rank = 0; rank < ranks_of(tensor); ++rank) {
    if (!is_here(meta::shard(tensor, rank))) continue;
    const auto mine = bytes_of(meta::shard(tensor, rank));
    if (known < 0) known = rank, first = mine;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), mine.begin(), mine.end());
    if (a == first.end() && b == mine.end()) continue;
    return fmt::format("%{}, mirrored: rank {} differs from rank {} at byte {}", tensor.name, rank, known,
                       a - first.begin());
  }
  return {};
}

/// For each element, compares the values of all owners with the value of the first owner.
std::string disagreement_of_owners(const Tensor& tensor, const meta::Layout& layout, double tolerance) {
  Values known(static_cast<size_t>(tensor.elements()));
  std::vector<int> holder(known.size(), -1);
  double largest = 0;
  for (int rank = 0; rank < ranks_of(tensor); ++rank) {
    if (!is_here(meta::shard(tensor, rank))) continue;
    const Values mine = read_values(meta::shard(tensor, rank));
    const auto elements = shard_elements(tensor.shape, layout, rank);
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto element = static_cast<size_t>(elements[i]);
      if (holder[element] < 0) known[element] = mine[i], holder[element] = rank;
      if (std::isfinite(mine[i])) largest = std::max(largest, std::abs(mine[i]));
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto element = static_cast<size_t>(elements[i]);
      const double error = distance(known[element], mine[i]);
      if (error <= tolerance * (largest + 0.1)) continue;
      return fmt::format("%{}, {}: element {} is {} on rank {} and {} on rank {}", tensor.name, layout.to_string(),
                         element, known[element], holder[element], mine[i], rank);
    }
  }
  return {};
}

meta::SplitState state_of(const meta::Layout& layout) {
  if (layout.is_mirrored()) return meta::SplitState::mirrored();
  return layout.is_partial() ? meta::SplitState::partial() : meta::SplitState::split(layout.axis, layout.partition);
}

}  // namespace

meta::SplitState state_of(const RandomCase& one, const Tensor& leaf) {
  const auto layout = one.layouts.find(leaf.name);
  if (layout == one.layouts.end()) return meta::SplitState::mirrored();
  const auto segments = one.segments.find(leaf.name);
  if (segments != one.segments.end()) return meta::SplitState::split(layout->second.axis, segments->second);
  return state_of(layout->second);
}

meta::ConstraintCallback constraints_of(const RandomCase& one) {
  if (one.constraints.empty()) return {};
  return [&one](const Tensor& tensor) -> std::optional<meta::Constraint> {
    const auto found = one.constraints.find(tensor.name);
    if (found == one.constraints.end()) return std::nullopt;
    return meta::Constraint{state_of(found->second.layout), found->second.required, found->second.factor};
  };
}

Values leaf_values(const RandomCase& one, const Tensor& leaf, uint64_t run) {
  Values values = decode(leaf.dtype, leaf_data(leaf, one.seed + 1000003 * run), leaf.elements());
  if (one.whole && traits(leaf.dtype).is_float) {
    for (double& value : values) value = std::nearbyint(4 * value);
  }
  return values;
}

void write_leaf(const RandomCase& one, Tensor& leaf, const Values& values) {
  const meta::Shards* shards = meta::find_shards(leaf);
  const int ranks = shards == nullptr ? 1 : ranks_of(leaf);
  if (ranks == 1 || !meta::layout_of(leaf).is_partial()) return write_values(leaf, values);
  const bool whole = one.whole || leaf.dtype == DType::kI32;
  for (int rank = 0; rank < ranks; ++rank) {
    Values addends(values.size());
    for (size_t i = 0; i < values.size(); ++i) addends[i] = addend(values[i], whole, ranks, rank);
    write_values(meta::shard(leaf, rank), addends);
  }
}

Results read_results(const RandomCase& one, const Graph& graph, const TensorContext& weights) {
  Results results;
  const auto add = [&](const Tensor& tensor) {
    const std::string wrong = meta::find_shards(tensor) != nullptr ? disagreement(tensor, one.tolerance) : "";
    if (!wrong.empty()) throw std::runtime_error(wrong);
    results[tensor.name] = {read_values(tensor), tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64};
  };
  for (const Tensor* node : graph.nodes()) {
    if (node->is_output) add(*node);
  }
  for (const Tensor* leaf : weights.tensors()) {
    if (leaf->role == Role::kCache) add(*leaf);
  }
  return results;
}

std::string disagreement(const Tensor& tensor, double tolerance) {
  const meta::Layout& layout = meta::layout_of(tensor);
  if (layout.is_mirrored()) return disagreement_of_copies(tensor);
  return layout.is_split() ? disagreement_of_owners(tensor, layout, tolerance) : "";
}

std::string difference(const Results& expected, const Results& actual, double tolerance) {
  std::string worst;
  double most = 0.0;
  for (const auto& [name, result] : expected) {
    const auto it = actual.find(name);
    if (it == actual.end()) return fmt::format("%{} is missing", name);
    const Values &want = result.values, &got = it->second.values;
    if (got.size() != want.size()) return fmt::format("%{} has {} values, not {}", name, got.size(), want.size());
    double largest = 0;
    for (const double value : want) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
    const double allowed = result.integers ? 0.0 : tolerance * (largest + 0.1);
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = distance(want[i], got[i]);
      const double excess = error > 0 ? error / allowed : 0;
      if (error <= allowed || excess <= most) continue;
      most = excess;
      worst = fmt::format("%{}[{}]: expected {}, got {} ({:.3g} x tolerance)", name, i, want[i], got[i], excess);
    }
  }
  return worst;
}

}  // namespace shoal::test

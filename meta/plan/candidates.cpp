#include "meta/plan/candidates.h"

#include <algorithm>

#include "base/error.h"
#include "meta/plan/redistribute.h"

namespace shoal::meta {
namespace {

/// f32 represents all whole numbers up to 2^24 exactly.
constexpr int64_t kMostExact = int64_t{1} << 24;

/// Number of elements that the node selects from axis 0.
int64_t selected(const Tensor& node) {
  if (node.op == Op::kTopK) return std::get<TopKParams>(node.params).k;
  return node.op == Op::kArgmax ? 1 : 0;
}

/// Returns the indices [k, rows] of the k best elements of each row of x [length, rows].
Tensor* best(Graph& g, Tensor* x, int64_t k) {
  return k == 1 ? argmax(g, x) : top_k(g, x, k);
}

int64_t rows_of(const Tensor& node) {
  return node.shape[1] * node.shape[2] * node.shape[3];
}

/// Returns the elements of each row of x [length, rows] that `ids` [k, rows] selects. The result has shape [k, rows].
Tensor* pick(Graph& g, Tensor* x, Tensor* ids) {
  Tensor* elements = reshape(g, x, {1, x->shape[0], x->shape[1], 1});
  return reshape(g, get_rows(g, elements, ids), ids->shape);
}

/// Returns the k best elements of a rank's stretch, which starts at index `begin` of the row: [k, 2 * rows]. The first
/// `rows` rows contain the values, and the next `rows` rows contain the indices of these values in the whole row.
Tensor* best_of(Graph& g, Tensor* x, int64_t k, int64_t rows, int64_t begin) {
  if (k == 0) return fill(g, {DType::kF32, {0, 2 * rows, 1, 1}, 0.0f});
  Tensor* stretch = reshape(g, as_contiguous(g, x), {x->shape[0], rows, 1, 1});
  Tensor* ids = best(g, stretch, k);
  Tensor* places = cast(g, ids, DType::kF32);
  if (begin > 0) places = scale(g, places, {1.0f, static_cast<float>(begin)});
  return concat(g, {pick(g, stretch, ids), places}, 1);
}

}  // namespace

std::optional<Partition> candidates_of(const Tensor& node, const Partition& row) {
  const int64_t k = selected(node);
  if (k == 0 || node.empty() || row.length() < k || row.length() > kMostExact) return std::nullopt;
  if (!row.is_disjoint()) return std::nullopt;
  for (int rank = 0; rank < row.devices(); ++rank) {
    if (row.stretches(rank) > 1) return std::nullopt;
  }
  std::vector<Run> runs(row.runs().begin(), row.runs().end());
  for (Run& run : runs) run.length = std::min(run.length, k);
  return Partition(row.devices(), std::move(runs));
}

int64_t candidate_bytes(const Tensor& node, const Partition& candidates) {
  return static_cast<int64_t>(bytes_for(DType::kF32, 2 * rows_of(node) * candidates.length()));
}

Selection select_candidates(LocalBuilder& builder, const Locals& sources, const Tensor& node, const Partition& row) {
  const auto candidates = candidates_of(node, row);
  check(candidates.has_value(), "{} has no candidates for rows split as {}", node.name, row.to_string());
  const int64_t rows = rows_of(node), k = selected(node);
  Locals own;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    const auto stretch = row.owned_by(rank);
    const int64_t begin = stretch.empty() ? 0 : stretch.front().begin;
    own.push_back(best_of(builder.graph(rank), sources[rank], candidates->local_length(rank), rows, begin));
  }
  Selection selection;
  selection.gathered = redistribute(builder, own, {candidates->length(), 2 * rows, 1, 1}, Layout::split(0, *candidates),
                                    Layout::mirrored(), node.name + ".candidates");
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    Graph& g = builder.graph(rank);
    selection.positions.push_back(best(g, slice(g, selection.gathered[rank], {1, 0, rows}), k));
  }
  return selection;
}

Locals selected_places(LocalBuilder& builder, const Selection& selection, const Tensor& node) {
  const int64_t rows = rows_of(node);
  Locals results;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    Graph& g = builder.graph(rank);
    Tensor* all = as_contiguous(g, slice(g, selection.gathered[rank], {1, rows, rows}));
    results.push_back(cast(g, reshape(g, pick(g, all, selection.positions[rank]), node.shape), DType::kI32, node.name));
  }
  return results;
}

Locals selected_values(LocalBuilder& builder, const Selection& selection, const Tensor& lookup) {
  Locals results;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    Graph& g = builder.graph(rank);
    Tensor* all = selection.gathered[rank];
    Tensor* values = as_contiguous(g, slice(g, all, {1, 0, all->shape[1] / 2}));
    const auto [one, k, r1, r2] = lookup.shape;
    Tensor* positions = reshape(g, selection.positions[rank], {k, r1, r2, 1});
    results.push_back(get_rows(g, reshape(g, values, {one, all->shape[0], r1, r2}), positions, {}, lookup.name));
  }
  return results;
}

bool looks_up_selected(const Tensor& node) {
  if (node.op != Op::kGetRows || !std::get<SelectParams>(node.params).ranges.empty()) return false;
  const Tensor &elements = *node.src[0], &ids = *node.src[1];
  if (selected(ids) == 0 || elements.op != Op::kReshape || elements.src[0] != ids.src[0]) return false;
  const Shape& row = ids.src[0]->shape;
  return elements.shape == Shape{1, row[0], row[1], row[2]} && row[3] == 1;
}

}  // namespace shoal::meta

#include "meta/layout/views.h"

#include <algorithm>

namespace shoal::meta {
namespace {

std::optional<Layout> exact_layout(const Tensor& view, const Layout& source) {
  switch (view.op) {
    case Op::kReshape:
      return reshape_layout(source, view.src[0]->shape, view.shape);
    case Op::kSlice: {
      const auto& params = std::get<SliceParams>(view.params);
      return slice_layout(source, params.axis, params.begin, params.length);
    }
    default:
      return permute_layout(source, std::get<PermuteParams>(view.params).axes);
  }
}

/// A cut inside a quantisation block of the view cannot be stored.
bool is_storable(const Layout& layout, DType dtype) {
  const int64_t block = traits(dtype).block_elems;
  if (!layout.is_split(0) || block == 1) return true;
  const auto runs = layout.partition.runs();
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) { return run.length % block == 0; });
}

}  // namespace

std::optional<Layout> view_layout(const Tensor& view, const Layout& source) {
  if (!source.is_split()) return source;
  auto layout = exact_layout(view, source);
  if (layout && !is_storable(*layout, view.dtype)) layout.reset();
  return layout;
}

OpParams local_view_params(const Tensor& view, const Layout& source, const Layout& result, int rank) {
  if (view.op == Op::kReshape) return ReshapeParams{local_reshape(result, view.shape, rank)};
  if (view.op == Op::kSlice) return local_slice(source, std::get<SliceParams>(view.params), rank);
  return view.params;
}

}  // namespace shoal::meta

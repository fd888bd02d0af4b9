// Tests of views. The strides and the offset of a view depend only on the view op and on the source of the view. Every
// element is at the expected byte offset.
#include <gtest/gtest.h>

#include "graph/ops/ops.h"

namespace shoal {
namespace {

/// Offset in bytes of element (or block) `index` in the tensor that owns the memory.
size_t byte_of(const Tensor& tensor, const Shape& index) {
  size_t byte = tensor.view_offset;
  for (int axis = 0; axis < kMaxDims; ++axis) byte += static_cast<size_t>(index[axis]) * tensor.strides[axis];
  return byte;
}

TEST(Views, SlicesOfEveryAxisKeepStrides) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {10, 6, 4, 3});
  const size_t strides[] = {4, 40, 240, 960};
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const Tensor* y = slice(g, x, {axis, 1, 2});
    EXPECT_EQ(y->view_base, x);
    EXPECT_EQ(y->view_offset, strides[axis]);
    EXPECT_EQ(y->strides, x->strides);
    EXPECT_EQ(y->shape[axis], 2);
    EXPECT_EQ(y->is_contiguous(), axis == 3) << axis;
  }
}

TEST(Views, StepMultipliesTheStride) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {10, 6, 4, 3});
  const Tensor* y = slice(g, x, {0, 1, 3, 4});
  EXPECT_EQ(y->strides, (Strides{16, 40, 240, 960}));
  EXPECT_EQ(y->view_offset, 4u);
  EXPECT_FALSE(y->is_row_contiguous());
  const Tensor* z = slice(g, x, {2, 1, 2, 2});
  EXPECT_EQ(z->strides, (Strides{4, 40, 480, 960}));
  EXPECT_EQ(slice(g, x, {0, 2, 1, 5})->strides, x->strides) << "one index has no distance";
}

TEST(Views, OffsetsOfQuantisedSlicesAreWholeBlocks) {
  TensorContext weights;
  Graph g;
  Tensor* w = weights.add("w", DType::kQ8_0, {128, 6, 1, 1});
  const Tensor* columns = slice(g, w, {0, 64, 64});
  EXPECT_EQ(columns->view_offset, 2u * 34);
  EXPECT_EQ(columns->strides, w->strides);
  EXPECT_FALSE(columns->is_contiguous());
  const Tensor* rows = slice(g, w, {1, 2, 3});
  EXPECT_EQ(rows->view_offset, 2u * 4 * 34);
  EXPECT_TRUE(rows->is_contiguous());
}

TEST(Views, ViewsOfViewsShareTheBase) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 6, 1, 1});
  Tensor* a = slice(g, x, {1, 2, 4});
  Tensor* b = reshape(g, a, {4, 2, 2, 1});
  Tensor* c = permute(g, b, {0, 2, 1, 3});
  Tensor* d = slice(g, c, {2, 1, 1});
  EXPECT_EQ(a->view_offset, 32u);
  EXPECT_EQ(b->view_offset, 32u);
  EXPECT_EQ(b->strides, (Strides{4, 16, 32, 64}));
  EXPECT_EQ(c->strides, (Strides{4, 32, 16, 64}));
  EXPECT_EQ(d->view_offset, 48u);
  Tensor* e = reshard(g, d, "mirrored");
  EXPECT_EQ(e->view_offset, 48u);
  EXPECT_EQ(e->strides, d->strides);
  EXPECT_EQ(e->shape, d->shape);
  for (const Tensor* view : {a, b, c, d, e}) EXPECT_EQ(view->view_base, x) << view->name;
}

TEST(Views, PermuteMovesEveryElement) {
  Graph g;
  Tensor* x = g.input("x", DType::kF16, {2, 3, 4, 5});
  const std::array<int, 4> axes{2, 0, 3, 1};
  const Tensor* y = permute(g, x, axes);
  for (int64_t i = 0; i < y->elements(); ++i) {
    Shape at_y{i % y->shape[0], i / y->shape[0] % y->shape[1], i / (y->shape[0] * y->shape[1]) % y->shape[2],
               i / (y->shape[0] * y->shape[1] * y->shape[2])};
    Shape at_x{};
    for (int axis = 0; axis < kMaxDims; ++axis) at_x[axes[axis]] = at_y[axis];
    ASSERT_EQ(byte_of(*y, at_y), byte_of(*x, at_x));
  }
}

TEST(Views, TransposingTwiceGivesAContiguousTensor) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 6, 2, 1});
  Tensor* t = transpose(g, x);
  EXPECT_EQ(t->shape, (Shape{6, 4, 2, 1}));
  EXPECT_FALSE(t->is_contiguous());
  EXPECT_EQ(t->span_bytes(), x->bytes());
  EXPECT_TRUE(transpose(g, t)->is_contiguous());
  EXPECT_EQ(reshape(g, transpose(g, t), {24, 2, 1, 1})->view_base, x);
}

TEST(Views, OuterAxesOfQuantisedTensorsMayBePermuted) {
  TensorContext weights;
  Graph g;
  Tensor* w = weights.add("w", DType::kQ4_0, {64, 3, 5, 1});
  const Tensor* p = permute(g, w, {0, 2, 1, 3});
  EXPECT_EQ(p->shape, (Shape{64, 5, 3, 1}));
  EXPECT_EQ(p->strides, (Strides{18, 108, 36, 540}));
  EXPECT_TRUE(p->is_row_contiguous());
}

TEST(Views, SetRowsAliasesTheCache) {
  TensorContext weights;
  Graph g;
  Tensor* cache = weights.add("kc", DType::kF16, {8, 16, 2, 1}, Role::kCache);
  Tensor* rows = g.input("rows", DType::kF32, {8, 3, 2, 1});
  Tensor* ids = g.input("ids", DType::kI32, {3, 1, 1, 1});
  Tensor* first = set_rows(g, cache, rows, ids);
  Tensor* second = set_rows(g, first, rows, ids);
  for (const Tensor* y : {first, second}) {
    EXPECT_EQ(y->view_base, cache);
    EXPECT_EQ(y->view_offset, 0u);
    EXPECT_EQ(y->strides, cache->strides);
    EXPECT_FALSE(y->is_persistent());
  }
  // A view of the result is also a view of the cache.
  EXPECT_EQ(slice(g, second, {1, 4, 2})->view_base, cache);
}

TEST(Views, SlicesMayBeEmpty) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 6, 1, 1});
  Tensor* none = slice(g, x, {1, 6, 0});
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE(none->is_contiguous());
  EXPECT_EQ(reshape(g, none, {2, 0, 7, 1})->bytes(), 0u);
}

}  // namespace
}  // namespace shoal

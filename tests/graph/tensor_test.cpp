#include "graph/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace shoal {
namespace {

Tensor make(DType dtype, Shape shape) {
  Tensor tensor;
  tensor.name = "x";
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = contiguous_strides(dtype, shape);
  return tensor;
}

TEST(Tensor, ContiguousStridesAreBytesOfBlocksAndRows) {
  EXPECT_EQ(contiguous_strides(DType::kF32, {256, 4, 1, 1}), (Strides{4, 1024, 4096, 4096}));
  EXPECT_EQ(contiguous_strides(DType::kQ8_0, {256, 4, 1, 1}), (Strides{34, 272, 1088, 1088}));
  EXPECT_EQ(contiguous_strides(DType::kF16, {0, 4, 2, 1}), (Strides{2, 0, 0, 0}));
  EXPECT_THAT([] { contiguous_strides(DType::kQ8_0, {40, 4, 1, 1}); }, testing::Throws<InvalidArgument>());
}

TEST(Tensor, CountsBytes) {
  EXPECT_EQ(make(DType::kF32, {256, 4, 1, 1}).bytes(), 4096u);
  EXPECT_EQ(make(DType::kQ8_0, {256, 4, 1, 1}).bytes(), 1088u);
  EXPECT_EQ(make(DType::kQ8_0, {256, 0, 1, 1}).bytes(), 0u);
  EXPECT_EQ(make(DType::kQ8_0, {256, 4, 1, 1}).span_bytes(), 1088u);
  EXPECT_EQ(make(DType::kF32, {256, 0, 3, 1}).span_bytes(), 0u);
}

TEST(Tensor, SpanBytesIncludeGapsBetweenRows) {
  Tensor x = make(DType::kF32, {8, 4, 1, 1});
  x.shape[0] = 6;  // strides as in a slice of axis 0
  EXPECT_TRUE(x.is_row_contiguous());
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_EQ(x.bytes(), 6u * 4 * 4);
  EXPECT_EQ(x.span_bytes(), 3u * 32 + 6 * 4);
}

TEST(Tensor, SwappedAxesAreNotRowContiguous) {
  Tensor x = make(DType::kF32, {8, 4, 1, 1});
  std::swap(x.shape[0], x.shape[1]);
  std::swap(x.strides[0], x.strides[1]);
  EXPECT_FALSE(x.is_row_contiguous());
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_EQ(x.span_bytes(), x.bytes());
}

TEST(Tensor, StridesOfUnitAxesDoNotMatter) {
  Tensor x = make(DType::kF32, {8, 1, 5, 1});
  x.strides[1] = 12345;
  x.strides[3] = 1;
  EXPECT_TRUE(x.is_contiguous());
  Tensor column = make(DType::kF32, {1, 5, 1, 1});
  column.strides = {20, 4, 20, 20};
  EXPECT_TRUE(column.is_contiguous());
  column.strides[1] = 8;
  EXPECT_FALSE(column.is_contiguous());
}

TEST(Tensor, EmptyTensorsAreContiguous) {
  Tensor x = make(DType::kF32, {8, 0, 5, 1});
  x.strides = {7, 7, 7, 7};
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_TRUE(x.is_row_contiguous());
}

TEST(Tensor, DescriptionsOmitTrailingAxesOfLengthOne) {
  EXPECT_EQ(to_string(Shape{256, 4, 1, 1}), "[256, 4]");
  EXPECT_EQ(to_string(Shape{1, 1, 1, 1}), "[1]");
  EXPECT_EQ(to_string(Shape{1, 1, 0, 1}), "[1, 1, 0]");
  EXPECT_EQ(describe(make(DType::kQ8_0, {256, 1, 2, 1})), "x q8_0 [256, 1, 2]");
}

}  // namespace
}  // namespace shoal

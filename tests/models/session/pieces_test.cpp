#include "models/session/loader.h"

#include <gtest/gtest.h>

namespace shoal::models {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// Returns the sizes of the pieces. Checks that consecutive pieces form the whole tensor.
std::vector<size_t> sizes(DType dtype, Shape shape) {
  GgufTensor source;
  source.dtype = dtype, source.shape = shape;
  const DTypeTraits& type = traits(dtype);
  source.bytes = static_cast<size_t>(shape[0] / type.block_elems * shape[1] * shape[2] * shape[3]) * type.block_bytes;
  Tensor tensor;
  std::vector<Piece> pieces;
  cut(tensor, source, pieces);
  std::vector<size_t> out;
  size_t end = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.offset, end);
    EXPECT_TRUE(piece.tensor == &tensor && piece.source == &source);
    end += piece.bytes;
    out.push_back(piece.bytes);
  }
  EXPECT_EQ(end, source.bytes);
  return out;
}

TEST(LoaderPieces, ContainWholeGroupsOfRows) {
  constexpr size_t kRow = 4352;  // bytes of a row of 4096 Q8_0 values
  EXPECT_EQ(sizes(DType::kQ8_0, {4096, 512, 1, 1}), (std::vector<size_t>{240 * kRow, 240 * kRow, 32 * kRow}));
  EXPECT_EQ(sizes(DType::kQ8_0, {4096, 245, 1, 1}), (std::vector<size_t>{240 * kRow, 5 * kRow}));
  EXPECT_EQ(sizes(DType::kQ8_0, {4096, 240, 1, 1}), (std::vector<size_t>{240 * kRow}));
  // A row group with long rows may be larger than a megabyte.
  EXPECT_EQ(sizes(DType::kF32, {28672, 33, 1, 1}), (std::vector<size_t>{16 * 114688, 16 * 114688, 114688}));
}

TEST(LoaderPieces, LargeMatricesDoNotSharePieces) {
  constexpr size_t kRow = 4352;
  const std::vector<size_t> experts{240 * kRow, 10 * kRow};  // no piece contains rows of two matrices
  std::vector<size_t> three;
  for (int i = 0; i < 3; ++i) three.insert(three.end(), experts.begin(), experts.end());
  EXPECT_EQ(sizes(DType::kQ8_0, {4096, 250, 3, 1}), three);
  // A piece may contain several small matrices.
  EXPECT_EQ(sizes(DType::kF32, {1000, 100, 6, 1}), (std::vector<size_t>{800000, 800000, 800000}));
  EXPECT_EQ(sizes(DType::kF32, {1000, 100, 3, 1}), (std::vector<size_t>{800000, 400000}));
}

TEST(LoaderPieces, LongRowsAreCutIntoMegabytes) {
  EXPECT_EQ(sizes(DType::kF32, {100, 1, 1, 1}), (std::vector<size_t>{400}));
  EXPECT_EQ(sizes(DType::kF32, {0, 4, 1, 1}), (std::vector<size_t>{}));
  EXPECT_EQ(sizes(DType::kF32, {262144, 1, 1, 1}), (std::vector<size_t>{kMiB}));
  EXPECT_EQ(sizes(DType::kF32, {600000, 1, 1, 1}), (std::vector<size_t>{kMiB, kMiB, 2400000 - 2 * kMiB}));
}

}  // namespace
}  // namespace shoal::models
